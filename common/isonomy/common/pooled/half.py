"""The regulator's half of queries that several companies ask together.

    (1) every company sends the same Query, each about its own people; the last one opens an attempt
    (2) each gets the columns of its own people, under one key
    (3) each sends its masked totals, its header and its ciphertexts, which the relay has added up
    (4) the sum is decrypted, noised, recorded with all headers' hashes, and answered to all

What the relay takes out in (3) leaves the digest that its company signed; all digests together must
be those that the header binds. So what was committed to is what was sent, and an inspection, which
finds the hash of the decrypted total in the answer, tells whether that is what was added.

An attempt ends without an answer, and all begin it again, if a company comes with (1) once more (it
restarted before it had stored its request), if the relay lost what it held (no total came), or if a
request does not hold. Once a company is done, there are no more joint answers: whoever waits for it
is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import (
    AttemptLost,
    IsonomyError,
    ProtocolError,
    ReplayRefused,
    VerificationError,
)
from isonomy.common.crypto.ciphertexts import check_answer
from isonomy.common.crypto.he import QueryKey
from isonomy.common.crypto.packing import Layout
from isonomy.common.keys.identity import Identity
from isonomy.common.pooled.joint import JointReply, add_masked, joint_digests_hash, share_slices
from isonomy.common.pooled.requests import JointRequest, Reply, read_request, relay_totals
from isonomy.common.pooled.store import JointEvidence, JointStore
from isonomy.common.privacy.queries import Query, query_id_prefix
from isonomy.common.session.links import Parcel
from isonomy.common.sums.custodian import Authorised, Custodian
from isonomy.common.sums.regulator_half import MAX_OPEN_ATTEMPTS, RegulatorHalf
from isonomy.common.wire.envelopes import Purpose, payload_digest
from isonomy.common.wire.messages import (
    ATTEMPT_BYTES,
    Column,
    ColumnsHeader,
    Refusal,
    SumPart,
    decode,
    encode,
    frame_hash,
    frames_hash,
)

MAX_WAITING = 8  # queries that one company may have asked before the others


@dataclass
class _Asked:
    exchange: int
    query: Query
    frame: bytes


@dataclass
class _Joint:
    """One attempt at one query."""

    authorised: Authorised
    key: QueryKey
    attempt: bytes
    asked: dict[str, _Asked]
    people: dict[str, slice]  # each company's part of the people asked about
    columns_hash: dict[str, bytes] = field(default_factory=dict)
    requests: dict[str, JointRequest] = field(default_factory=dict)


class JointHalf(RegulatorHalf):
    """Answers joint queries of one plan. Knows exchanges, not streams."""

    def __init__(
        self, custodian: Custodian, identity: Identity, plan: Plan, store: JointStore
    ) -> None:
        super().__init__(custodian, identity)
        self._plan = plan
        self._companies = [card.name for card in plan.companies]
        self._shares = dict(zip(self._companies, share_slices(plan), strict=True))
        self._prefix = query_id_prefix(plan.hash)
        self._store = store
        self._left: set[str] = set()  # companies that are done
        self._waiting: dict[str, dict[str, _Asked]] = {}  # query id -> company -> what it asked
        self._open: dict[str, _Joint] = {}

    # --- (1) and (2) -----------------------------------------------------------------------------

    def on_query(self, company: str, exchange: int, frame: bytes) -> Iterator[Reply]:
        query_id = ""
        try:
            query = decode(frame, Query)
            query_id = query.query_id
            self._check_query(company, query)
            yield from self._abandon(query_id, _given_up(f"{company} asks for columns again"))
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
        while len(self._open) >= MAX_OPEN_ATTEMPTS:
            yield from self._abandon(next(iter(self._open)), _given_up("newer ones took its place"))
        self._open[query_id] = joint
        for name, each in asked.items():
            columns = self._columns_of(joint, name)
            yield Reply(name, each.exchange, "columns", query_id, columns)

    def _check_query(self, company: str, query: Query) -> None:
        query_id, share = query.query_id, self._shares[company]
        self._check_id(query_id)
        if self._custodian.was_answered(query_id):
            raise ReplayRefused(
                f"query {query_id!r} was answered before; send the stored request to get the same "
                "answer again"
            )
        if self._left:
            raise _left_error(min(self._left))
        own = [other for other, waiting in self._waiting.items() if company in waiting]
        if query_id not in own and len(own) >= MAX_WAITING:
            raise ProtocolError(
                f"{MAX_WAITING} queries of {company} wait for the other companies already; all "
                "must ask the same questions in the same order"
            )
        # Before it waits: positions ascend, so this also limits what is kept to the company's size.
        if query.positions is not None and query.positions[-1] >= share.stop - share.start:
            raise ProtocolError(f"{company} asks about a position outside its own people")

    def _check_id(self, query_id: str) -> None:
        """Before anything is looked up: one plan must not probe another plan's ids."""
        if not query_id.startswith(self._prefix):
            raise ProtocolError(f"a query id of this plan begins with {self._prefix}")

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

    def on_request(self, company: str, frames: list[Parcel]) -> Iterator[Reply]:
        """A company's whole request: totals, header, and what the relay left of the parts."""
        exchange, query_id = frames[0].exchange, frames[0].query_id
        try:
            request = read_request(frames, len(self._companies))
            query_id = request.header.query_id
            self._check_id(query_id)
            if self._custodian.was_answered(query_id):
                yield self._stored(company, request)
                return
            joint = self._open.get(query_id)
            if joint is None or joint.attempt != request.header.attempt:
                raise AttemptLost("no key is open for this attempt; ask for columns again")
        except IsonomyError as error:
            yield self._refusal(company, exchange, "answer", query_id, error)
            return
        try:
            self._check_joint(joint, company, request)
        except IsonomyError as error:
            # The relay may have added these ciphertexts already, so the attempt is spoilt for all.
            yield self._refusal(company, exchange, "answer", query_id, error)
            joint.requests.pop(company, None)
            yield from self._abandon(query_id, _given_up(f"{company} sent a bad request"))
            return
        joint.requests[company] = request
        if len(joint.requests) == len(self._companies):
            yield from self._finish(query_id, joint)

    def _check_joint(self, joint: _Joint, company: str, request: JointRequest) -> None:
        header, shapes = request.header, joint.authorised.shapes
        if header.query_hash != frame_hash(joint.asked[company].frame):
            raise ProtocolError("the request answers another query than the one it names")
        if header.columns_hash != joint.columns_hash.get(company):
            raise ProtocolError("the request was not made from the columns that were sent")
        if header.parts != shapes.parts:
            raise ProtocolError(f"the query has {shapes.parts} answer ciphertexts")
        if len(request.digests) != header.parts:
            raise ProtocolError(
                f"the request announces {header.parts} ciphertexts and has {len(request.digests)}"
            )
        if joint_digests_hash(request.totals_frame, request.digests) != header.parts_hash:
            raise ProtocolError("totals and parts are not those that the request's header binds")
        if request.totals.masked.size != shapes.layout.columns:
            raise ProtocolError("a company sends one total per column")
        self._check_signed(company, request)

    def _check_signed(self, company: str, request: JointRequest) -> None:
        """Would the signatures convince somebody else (JointEvidence.check_signatures)?

        The link has verified each in the place that its envelope named. Whoever could name another
        query there, or send a header in two chunks, could deny it all afterwards.
        """
        digests = (payload_digest(request.header_frame), *request.digests)
        plan, query_id = self._plan, request.header.query_id
        try:
            request.signed.check(
                query_id, plan.card(company), plan.regulator.name, plan.hash, digests
            )
        except VerificationError:
            raise ProtocolError("header and ciphertexts are not signed in their places") from None

    def _finish(self, query_id: str, joint: _Joint) -> Iterator[Reply]:
        del self._open[query_id]
        requests = [joint.requests[name] for name in self._companies]
        try:
            try:
                totals = relay_totals(joint.requests, joint.authorised.shapes.parts)
                sums = self._decrypt_sums(joint, totals)
            finally:
                joint.key.destroy()
            if joint.authorised.query.kind == "open":
                sums = self._within_range(joint.authorised, sums)
            reply = JointReply(
                tuple(frame_hash(request.header_frame) for request in requests),
                add_masked([request.totals.masked for request in requests]),
                joint.authorised.shapes.layout.block,
                frames_hash(encode(SumPart(index, part)) for index, part in enumerate(totals)),
            )
            headers = tuple(request.header_frame for request in requests)
            digests = tuple(request.digests for request in requests)
            # Before the record: whoever finds a record must find what it answers.
            signed = tuple(request.signed for request in requests)
            masked = tuple(request.totals_frame for request in requests)
            self._store.save(query_id, JointEvidence(reply, headers, masked, digests, signed))
            record = self._custodian.release(joint.authorised, reply.request_hash(), sums)
            frames = [encode(self._sign(record)), reply.dump()]
        except IsonomyError as error:
            for name, request in joint.requests.items():
                yield self._refusal(name, request.exchange, "answer", query_id, error)
            return
        for name, request in joint.requests.items():
            yield Reply(name, request.exchange, "answer", query_id, frames)

    @staticmethod
    def _decrypt_sums(joint: _Joint, totals: list[bytes]) -> NDArray[np.int64]:
        shapes = joint.authorised.shapes
        layout = shapes.layout
        sums = np.empty((shapes.sums, layout.columns), dtype=np.int64)
        for total in totals:  # all of them first: nothing is refused after a decryption
            check_answer(layout.params, total)
        for index, total in enumerate(totals):
            number, position = divmod(index, layout.parts)
            coefficients = joint.key.decrypt(total)
            sums[number, layout.part_slice(position)] = layout.unpack(coefficients, position)
        return sums

    def _stored(self, company: str, request: JointRequest) -> Reply:
        query_id = request.header.query_id
        evidence = self._store.load(query_id)
        place = self._companies.index(company)
        if evidence is None or evidence.headers[place : place + 1] != (request.header_frame,):
            raise ReplayRefused(f"query {query_id!r} was answered before, for another request")
        reply = evidence.reply
        record = self._custodian.stored(query_id, reply.request_hash())
        if record is None:
            raise ProtocolError("the record of an answered query is missing")
        frames = [encode(self._sign(record)), reply.dump()]
        return Reply(company, request.exchange, "answer", query_id, frames)

    def restarted(self, company: str) -> None:
        """A company began anew: nobody waits for what it had asked before."""
        self._left.discard(company)
        for query_id in list(self._waiting):
            self._waiting[query_id].pop(company, None)
            if not self._waiting[query_id]:
                del self._waiting[query_id]
        for joint in self._open.values():
            joint.requests.pop(company, None)

    @property
    def busy(self) -> bool:
        """Does a company wait for another one?"""
        return bool(self._waiting or self._open)

    def departed(self, company: str) -> Iterator[Reply]:
        """A company is done: whoever waits for it would wait for ever, and is refused instead."""
        self._left.add(company)
        error = _left_error(company)
        for query_id in list(self._waiting):
            for name, each in self._waiting.pop(query_id).items():
                if name not in self._left:
                    yield self._refusal(name, each.exchange, "columns", query_id, error)
        for query_id in list(self._open):
            self._open[query_id].requests.pop(company, None)
            yield from self._abandon(query_id, error)

    def _abandon(self, query_id: str, error: ProtocolError) -> Iterator[Reply]:
        joint = self._open.pop(query_id, None)
        if joint is None:
            return
        joint.key.destroy()
        for name, request in joint.requests.items():
            yield self._refusal(name, request.exchange, "answer", query_id, error)

    @staticmethod
    def _refusal(
        company: str, exchange: int, purpose: Purpose, query_id: str, error: IsonomyError
    ) -> Reply:
        return Reply(company, exchange, purpose, query_id, [encode(Refusal.of(query_id, error))])


def _given_up(why: str) -> AttemptLost:
    return AttemptLost(f"the attempt was given up: {why}")


def _left_error(company: str) -> ProtocolError:
    return ProtocolError(
        f"{company} has ended its part of the session, so nothing more can be asked together; the "
        "companies' scripts must ask the same questions in the same order"
    )
