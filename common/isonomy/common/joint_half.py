"""The regulator's half of queries that several companies ask together, and its loop.

    (1) every company sends the same Query, each about its own people; the last one opens an attempt
    (2) each gets the columns of its own people, under one key
    (3) each sends its masked totals, its header and its ciphertexts, which the relay has added up
    (4) the sum is decrypted, noised, recorded with all headers' hashes, and answered to all

An attempt ends without an answer, and all begin it again, if a company comes with (1) once more (it
restarted before it had stored its request), or if the relay lost what it held (no total came).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from isonomy.common.connection import Session
from isonomy.common.custodian import Authorised, Custodian
from isonomy.common.envelopes import Purpose
from isonomy.common.errors import AttemptLost, IsonomyError, ProtocolError, ReplayRefused
from isonomy.common.he import QueryKey
from isonomy.common.identity import Identity
from isonomy.common.joint import JointReply, JointTotals, add_masked, share_slices
from isonomy.common.joint_store import JointStore
from isonomy.common.links import Frame
from isonomy.common.messages import (
    ATTEMPT_BYTES,
    Column,
    ColumnsHeader,
    Refusal,
    SumHeader,
    SumPart,
    decode,
    encode,
    frame_hash,
    frames_hash,
)
from isonomy.common.packing import Layout
from isonomy.common.plan import Plan
from isonomy.common.queries import Query
from isonomy.common.regulator_half import RegulatorHalf
from isonomy.common.remote import marked
from isonomy.common.session_errors import PeerRestarted, SessionClosed


@dataclass(frozen=True)
class Reply:
    """Frames for one company's exchange; `frames` may be made as they are sent."""

    company: str
    exchange: int
    purpose: Purpose
    query_id: str
    frames: Iterable[bytes]


@dataclass
class _Asked:
    exchange: int
    query: Query
    frame: bytes


@dataclass
class _Request:
    exchange: int
    totals: JointTotals
    header: SumHeader
    header_frame: bytes
    summed: dict[int, bytes]  # the relay's totals that came with this company's envelopes


@dataclass
class _Joint:
    """One attempt at one query."""

    authorised: Authorised
    key: QueryKey
    attempt: bytes
    asked: dict[str, _Asked]
    people: dict[str, slice]  # each company's part of the people asked about
    columns_hash: dict[str, bytes] = field(default_factory=dict)
    requests: dict[str, _Request] = field(default_factory=dict)


class JointHalf(RegulatorHalf):
    """Answers joint queries of one plan. Knows exchanges, not streams."""

    def __init__(
        self, custodian: Custodian, identity: Identity, plan: Plan, store: JointStore
    ) -> None:
        super().__init__(custodian, identity)
        self._companies = [card.name for card in plan.companies]
        self._shares = dict(zip(self._companies, share_slices(plan), strict=True))
        self._store = store
        self._waiting: dict[str, dict[str, _Asked]] = {}  # query id -> company -> what it asked
        self._open: dict[str, _Joint] = {}

    # --- (1) and (2) -----------------------------------------------------------------------------

    def on_query(self, company: str, exchange: int, frame: bytes) -> Iterator[Reply]:
        query_id = ""
        try:
            query = decode(frame, Query)
            query_id = query.query_id
            if self._custodian.was_answered(query_id):
                raise ReplayRefused(
                    f"query {query_id!r} was answered before; send the stored request to get the "
                    "same answer again"
                )
            yield from self._abandon(query_id, f"{company} asks for columns again")
            waiting = self._waiting.setdefault(query_id, {})
            waiting[company] = _Asked(exchange, query, frame)
            if len(waiting) < len(self._companies):
                return
        except IsonomyError as error:
            yield self._refusal(company, exchange, "columns", query_id, error)
            return
        asked = self._waiting.pop(query_id)
        try:
            joint = self._begin(asked)
        except IsonomyError as error:
            for name, each in asked.items():
                yield self._refusal(name, each.exchange, "columns", query_id, error)
            return
        self._open[query_id] = joint
        for name, each in asked.items():
            columns = self._columns_of(joint, name)
            yield Reply(name, each.exchange, "columns", query_id, columns)

    def _begin(self, asked: dict[str, _Asked]) -> _Joint:
        queries = [asked[name].query for name in self._companies]
        if len({replace(query, positions=None) for query in queries}) != 1:
            raise ProtocolError(
                "the companies ask different things under one query id; their scripts must ask the "
                "same questions in the same order"
            )
        positions, people, start = [], {}, 0
        for name, query in zip(self._companies, queries, strict=True):
            share = self._shares[name]
            own = query.position_array(share.stop - share.start)
            if own.size and own[-1] >= share.stop - share.start:
                raise ProtocolError(f"{name} asks about a position outside its own people")
            positions.append(own + share.start)
            people[name] = slice(start, start + own.size)
            start += own.size
        whole = all(query.positions is None for query in queries)
        everybody = None if whole else tuple(np.concatenate(positions).tolist())
        authorised = self._custodian.authorise(replace(queries[0], positions=everybody))
        key = QueryKey(queries[0].params)  # one per attempt: it decrypts once
        return _Joint(authorised, key, os.urandom(ATTEMPT_BYTES), asked, people)

    def _columns_of(self, joint: _Joint, company: str) -> Iterator[bytes]:
        hashes = []
        for frame in self._company_frames(joint, company):
            hashes.append(frame_hash(frame))
            yield frame
        joint.columns_hash[company] = frames_hash(hashes, hashed=True)

    def _company_frames(self, joint: _Joint, company: str) -> Iterator[bytes]:
        shapes, people = joint.authorised.shapes, joint.people[company]
        count = people.stop - people.start
        layout = Layout(shapes.layout.params, count, shapes.layout.columns, shapes.layout.block)
        yield encode(
            ColumnsHeader(
                query_id=joint.authorised.query.query_id,
                attempt=joint.attempt,
                query_hash=frame_hash(joint.asked[company].frame),
                block=layout.block,
                blocks=layout.blocks,
                indicators=shapes.indicators,
                zero=joint.key.encrypt_zero(),
            )
        )
        for index in range(layout.blocks):
            own = layout.block_slice(index)
            where = slice(people.start + own.start, people.start + own.stop)
            for number, members in enumerate(joint.authorised.indicators(where)):
                yield encode(Column(index, number, joint.key.encrypt_column(members)))

    # --- (3) and (4) -----------------------------------------------------------------------------

    def on_request(self, company: str, frames: list[Frame]) -> Iterator[Reply]:
        """A company's whole request: totals, header, and what the relay left of the parts."""
        exchange, query_id = frames[0].exchange, frames[0].query_id
        try:
            request = _read_request(frames)
            query_id = request.header.query_id
            if self._custodian.was_answered(query_id):
                yield self._stored(company, request)
                return
            joint = self._open.get(query_id)
            if joint is None or joint.attempt != request.header.attempt:
                raise AttemptLost("no key is open for this attempt; ask for columns again")
            self._check_joint(joint, company, request)
        except IsonomyError as error:
            yield self._refusal(company, exchange, "answer", query_id, error)
            return
        joint.requests[company] = request
        if len(joint.requests) == len(self._companies):
            yield from self._finish(query_id, joint)

    def _check_joint(self, joint: _Joint, company: str, request: _Request) -> None:
        header, shapes = request.header, joint.authorised.shapes
        if header.query_hash != frame_hash(joint.asked[company].frame):
            raise ProtocolError("the request answers another query than the one it names")
        if header.columns_hash != joint.columns_hash.get(company):
            raise ProtocolError("the request was not made from the columns that were sent")
        if header.parts != shapes.parts:
            raise ProtocolError(f"the query has {shapes.parts} answer ciphertexts")
        if request.totals.masked.size != shapes.layout.columns:
            raise ProtocolError("a company sends one total per column")

    def _finish(self, query_id: str, joint: _Joint) -> Iterator[Reply]:
        del self._open[query_id]
        requests = [joint.requests[name] for name in self._companies]
        try:
            try:
                sums = self._decrypt_sums(joint, requests)
            finally:
                joint.key.destroy()
            if joint.authorised.query.kind == "open":
                sums = self._within_range(joint.authorised, sums)
            reply = JointReply(
                tuple(frame_hash(request.header_frame) for request in requests),
                add_masked([request.totals.masked for request in requests]),
                joint.authorised.shapes.layout.block,
            )
            # Before the record: whoever finds a record must find what it answers.
            self._store.save(query_id, reply, [request.header_frame for request in requests])
            record = self._custodian.release(joint.authorised, reply.request_hash(), sums)
            frames = [encode(self._sign(record)), reply.dump()]
        except IsonomyError as error:
            for name, request in joint.requests.items():
                yield self._refusal(name, request.exchange, "answer", query_id, error)
            return
        for name, request in joint.requests.items():
            yield Reply(name, request.exchange, "answer", query_id, frames)

    @staticmethod
    def _decrypt_sums(joint: _Joint, requests: list[_Request]) -> NDArray[np.int64]:
        shapes = joint.authorised.shapes
        layout = shapes.layout
        summed = {index: part for request in requests for index, part in request.summed.items()}
        sums = np.empty((shapes.sums, layout.columns), dtype=np.int64)
        for index in range(shapes.parts):
            if index not in summed:
                raise AttemptLost("the relay lost the ciphertexts it held; ask for columns again")
            number, position = divmod(index, layout.parts)
            coefficients = joint.key.decrypt(summed[index])
            sums[number, layout.part_slice(position)] = layout.unpack(coefficients, position)
        return sums

    def _stored(self, company: str, request: _Request) -> Reply:
        query_id = request.header.query_id
        reply = self._store.load(query_id)
        place = self._companies.index(company)
        if reply is None or reply.header_hashes[place] != frame_hash(request.header_frame):
            raise ReplayRefused(f"query {query_id!r} was answered before, for another request")
        record = self._custodian.stored(query_id, reply.request_hash())
        if record is None:
            raise ProtocolError("the record of an answered query is missing")
        frames = [encode(self._sign(record)), reply.dump()]
        return Reply(company, request.exchange, "answer", query_id, frames)

    def restarted(self, company: str) -> None:
        """A company began anew: nobody waits for what it had asked before."""
        for waiting in self._waiting.values():
            waiting.pop(company, None)
        for joint in self._open.values():
            joint.requests.pop(company, None)

    def _abandon(self, query_id: str, why: str) -> Iterator[Reply]:
        joint = self._open.pop(query_id, None)
        if joint is None:
            return
        joint.key.destroy()
        error = AttemptLost(f"the attempt was given up: {why}")
        for name, request in joint.requests.items():
            yield self._refusal(name, request.exchange, "answer", query_id, error)

    @staticmethod
    def _refusal(
        company: str, exchange: int, purpose: Purpose, query_id: str, error: IsonomyError
    ) -> Reply:
        return Reply(company, exchange, purpose, query_id, [encode(Refusal.of(query_id, error))])


def _read_request(frames: list[Frame]) -> _Request:
    if len(frames) < 2 or frames[0].purpose != "joint" or frames[1].summed:
        raise ProtocolError("a joint request is totals, a header and ciphertexts")
    totals, header = JointTotals.parse(frames[0].payload), decode(frames[1].payload, SumHeader)
    if (totals.query_id, totals.attempt) != (header.query_id, header.attempt):
        raise ProtocolError("the totals and the header belong to different queries")
    summed = {}
    for frame in frames[2:]:
        if not frame.summed:
            raise ProtocolError("the relay passed a ciphertext on without adding it up")
        if frame.total:
            part = decode(frame.total, SumPart)
            summed[part.index] = part.ciphertext
    return _Request(frames[0].exchange, totals, header, frames[1].payload, summed)


def serve_joint(
    session: Session, half: JointHalf, *, on_event: Callable[[str, str], None] | None = None
) -> None:
    """The regulator's loop for several companies, until all have closed the session."""
    tell = on_event or (lambda kind, query_id: None)
    companies = [card.name for card in session.plan.companies]
    known = session.incarnations()
    partial: dict[str, list[Frame]] = {name: [] for name in companies}
    while True:
        try:
            frame = session.receive()
        except SessionClosed as closed:
            if closed.done:
                return
            raise
        now = session.incarnations()
        for name in companies:
            if now[name] != known[name]:
                half.restarted(name)
                partial[name] = partial[name][:0]
        known = now
        for reply in _on_frame(half, partial, frame):
            _send(session, reply, known[reply.company])
            tell(reply.purpose, reply.query_id)


def _on_frame(half: JointHalf, partial: dict[str, list[Frame]], frame: Frame) -> Iterator[Reply]:
    if frame.sender not in partial:
        raise ProtocolError(f"{frame.sender} is no company of this plan")
    if frame.purpose == "query":
        yield from half.on_query(frame.sender, frame.exchange, frame.payload)
        return
    if frame.purpose not in ("joint", "sum"):
        raise ProtocolError(f"a company may not send {frame.purpose!r}")
    if frame.index == 0:
        partial[frame.sender] = []
    collected = partial[frame.sender]
    if collected and collected[0].exchange != frame.exchange:
        raise ProtocolError("the frames of two requests are mixed")
    collected.append(frame)
    if frame.last:
        partial[frame.sender] = []
        yield from half.on_request(frame.sender, collected)


def _send(session: Session, reply: Reply, generation: int) -> None:
    try:
        for index, (payload, last) in enumerate(marked(reply.frames)):
            frame = Frame(
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
