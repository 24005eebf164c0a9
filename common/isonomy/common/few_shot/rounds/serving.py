"""The regulator's loop of a few-shot run: frames in, the desk's answers out (see session.py)."""

from __future__ import annotations

from collections.abc import Callable

from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.base.errors import IsonomyError, ProtocolError
from isonomy.common.crypto.he_vectors import VectorEncryptor
from isonomy.common.crypto.params import parameter_set
from isonomy.common.few_shot.rounds._messages import (
    ATTEMPT_BYTES,
    MeasureRequest,
    RoundReceipt,
    RoundRequest,
    attempt_id,
    dump_refusal,
    parse_request,
    theta_hash,
)
from isonomy.common.few_shot.rounds._rounds import encrypted_parts
from isonomy.common.few_shot.rounds.desk import RoundDesk
from isonomy.common.few_shot.rounds.session import few_shot_plan
from isonomy.common.remote.exchanges import answer_exchanges, marked
from isonomy.common.session.connection import Session
from isonomy.common.session.sealed_links import Parcel
from isonomy.common.wire.messages import encode


def serve_rounds(
    session: Session,
    desk: RoundDesk,
    *,
    on_round: Callable[[str, int, str], None] | None = None,
) -> None:
    """Answer rounds until the company closes the session.

    `on_round(what, number, refusal)` is called when an answer has left. `what` is "round", or
    "measurement" with the number of rounds before it; `refusal` is its reason, or "".
    After a refusal the company decides how to end the session. Returns when the company says that
    it is done; raises SessionClosed if the session ended for another reason.
    """
    plan = few_shot_plan(session)
    company = plan.companies[0].name

    def answer(generation: int, first: Parcel) -> None:
        result = _CompanyLink(session, plan, company, generation).answer(desk, first)
        if on_round is not None:
            on_round(*result)

    answer_exchanges(session, company, answer)


class _CompanyLink:
    """The regulator's frames to and from one incarnation of the company."""

    def __init__(self, session: Session, plan: FewShotPlan, company: str, generation: int) -> None:
        self._session, self._plan, self._company = session, plan, company
        self._generation = generation
        self._params = parameter_set(plan.parameters)

    def answer(self, desk: RoundDesk, first: Parcel) -> tuple[str, int, str]:
        """Answer one request; returns what it is, its round, and the reason if it was refused."""
        if first.purpose != "round" or not (first.last and first.index == 0):
            raise ProtocolError("a round begins with its parameters and the key of its attempt")
        request = parse_request(first.payload, self._params, self._plan.size)
        if isinstance(request, MeasureRequest):
            return self._measure(desk, request, first.exchange)
        exchange, refusal = first.exchange, None
        try:
            values, record = desk.contribute(request.number, request.theta)
        except IsonomyError as error:
            refusal = error
        # Also after a refusal: the company's ciphertexts are under way, and must not be taken for
        # the next request.
        self._await_ciphertexts(exchange, request)
        if refusal is not None:
            self._send(exchange, dump_refusal(refusal))
            return "round", request.number, f"{type(refusal).__name__}: {refusal}"
        receipt = RoundReceipt(
            request.number, request.attempt, theta_hash(request.theta), record.seq, record.hash
        )
        signed = receipt.signed(self._session.keys.identity, self._plan.hash)
        self._send(exchange, signed.dump())
        encryptor = VectorEncryptor(self._params, request.public)
        name = attempt_id(request.number, request.attempt)
        for part, last in marked(encrypted_parts(self._params, encryptor, values)):
            parcel = Parcel(self._company, "sum", name, exchange, part.index, last, encode(part))
            self._session.send(self._company, parcel, generation=self._generation)
        return "round", request.number, ""

    def _measure(
        self, desk: RoundDesk, request: MeasureRequest, exchange: int
    ) -> tuple[str, int, str]:
        """Have the model measured; returns the same as `answer`."""
        try:
            record = desk.measure(request.number, request.theta)
        except IsonomyError as error:
            self._send(exchange, dump_refusal(error))
            return "measurement", request.number, f"{type(error).__name__}: {error}"
        attempt, digest = bytes(ATTEMPT_BYTES), theta_hash(request.theta)
        receipt = RoundReceipt(request.number, attempt, digest, record.seq, record.hash)
        self._send(exchange, receipt.signed(self._session.keys.identity, self._plan.hash).dump())
        return "measurement", request.number, ""

    def _await_ciphertexts(self, exchange: int, request: RoundRequest) -> None:
        """Wait for the envelopes of all the company's ciphertexts: the relay can then add."""
        name = attempt_id(request.number, request.attempt)
        for index in range(self._plan.round_parts):
            parcel = self._session.receive(self._company, generation=self._generation)
            place = (parcel.purpose, parcel.query_id, parcel.exchange, parcel.index)
            if place != ("sum", name, exchange, index):
                raise ProtocolError(f"expected the company's ciphertext {index}, got another")
            if not parcel.summed or parcel.total:
                raise ProtocolError("the relay must keep the company's ciphertexts back")

    def _send(self, exchange: int, payload: bytes) -> None:
        parcel = Parcel(self._company, "round", "", exchange, 0, True, payload)
        self._session.send(self._company, parcel, generation=self._generation)
