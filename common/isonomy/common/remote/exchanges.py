"""The blind group sum between machines: the company's port and the regulator's loop.

One exchange is one call of the port, numbered by the company:

    columns   "query" (one frame)             →  "columns" (frames, the last one marked)
    answer    "sum" (header and ciphertexts)  →  "answer" (one frame: answer, demand or refusal)
    open      "opening" (header and parts)    →  "answer" (one frame)

Under a plan by pads "query" asks for keys, once, and "pads" (sealed, with the query in it) takes
the place of "sum" (signed and in the clear, because the server may have to add it). Its frames
travel joined, as many as fit into one piece: a chunk of training is one message up, and one down.
"alone" takes the place of "sum", too, where several companies ask and one of them asks about its
own people: nothing is added up.

A broken stream is invisible here. If the other process restarts in the middle, the exchange is lost
(PeerRestarted) and the channel asks again (`Retrying`): an answered query by its stored request,
which gives the same answer; one that was not answered by a new attempt, which costs nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count, repeat
from typing import TypeVar

from isonomy.common.base.errors import (
    AttemptLost,
    ConfigError,
    InspectionFailed,
    InspectionPending,
    PeerRestarted,
    ProtocolError,
    ReplayRefused,
    SessionClosed,
)
from isonomy.common.pads.company import PadRows
from isonomy.common.pads.key_store import KeyStore
from isonomy.common.people.cohort import Cohort
from isonomy.common.session.connection import Session
from isonomy.common.session.sealed_links import Parcel
from isonomy.common.sums.channel import Channel, Wrapper
from isonomy.common.sums.company_half import (
    ColumnProducts,
    EncryptedChannel,
    Reply,
    read_reply,
)
from isonomy.common.sums.openings import LENGTH_BYTES, OpeningStore, cut_chunks, join_chunks
from isonomy.common.sums.oracle import GroupOracle
from isonomy.common.sums.question import Prepared, Released, Terms
from isonomy.common.sums.regulator_half import RegulatorHalf
from isonomy.common.wire.envelopes import CHUNK_BYTES, Purpose, parse_dual
from isonomy.common.wire.messages import Answer, OpeningDemand, Refusal, encode

T = TypeVar("T")
MAX_RESTARTS = 100  # of the other party within one query; more is no accident


class RemoteRegulator:
    """The regulator as the company reaches it through a session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._name = session.plan.regulator.name
        self._rows: Purpose = "pads" if session.plan.carrier == "pads" else "sum"
        if len(session.plan.companies) > 1:
            self._rows = "alone"
        self._exchanges = count(1)
        self._answered: set[str] = set()  # answers that came over this session, not from disk
        self._multipliers: dict[str, tuple[float, ...]] = {}  # by query, as the regulator has them

    def columns(self, query_id: str, query_frame: bytes) -> Iterator[bytes]:
        """Encrypted columns as they arrive."""
        return self.exchange(query_id, [("query", query_frame)], "columns")

    def answer(self, query_id: str, frames: Iterable[bytes]) -> Reply:
        """The signed answer to a request, or a demand to open it."""
        together = packed(frames) if self._rows == "pads" else frames
        return self._reply(query_id, zip(repeat(self._rows), together))

    def open(self, query_id: str, frames: Iterable[bytes]) -> Reply:
        """The signed answer to a request that was opened."""
        return self._reply(query_id, zip(repeat("opening"), frames))

    def _reply(self, query_id: str, frames: Iterable[tuple[Purpose, bytes]]) -> Reply:
        replies = list(self.exchange(query_id, frames, "answer"))
        if len(replies) != 1:
            raise ProtocolError("an answer is one frame")
        reply = read_reply(replies[0])
        if isinstance(reply.message, Answer):
            self._answered.add(query_id)
        return reply

    def exchange(
        self, query_id: str, frames: Iterable[tuple[Purpose, bytes]], expected: Purpose
    ) -> Iterator[bytes]:
        """Send a request about one query; its replies as they arrive."""
        exchange = next(self._exchanges)
        generation = self.session.generation(self._name)
        _send(self.session, self._name, query_id, exchange, frames, generation)
        index, last = 0, False
        while not last:
            reply = self.session.receive(self._name, generation=generation)
            if reply.purpose == "dual":
                self._multipliers[reply.query_id] = parse_dual(reply.payload)[1]
            elif reply.exchange == exchange:  # else the rest of one that this side gave up
                if (reply.purpose, reply.index) != (expected, index):
                    raise ProtocolError(f"expected frame {index} of {expected}, got another")
                yield reply.payload
                index, last = index + 1, reply.last

    def multipliers(self, query_id: str) -> tuple[float, ...] | None:
        """λ after that dual step, as the regulator sent it; None if nobody can have sent it.

        An answer from the store of openings came in an earlier session, and with it its λ.
        """
        if query_id not in self._answered:
            return None
        generation = self.session.generation(self._name)
        while query_id not in self._multipliers:
            try:
                frame = self.session.receive(self._name, generation=generation)
            except PeerRestarted:  # it answered, and died before it sent λ
                return None
            if frame.purpose == "dual":
                self._multipliers[frame.query_id] = parse_dual(frame.payload)[1]
        return self._multipliers[query_id]


class Retrying(Wrapper):
    """A channel whose regulator may restart at any moment.

    `shared`: several companies ask together, so another company's restart can lose an attempt too.
    """

    def __init__(self, inner: Channel, session: Session, *, shared: bool = False) -> None:
        super().__init__(inner)
        self._session, self._shared = session, shared
        self._regulator = session.plan.regulator.name

    def exchange(self, prepared: Prepared) -> Released:
        """Ask until nobody restarts in between."""
        name = self._regulator
        for _ in range(MAX_RESTARTS):
            generation = self._session.generation(name)
            try:
                return self.inner.exchange(prepared)
            except PeerRestarted:
                continue
            except (ReplayRefused, InspectionPending):
                raise
            except ProtocolError as error:
                if self._shared and isinstance(error, AttemptLost):
                    continue  # all companies begin this query again
                # "No key is open for this attempt" is what a restarted regulator rightly says. The
                # same from one that did not restart is an error.
                if self._session.generation(name) == generation:
                    raise
        raise ProtocolError(
            f"{name} or another party restarted {MAX_RESTARTS} times within one query; see their "
            "logs"
        )


def remote_oracle(
    session: Session,
    cohort: Cohort,
    *,
    openings: OpeningStore | None = None,
    keys: KeyStore | None = None,
) -> GroupOracle:
    """The oracle of a company that is alone in its plan, through a session."""
    return GroupOracle(remote_channel(session, cohort, openings=openings, keys=keys))


def remote_channel(
    session: Session,
    cohort: Cohort,
    *,
    openings: OpeningStore | None = None,
    keys: KeyStore | None = None,
) -> Channel:
    """The encrypted channel through a session, for the people that the plan binds.

    `keys`: where those of a plan by pads are kept; without it, in memory.
    """
    plan = session.plan
    if (cohort.root.hex(), len(cohort)) != (plan.cohort_root, plan.cohort_size):
        raise ConfigError("these people, in this order, are not the cohort that the plan binds")
    keys = keys or KeyStore(len(cohort), company=True)
    terms = Terms(
        cohort,
        plan.groups,
        plan.hash,
        plan.cap_units,
        plan.delta_value,
        declaration=plan.declaration,
        audits=plan.planned_audits,
    )
    channel = EncryptedChannel(
        RemoteRegulator(session),
        terms,
        regulator_key=plan.regulator.signing_key,
        openings=openings,
        auditor=bytes.fromhex(plan.auditor),
        inspection_millionths=plan.inspection_millionths,
        identity=session.keys.identity,
        record_private=plan.record_privacy,
        individual=plan.individual_filter,
        carrier=(
            partial(
                PadRows,
                store=keys,
                tagged=bool(plan.auditor),
                millionths=plan.inspection_millionths,
            )
            if plan.carrier == "pads"
            else ColumnProducts
        ),
    )
    channel.begin()
    return Retrying(channel, session)


def serve_queries(
    session: Session, half: RegulatorHalf, *, on_event: Callable[..., None] | None = None
) -> None:
    """The regulator's loop: answer the company's exchanges until it closes the session.

    `on_event(kind, query_id, reason)` hears "columns", "keys", "answer", "demand" or "refusal" when
    each has left; only a refusal has a reason. It hears "rows" when masked rows begin to come
    in, which ask without columns.
    Returns when the company says it is done; raises SessionClosed if it ended for another reason,
    and InspectionFailed if it was caught.
    """
    (company,) = (card.name for card in session.plan.companies)
    first_reply = "keys" if session.plan.carrier == "pads" else "columns"

    def answer(generation: int, first: Parcel) -> None:
        if on_event is not None and first.purpose == "pads":
            on_event("rows", first.query_id)
        kind, reason = serve_one(session, half, company, generation, first)
        if on_event is not None:
            on_event(first_reply if kind == "columns" else kind, first.query_id, reason)

    answer_exchanges(session, company, answer)


def answer_exchanges(session: Session, company: str, answer: Callable[[int, Parcel], None]) -> None:
    """Call `answer(generation, first frame)` for each exchange that a company begins.

    Returns when the company says it is done; raises SessionClosed if it ended for another reason.
    """
    generation = 0
    while True:
        try:
            generation = session.generation(company)
            answer(generation, session.receive(company, generation=generation))
        except PeerRestarted:
            # A restart that the session does not know of would repeat for ever.
            if session.incarnations()[company] == generation:
                raise
        except SessionClosed as closed:
            if closed.done:
                return
            raise


def serve_one(
    session: Session, half: RegulatorHalf, company: str, generation: int, first: Parcel
) -> tuple[str, str]:
    """Answer one exchange. Returns what has left ("columns", "answer", "demand" or "refusal"),
    and the reason of a refusal.
    """
    query_id, exchange = first.query_id, first.exchange
    if first.purpose == "query":
        columns = half.columns(first.payload)
        frames = iter([encode(columns)]) if isinstance(columns, Refusal) else columns
        _send(session, company, query_id, exchange, zip(repeat("columns"), frames), generation)
        if isinstance(columns, Refusal):
            return "refusal", columns.reason
        return "columns", ""
    if first.purpose not in ("sum", "alone", "pads", "opening"):
        raise ProtocolError(f"{company} may not begin an exchange with {first.purpose!r}")
    frames = request_frames(session, company, generation, first)
    reply = half.open(frames) if first.purpose == "opening" else half.answer(frames)
    for _ in frames:  # what a refused request still has to say
        pass
    _send(session, company, query_id, exchange, [("answer", encode(reply))], generation)
    if isinstance(reply, Refusal):
        error = reply.error()
        if isinstance(error, InspectionFailed):
            raise error  # the company has heard so; the session is over
        return "refusal", reply.reason
    if isinstance(reply, OpeningDemand):
        return "demand", ""
    multipliers = half.multipliers(query_id)
    if multipliers is not None:
        session.send_dual(company, query_id, *multipliers)
    return "answer", ""


def _send(
    session: Session,
    recipient: str,
    query_id: str,
    exchange: int,
    frames: Iterable[tuple[Purpose, bytes]],
    generation: int,
) -> None:
    """Send one side's frames of an exchange."""
    for index, ((purpose, payload), last) in enumerate(marked(frames)):
        parcel = Parcel(recipient, purpose, query_id, exchange, index, last, payload)
        session.send(recipient, parcel, generation=generation)


def request_frames(
    session: Session, company: str, generation: int, first: Parcel
) -> Iterator[bytes]:
    """The frames of a request, from the first to the one marked as last."""
    frame = first
    for index in count():
        if (frame.exchange, frame.index, frame.purpose) != (first.exchange, index, first.purpose):
            raise ProtocolError(f"expected frame {index} of a request, got another")
        if frame.purpose == "pads":
            yield from unpacked(frame.payload)
        else:
            yield frame.payload
        if frame.last:
            return
        frame = session.receive(company, generation=generation)


def packed(frames: Iterable[bytes]) -> Iterator[bytes]:
    """Frames joined, each after its length, as many as travel in one piece."""
    together, size = list[bytes](), 0
    for frame in frames:
        size += LENGTH_BYTES + len(frame)
        if together and size > CHUNK_BYTES:
            yield join_chunks(together)
            together, size = [], LENGTH_BYTES + len(frame)
        together.append(frame)
    yield join_chunks(together)


def unpacked(payload: bytes) -> list[bytes]:
    """What `packed` joined; ProtocolError for anything else."""
    try:
        return cut_chunks(payload)
    except (ValueError, struct.error):
        raise ProtocolError("the frames of a request are cut off") from None


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
