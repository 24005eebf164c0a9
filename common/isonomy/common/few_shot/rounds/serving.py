"""The regulator's loop of a few-shot run: frames in, the desk's answers out (see round_session)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import IsonomyError, PeerRestarted, ProtocolError, SessionClosed
from isonomy.common.crypto.he_vectors import VectorEncryptor
from isonomy.common.crypto.params import parameter_set
from isonomy.common.few_shot.rounds.messages import (
    Ask,
    Begin,
    Given,
    Ready,
    attempt_id,
    parse_company,
    refused,
    theta_hash,
)
from isonomy.common.few_shot.rounds.plan import FewShotPlan
from isonomy.common.few_shot.rounds.rounds import encrypted_parts
from isonomy.common.few_shot.rounds.session import few_shot_plan
from isonomy.common.ledger.ledger import DebitRecord
from isonomy.common.remote.remote import marked
from isonomy.common.session.connection import Session
from isonomy.common.session.links import Parcel


class Desk(Protocol):
    """What answers on the regulator's side: round_desk.RoundDesk."""

    def begin(self, said: Begin) -> Ready: ...
    def contribute(
        self, number: int, theta: NDArray[np.float32]
    ) -> tuple[NDArray[np.int64], DebitRecord]: ...


def serve_rounds(
    session: Session, desk: Desk, *, on_event: Callable[[str, int, str], None] | None = None
) -> None:
    """Answer rounds until the company closes the session.

    `on_event(kind, number, text)` hears "begin", "round" or "refusal" when each has left, a refusal
    with its reason. After one the company decides how to
    end the session. Returns when it says that it is done; raises SessionClosed if it ended for
    another reason.
    """
    plan = few_shot_plan(session)
    tell, company = on_event or (lambda kind, number, text: None), plan.companies[0].name
    generation = 0
    while True:
        try:
            generation = session.generation(company)
            talk = _RegulatorTalk(session, plan, company, generation)
            first = session.receive(company, generation=generation)
            tell(*talk.answer(desk, first))
        except PeerRestarted:
            if session.incarnations()[company] == generation:
                raise  # said, but not so: never round and round over it
            # It did, and begins again.
        except SessionClosed as closed:
            if closed.done:
                return
            raise


class _RegulatorTalk:
    """One incarnation of the company, as the regulator answers it."""

    def __init__(self, session: Session, plan: FewShotPlan, company: str, generation: int) -> None:
        self._session, self._plan, self._company = session, plan, company
        self._generation = generation
        self._params = parameter_set(plan.parameters)

    def answer(self, desk: Desk, first: Parcel) -> tuple[str, int, str]:
        """Answer one exchange; says what has left."""
        if first.purpose != "round" or not (first.last and first.index == 0):
            raise ProtocolError("a round begins with its parameters and the key of its attempt")
        said = parse_company(first.payload, self._params, self._plan.size)
        if isinstance(said, Ask):
            return self._round(desk, first.exchange, said)
        try:
            ready = desk.begin(said)
        except IsonomyError as error:
            return self._refuse(first.exchange, 0, error)
        self._say(first.exchange, ready.dump())
        return "begin", ready.answered, ""

    def _round(self, desk: Desk, exchange: int, ask: Ask) -> tuple[str, int, str]:
        try:
            values, record = desk.contribute(ask.number, ask.theta)
        except IsonomyError as error:
            self._hear_company(exchange, ask)  # it is on its way, and must not look like the next
            return self._refuse(exchange, ask.number, error)
        self._hear_company(exchange, ask)
        named = theta_hash(ask.theta)
        given = Given(ask.number, ask.attempt, named, record.seq, record.hash)
        self._say(exchange, given.signed(self._session.keys.identity, self._plan.hash).dump())
        encryptor = VectorEncryptor(self._params, ask.public)
        parts = encrypted_parts(self._params, encryptor, values)
        for index, (payload, last) in enumerate(marked(parts)):
            name = attempt_id(ask.number, ask.attempt)
            frame = Parcel(self._company, "sum", name, exchange, index, last, payload)
            self._session.send(self._company, frame, generation=self._generation)
        return "round", ask.number, ""

    def _refuse(self, exchange: int, number: int, error: IsonomyError) -> tuple[str, int, str]:
        self._say(exchange, refused(error))
        return "refusal", number, f"{type(error).__name__}: {error}"

    def _hear_company(self, exchange: int, ask: Ask) -> None:
        """Hear of all of the company's ciphertexts: the relay then holds them, and can add."""
        for index in range(self._plan.round_parts):
            frame = self._session.receive(self._company, generation=self._generation)
            place = (frame.purpose, frame.query_id, frame.exchange, frame.index)
            if place != ("sum", attempt_id(ask.number, ask.attempt), exchange, index):
                raise ProtocolError(f"expected the company's ciphertext {index}, got another")
            if not frame.summed or frame.total:
                raise ProtocolError("the relay must keep the company's ciphertexts back")

    def _say(self, exchange: int, payload: bytes) -> None:
        frame = Parcel(self._company, "round", "", exchange, 0, True, payload)
        self._session.send(self._company, frame, generation=self._generation)


__all__ = ["serve_rounds"]
