"""The blind group sum between machines: the company's port and the regulator's loop.

One exchange is one call of the port, numbered by the company:

    columns   "query" (one frame)             →  "columns" (frames, the last one marked)
    answer    "sum" (header and ciphertexts)  →  "answer" (one frame: answer, demand or refusal)
    open      "opening" (header and parts)    →  "answer" (one frame)

A broken stream is invisible here. If the other process restarts in the middle, the exchange is lost
(PeerRestarted) and the oracle asks again: an answered query by its stored request, which gives the
same answer; one that was not answered by a new attempt, which costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import (
    ConfigError,
    InspectionFailed,
    InspectionPending,
    PeerRestarted,
    ProtocolError,
    ReplayRefused,
    SessionClosed,
)
from isonomy.common.people.cohort import Cohort
from isonomy.common.privacy.queries import Query
from isonomy.common.session.connection import Session
from isonomy.common.session.links import Parcel
from isonomy.common.sums.company_half import EncryptedOracle
from isonomy.common.sums.openings import OpeningStore
from isonomy.common.sums.oracle import Asked, Receipt
from isonomy.common.wire.envelopes import Purpose, parse_dual
from isonomy.common.wire.messages import (
    Answer,
    OpeningDemand,
    OpeningHeader,
    Refusal,
    SumHeader,
    decode_any,
)

T = TypeVar("T")
MAX_RESTARTS = 100  # of the other party within one query; more is no accident


class AnsweringHalf(Protocol):
    """What answers on the regulator's side: RegulatorHalf."""

    def columns(self, query_frame: bytes) -> Iterator[bytes]: ...
    def answer(self, frames: Iterable[bytes]) -> bytes: ...
    def open(self, frames: Iterable[bytes]) -> bytes: ...
    def multipliers(self, query_id: str) -> tuple[int, tuple[float, ...]] | None: ...


class RemoteRegulator:
    """The regulator as the company reaches it through a session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._name = session.plan.regulator.name
        self._exchanges = count(1)
        self._answered: set[str] = set()  # answers that came over this session, not from disk
        self._multipliers: dict[str, tuple[float, ...]] = {}  # by query, as the regulator has them

    def columns(self, query_frame: bytes) -> Iterator[bytes]:
        """Encrypted columns as they arrive."""
        return self._exchange([("query", query_frame)], "columns")

    def answer(self, frames: Iterable[bytes]) -> bytes:
        """The signed answer (or a demand, or a refusal) to a request."""
        return self._one(("sum", frame) for frame in frames)

    def open(self, frames: Iterable[bytes]) -> bytes:
        """The signed answer (or a refusal) to a request that was opened."""
        return self._one(("opening", frame) for frame in frames)

    def _one(self, frames: Iterable[tuple[Purpose, bytes]]) -> bytes:
        replies = list(self._exchange(frames, "answer"))
        if len(replies) != 1:
            raise ProtocolError("an answer is one frame")
        message = decode_any(replies[0])
        if isinstance(message, Answer):
            self._answered.add(message.query_id)
        return replies[0]

    def _exchange(
        self, frames: Iterable[tuple[Purpose, bytes]], expected: Purpose, query_id: str = ""
    ) -> Iterator[bytes]:
        exchange = next(self._exchanges)
        generation = self.session.generation(self._name)
        for index, ((purpose, payload), last) in enumerate(marked(frames)):
            query_id = query_id or query_id_of(payload)
            frame = Parcel(self._name, purpose, query_id, exchange, index, last, payload)
            self.session.send(self._name, frame, generation=generation)
        for index in count():
            reply = self._receive(exchange, generation)
            if reply.purpose != expected or reply.index != index:
                raise ProtocolError(f"expected frame {index} of {expected}, got another")
            yield reply.payload
            if reply.last:
                return

    def multipliers(self, query_id: str) -> tuple[float, ...] | None:
        """λ after that dual step, as the regulator sent it; None if nobody can have sent it.

        An answer from the store of openings came in an earlier session, and with it its λ.
        """
        if query_id not in self._answered:
            return None
        generation = self.session.generation(self._name)
        while query_id not in self._multipliers:
            try:
                self._note(self.session.receive(self._name, generation=generation))
            except PeerRestarted:  # it answered, and died before it said so
                return None
        return self._multipliers[query_id]

    def _note(self, frame: Parcel) -> None:
        if frame.purpose == "dual":
            self._multipliers[frame.query_id] = parse_dual(frame.payload)[1]

    def _receive(self, exchange: int, generation: int) -> Parcel:
        while True:
            frame = self.session.receive(self._name, generation=generation)
            self._note(frame)
            if frame.purpose != "dual" and frame.exchange == exchange:
                return frame
            # The rest of an exchange that this side gave up.


class RemoteOracle(EncryptedOracle):
    """An EncryptedOracle whose regulator may restart at any moment."""

    _port: RemoteRegulator

    def __init__(self, session: Session, cohort: Cohort, *, openings: OpeningStore | None = None):
        plan = session.plan
        if (cohort.root.hex(), len(cohort)) != (plan.cohort_root, plan.cohort_size):
            raise ConfigError("these people, in this order, are not the cohort that the plan binds")
        super().__init__(
            RemoteRegulator(session),
            cohort,
            plan.groups,
            plan=plan.hash,
            cap_units=plan.cap_units,
            delta=plan.delta_value,
            regulator_key=plan.regulator.signing_key,
            openings=openings,
            auditor=bytes.fromhex(plan.auditor),
            inspection_millionths=plan.inspection_millionths,
            identity=session.keys.identity,
        )
        self.record_privacy = plan.record_privacy

    def confirm_multipliers(self, query_id: str, values: tuple[float, ...]) -> None:
        """Both sides compute λ; a difference would be refused at the next query, so say it now."""
        theirs = self._port.multipliers(query_id)
        if theirs is not None and theirs != values:
            raise ProtocolError("the regulator holds other multipliers λ than follow from answers")

    def _exchange(self, asked: Asked) -> tuple[NDArray[np.int64], Receipt]:
        session, name = self._port.session, self._port.session.plan.regulator.name
        for _ in range(MAX_RESTARTS):
            generation = session.generation(name)
            try:
                return super()._exchange(asked)
            except PeerRestarted:
                continue
            except (ReplayRefused, InspectionPending):
                raise
            except ProtocolError:
                # "No key is open for this attempt" is what a restarted regulator rightly says. The
                # same from one that did not restart is an error.
                if session.generation(name) == generation:
                    raise
        raise ProtocolError(f"{name} restarted {MAX_RESTARTS} times within one query")


def serve_queries(
    session: Session, half: AnsweringHalf, *, on_event: Callable[[str, str], None] | None = None
) -> None:
    """The regulator's loop: answer the company's exchanges until it closes the session.

    `on_event(kind, query_id)` hears "columns", "answer", "demand" or "refusal" when each has left.
    Returns when the company says it is done; raises SessionClosed if it ended for another reason,
    and InspectionFailed if it was caught.
    """
    (company,) = (card.name for card in session.plan.companies)
    tell = on_event or (lambda kind, query_id: None)
    generation = 0
    while True:
        try:
            generation = session.generation(company)
            first = session.receive(company, generation=generation)
            kind = _serve_one(session, half, company, generation, first)
            tell(kind, first.query_id)
        except PeerRestarted:
            if session.incarnations()[company] == generation:
                raise  # said, but not so: never round and round over it
            # It did, and asks again.
        except SessionClosed as closed:
            if closed.done:
                return
            raise


def _serve_one(
    session: Session, half: AnsweringHalf, company: str, generation: int, first: Parcel
) -> str:
    """Answer one exchange; says what has left."""
    replies: Iterable[bytes]
    purpose: Purpose
    frames: Iterable[bytes] = ()
    if first.purpose == "query":
        purpose, replies = "columns", half.columns(first.payload)
    elif first.purpose == "sum":
        frames = _request(session, company, generation, first)
        purpose, replies = "answer", [half.answer(frames)]
    elif first.purpose == "opening":
        frames = _request(session, company, generation, first)
        purpose, replies = "answer", [half.open(frames)]
    else:
        raise ProtocolError(f"{company} may not begin an exchange with {first.purpose!r}")
    for _ in frames:  # what a refused request still has to say
        pass
    for index, (payload, last) in enumerate(marked(replies)):
        frame = Parcel(company, purpose, first.query_id, first.exchange, index, last, payload)
        session.send(company, frame, generation=generation)
    kind = "columns" if purpose == "columns" else _kind(payload)
    multipliers = half.multipliers(first.query_id) if kind == "answer" else None
    if multipliers is not None:
        session.send_dual(company, first.query_id, *multipliers)
    return kind


def _kind(reply: bytes) -> str:
    """What kind of answer has left. Who failed an inspection hears so, and the session is over."""
    message = decode_any(reply)
    if isinstance(message, Refusal) and message.code == InspectionFailed.__name__:
        raise InspectionFailed(message.text)
    if isinstance(message, OpeningDemand):
        return "demand"
    return "answer" if isinstance(message, Answer) else "refusal"


def _request(session: Session, company: str, generation: int, first: Parcel) -> Iterator[bytes]:
    """The frames of a request, from the first to the one marked as last."""
    frame = first
    for index in count():
        if (frame.exchange, frame.index, frame.purpose) != (first.exchange, index, first.purpose):
            raise ProtocolError(f"expected frame {index} of a request, got another")
        yield frame.payload
        if frame.last:
            return
        frame = session.receive(company, generation=generation)


def marked(frames: Iterable[T]) -> Iterator[tuple[T, bool]]:
    """Each frame with whether it is the last."""
    stream = iter(frames)
    previous = next(stream, None)
    if previous is None:
        raise ProtocolError("an exchange has at least one frame")
    for frame in stream:
        yield previous, False
        previous = frame
    yield previous, True


def query_id_of(frame: bytes) -> str:
    """The query that the first frame of an exchange names."""
    message = decode_any(frame)
    return message.query_id if isinstance(message, Query | SumHeader | OpeningHeader) else ""
