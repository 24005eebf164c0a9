"""The company's loop of a few-shot run over a session; the regulator's is round_serving.

    exchange    from         purpose    what
    1           company      round      Begin: fingerprint and size of its model
    1           regulator    round      Ready, or why not; a model that differs ends it here
    e           company      round      Ask: round t, the attempt's public key, θ_t
    e           company      sum        Enc(g_c), a frame per 8,192 parameters; the relay keeps them
    e           regulator    round      Given: the round is paid for; or why not
    e           regulator    sum        Enc(g_r), in the same places; the relay adds the total

Both sides learn at the same time: the regulator has θ_t before the company begins its own part.
Restarts: who comes back begins with Begin again and goes on with the newest round (the company's
state and the regulator's desk are on disk). A total that a killed relay lost is AttemptLost: the
same round is sent again under a new key, with the same contributions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import (
    AttemptLost,
    BudgetExceeded,
    ConfigError,
    ModelsDiffer,
    PeerRestarted,
    ProtocolError,
    VerificationError,
)
from isonomy.common.crypto.params import parameter_set
from isonomy.common.few_shot.rounds.messages import Begin, Given, Ready, parse_regulator
from isonomy.common.few_shot.rounds.plan import FewShotPlan
from isonomy.common.few_shot.rounds.rounds import Attempt
from isonomy.common.few_shot.rounds.sides import CompanySide
from isonomy.common.few_shot.rounds.state import CompanyState
from isonomy.common.remote.remote import marked
from isonomy.common.session.connection import Session
from isonomy.common.session.links import Parcel
from isonomy.common.wire.envelopes import Purpose

MAX_RESTARTS = 100  # within one round; more is no accident


@dataclass(frozen=True)
class Round:
    """What a progress display wants to know after each round."""

    number: int
    rounds: int
    wire_bytes: int
    parameters: int
    attempts: int
    ledger_head: bytes


def train(
    session: Session,
    side: CompanySide,
    state: CompanyState,
    *,
    on_round: Callable[[Round], None] | None = None,
) -> int:
    """Train to the last round of the plan; returns the number of rounds that are finished.

    The learner is restored first, if there is a state; ModelsDiffer if it is not the plan's model.
    Fewer rounds than the plan's mean that no sample of the regulator's can pay any more (worst-case
    accounting only: there it depends on draws of tasks alone); before the first round that is
    BudgetExceeded.
    """
    plan = few_shot_plan(session)
    check_model(plan, side)
    number, saved = state.load(plan)
    if saved is not None:
        side.restore(saved)
    if number == 0:
        state.save(plan, 0, side.state())
    talk = _CompanyTalk(session, plan)
    while number < plan.settings.rounds:
        try:
            total, attempts = _sum_of_round(talk, number, side)
        except BudgetExceeded:
            if number == 0:
                raise
            break
        side.step(number, total)
        number += 1
        state.save(plan, number, side.state(), talk.given)
        if on_round is not None:
            size, head = talk.take_bytes(), talk.given.ledger_head if talk.given else b""
            on_round(Round(number, plan.settings.rounds, size, plan.size, attempts, head))
    return number


def _sum_of_round(
    talk: _CompanyTalk, number: int, side: CompanySide
) -> tuple[NDArray[np.int64], int]:
    """g_c + g_r, by as many attempts as it takes; the company's own share is worked out once."""
    own = _Once(side, number)
    for attempt in range(1, MAX_RESTARTS + 1):
        try:
            talk.greet(number)
            return talk.hold(number, side.theta(), own), attempt
        except (PeerRestarted, AttemptLost):
            talk.forget()
    raise ProtocolError(f"round {number} was lost {MAX_RESTARTS} times")


class _Once:
    """The company's contribution to a round, made when it is first asked for."""

    def __init__(self, side: CompanySide, number: int) -> None:
        self._side, self._number = side, number
        self._values: NDArray[np.int64] | None = None

    def __call__(self) -> NDArray[np.int64]:
        if self._values is None:
            self._values = self._side.contribute(self._number)
        return self._values


def check_model(plan: FewShotPlan, side: CompanySide) -> None:
    """Raise ModelsDiffer unless this is the model that the plan binds."""
    if (side.fingerprint.hex(), side.size) != (plan.fingerprint, plan.size):
        raise ModelsDiffer(
            f"the plan names model {plan.fingerprint[:16]}… with {plan.size} parameters; this "
            f"learner is {side.fingerprint.hex()[:16]}… with {side.size}"
        )


class _CompanyTalk:
    """The company's frames to and from the regulator."""

    def __init__(self, session: Session, plan: FewShotPlan) -> None:
        self._session, self._plan, self._name = session, plan, plan.regulator.name
        self._params = parameter_set(plan.parameters)
        self._exchanges = count(1)
        self._generation = 0  # of the regulator that has said Ready
        self._bytes = 0
        self.given: Given | None = None  # of the last round, signed by the regulator

    def greet(self, number: int) -> None:
        """Compare models with this incarnation of the regulator, once."""
        generation = self._session.generation(self._name)
        if generation == self._generation:
            return
        exchange, plan = next(self._exchanges), self._plan
        self._say(exchange, generation, Begin(bytes.fromhex(plan.fingerprint), plan.size).dump())
        said = parse_regulator(self._hear(exchange, generation).payload)
        if not isinstance(said, Ready):
            raise ProtocolError("the regulator must say first whether it knows the model")
        if (said.fingerprint.hex(), said.size) != (plan.fingerprint, plan.size):
            raise ModelsDiffer("the regulator would train another model than the plan names")
        if not number <= said.answered <= number + 1:
            raise VerificationError(
                f"the regulator has answered {said.answered} rounds, this side has finished "
                f"{number}: one of the two was put back to an older state. Restore the newest"
            )
        self._generation = generation

    def forget(self) -> None:
        self._generation = 0

    def hold(
        self, number: int, theta: NDArray[np.float32], own: Callable[[], NDArray[np.int64]]
    ) -> NDArray[np.int64]:
        """One attempt of a round: the sum of both shares."""
        attempt = Attempt(self._params, number, theta)
        exchange, generation = next(self._exchanges), self._generation
        try:
            self._say(exchange, generation, attempt.ask.dump())
            for index, (payload, last) in enumerate(marked(attempt.encrypt(own()))):
                self._send(exchange, generation, "sum", index, last, payload, attempt.id)
            said = parse_regulator(self._hear(exchange, generation).payload)
            if not isinstance(said, Given):
                raise ProtocolError("the regulator answered a round with something else")
            said.verify(self._plan.regulator.signing_key, self._plan.hash)
            attempt.given(said)
            while not attempt.take(self._receive(exchange, generation)):
                pass
        except BaseException:
            attempt.drop()
            raise
        self.given = said
        return attempt.finish()

    def take_bytes(self) -> int:
        """Bytes of frames since the last call, totals included."""
        found, self._bytes = self._bytes, 0
        return found

    def _say(self, exchange: int, generation: int, payload: bytes) -> None:
        self._send(exchange, generation, "round", 0, True, payload, "")

    def _send(
        self,
        exchange: int,
        generation: int,
        purpose: Purpose,
        index: int,
        last: bool,
        payload: bytes,
        query_id: str,
    ) -> None:
        self._bytes += len(payload)
        frame = Parcel(self._name, purpose, query_id, exchange, index, last, payload)
        self._session.send(self._name, frame, generation=generation)

    def _hear(self, exchange: int, generation: int) -> Parcel:
        frame = self._receive(exchange, generation)
        if frame.purpose != "round":
            raise ProtocolError("the regulator sent ciphertexts before it said whose")
        return frame

    def _receive(self, exchange: int, generation: int) -> Parcel:
        while True:
            frame = self._session.receive(self._name, generation=generation)
            self._bytes += len(frame.payload) + len(frame.total)
            if frame.exchange == exchange:
                return frame
            # The rest of an attempt that this side gave up.


def few_shot_plan(session: Session) -> FewShotPlan:
    """The agreement of a few-shot session."""
    if not isinstance(session.agreement, FewShotPlan):
        raise ConfigError("this session is not for few-shot rounds")
    return session.agreement


__all__ = ["Round", "check_model", "few_shot_plan", "train"]
