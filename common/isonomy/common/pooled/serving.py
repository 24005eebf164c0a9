"""The regulator's loop where several companies ask together: frames in, replies out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from isonomy.common.base.errors import (
    OversizedMessage,
    PartyTimeout,
    PeerRestarted,
    ProtocolError,
    SessionClosed,
)
from isonomy.common.crypto.params import parameter_set
from isonomy.common.pooled._requests import Reply
from isonomy.common.pooled.half import PooledHalf
from isonomy.common.privacy.queries import MAX_ANSWERS
from isonomy.common.remote.exchanges import marked, request_frames, serve_one
from isonomy.common.session.connection import Session
from isonomy.common.session.sealed_links import Parcel
from isonomy.common.sums.pool_masks import MAX_TOTALS_BYTES

POLL_S = 0.5  # how soon it is noticed that a company is done
MAX_HEADER_BYTES = 4096
MAX_PLACE_BYTES = 512  # what may come with a ciphertext


def serve_pooled(
    session: Session, half: PooledHalf, *, on_event: Callable[..., None] | None = None
) -> None:
    """The regulator's loop for several companies, until all have closed the session."""
    tell = on_event or (lambda kind, query_id, reason: None)
    table = _Table(session, half, tell)
    while True:
        try:
            replies = table.next_replies()
        except SessionClosed as closed:
            if closed.done:
                return
            raise
        for reply in replies:
            _send(session, reply, table.generations[reply.company])
            kind = "refusal" if reply.refusal else reply.purpose
            tell(kind, reply.query_id, reply.refusal)
        if half.failed is not None:
            raise half.failed  # the companies have heard so; the session is over


class _Table:
    """Who is there, and what each company has sent of its request so far."""

    def __init__(
        self, session: Session, half: PooledHalf, tell: Callable[[str, str, str], None]
    ) -> None:
        self._session, self._half, self._tell = session, half, tell
        self._total_bytes = parameter_set(session.plan.parameters).answer_bytes + MAX_PLACE_BYTES
        self.generations = session.incarnations()
        self._awaited: dict[str, float] = {}  # companies that others wait for, since when
        self._partial: dict[str, list[Parcel]] = {card.name: [] for card in session.plan.companies}
        for name in self._partial:
            half.restarted(name)  # exchanges of an earlier session mean nothing in this one

    def next_replies(self) -> Iterable[Reply]:
        """What the next frame brings about; if none comes, the departure of a company."""
        began = time.monotonic()
        self._check_awaited(began)
        try:
            return self._on_frame(self._session.receive(timeout_s=POLL_S))
        except PartyTimeout:
            # The limit above passes later than that; what comes earlier is about an absent party.
            if time.monotonic() - began <= POLL_S:
                raise
        return self._departures() if self._awaited else ()

    def _check_awaited(self, now: float) -> None:
        """Raise if a company is connected, and keeps the others waiting all the same."""
        self._awaited = {name: self._awaited.get(name, now) for name in self._half.awaited}
        limit_s = self._session.timing.absence_s
        silent = sorted(name for name, since in self._awaited.items() if now - since > limit_s)
        if silent:
            raise PartyTimeout(
                f"the others wait for {' and '.join(silent)}, without whose part of a question "
                f"{limit_s:g} s have passed. State is kept; run again to resume"
            )

    def _departures(self) -> Iterator[Reply]:
        for name in self._partial:
            try:
                frame = self._session.receive(name, timeout_s=0.0)
            except PartyTimeout:
                continue  # still there, with nothing to say
            except SessionClosed as closed:
                if not closed.done:
                    raise
                yield from self._half.departed(name)
            else:
                yield from self._on_frame(frame)

    def _on_frame(self, frame: Parcel) -> Iterator[Reply]:
        now = self._session.incarnations()
        for name in self._partial:
            if now[name] != self.generations[name]:
                self._half.restarted(name)
                self._partial[name] = []
        self.generations = now
        if frame.purpose in ("query", "alone", "opening") and self._half.is_alone(frame.query_id):
            self._alone(frame)
        elif frame.purpose == "query":
            yield from self._half.on_query(frame.sender, frame.exchange, frame.payload)
        elif frame.purpose in ("joint", "sum"):
            self._awaited.pop(frame.sender, None)  # it takes its time to send, and gets it
            request = self._collect(frame)
            if request:
                yield from self._half.on_request(frame.sender, request)
        elif frame.purpose == "opening":
            yield from self._opening(frame)
        else:
            raise ProtocolError(f"a company may not send {frame.purpose!r}")

    def _alone(self, first: Parcel) -> None:
        """One exchange of a company that asks about its own people."""
        company = first.sender
        self._awaited.pop(company, None)
        half, generation = self._half.alone(company), self.generations[company]
        try:
            while True:
                kind, reason = serve_one(self._session, half, company, generation, first)
                self._tell(kind, first.query_id, reason)
                if kind != "demand":
                    return
                # Nothing else is answered before this is opened, so nobody else is heard before.
                first = self._session.receive(company, generation=generation)
        except PeerRestarted:
            return  # it asks again

    def _opening(self, first: Parcel) -> Iterator[Reply]:
        """A company's opening of its part of a joint query, read as it arrives."""
        company = first.sender
        self._awaited.pop(company, None)
        frames = request_frames(self._session, company, self.generations[company], first)
        try:
            yield from self._half.on_opening(company, first.exchange, frames)
            for _ in frames:  # what a refused opening still has to say
                pass
        except PeerRestarted:
            return  # it opens again

    def _collect(self, frame: Parcel) -> list[Parcel]:
        """The whole request, once its last frame is there."""
        if frame.index == 0:
            self._partial[frame.sender] = []
        collected = self._partial[frame.sender]
        if not collected and frame.index:
            return []  # the rest of what an incarnation sent that has ended meanwhile
        if collected and collected[0].exchange != frame.exchange:
            raise ProtocolError("the frames of two requests are mixed")
        if frame.index != len(collected):
            raise ProtocolError(f"expected frame {len(collected)} of a request, got another")
        if len(collected) >= MAX_ANSWERS + 2:
            raise ProtocolError(f"a request has at most {MAX_ANSWERS} ciphertexts")
        self._check_size(frame)
        collected.append(frame)
        if not frame.last:
            return []
        self._partial[frame.sender] = []
        return collected

    def _check_size(self, frame: Parcel) -> None:
        """Before it is kept: the window limits what is on its way, not what was read and collected.

        Frame 0 holds totals and frame 1 the header; of the others the relay has left a digest.
        """
        if (frame.purpose == "joint") != (frame.index == 0):
            raise ProtocolError("a joint request is totals, a header and ciphertexts")
        limits = (2 * MAX_TOTALS_BYTES, MAX_HEADER_BYTES, 0)
        limit = limits[min(frame.index, 2)]
        if len(frame.payload) > limit:
            raise OversizedMessage(
                f"frame {frame.index} of a joint request has at most {limit} bytes; got "
                f"{len(frame.payload)}"
            )
        if len(frame.total) > self._total_bytes:
            raise OversizedMessage("the relay's total is larger than a ciphertext")


def _send(session: Session, reply: Reply, generation: int) -> None:
    try:
        for index, (payload, last) in enumerate(marked(reply.frames)):
            frame = Parcel(
                reply.company,
                reply.purpose,
                reply.query_id,
                reply.exchange,
                index,
                last,
                payload,
            )
            session.send(reply.company, frame, generation=generation)
    except PeerRestarted:
        return  # it asks again
    except SessionClosed as closed:
        if not closed.done:  # who is done needs no reply
            raise
