"""The regulator's half of queries that several companies ask together.

    (1) every company sends the same Query, each about its own people; the last one opens an attempt
    (2) each gets the columns of its own people, under one key
    (3) each sends its masked totals, its header and its ciphertexts, which the relay has added up
    (4) the sum is decrypted, noised, recorded with all headers' hashes, and answered to all

Under a plan with inspections the coin falls between decryption and noise, once for all: every
company opens its own part, and the answer comes when no part is left to open or to judge. One part
that fails ends the plan, and its company is named.

What the relay takes out in (3) leaves the digest that its company signed; all digests together must
be those that the header binds. So what was committed to is what was added.

An attempt ends without an answer, and all begin it again, if a company comes with (1) once more (it
restarted before it had stored its request), if the relay lost what it held (no total came), or if a
request does not hold. Once a company is done, there are no more joint answers: whoever waits for it
is refused.

What a company asks alone goes through `alone(company)`: a half for that company's people only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import (
    AttemptLost,
    InspectionFailed,
    InspectionPending,
    IsonomyError,
    ProtocolError,
    ReplayRefused,
    VerificationError,
)
from isonomy.common.crypto.he import QueryKey
from isonomy.common.crypto.params import check_answer
from isonomy.common.inspection.desk import InspectionDesk
from isonomy.common.keys.identity import Identity
from isonomy.common.pooled._masks import add_masked
from isonomy.common.pooled._requests import PooledRequest, Reply, read_request, relay_totals
from isonomy.common.pooled.alone import ShareColumns
from isonomy.common.pooled.people import joint_query, share_slices
from isonomy.common.pooled.store import PooledStore
from isonomy.common.privacy.queries import Query, asks_alone, query_id_prefix
from isonomy.common.session.sealed_links import Parcel
from isonomy.common.sums.joint_opening import JointOpening
from isonomy.common.sums.noise_and_budget import Authorised, Custodian
from isonomy.common.sums.pool_masks import PooledReply, pooled_digests_hash
from isonomy.common.sums.regulator_half import (
    MAX_OPEN_ATTEMPTS,
    RegulatorHalf,
    column_frames,
    decrypt_sums,
    sign_answer,
)
from isonomy.common.sums.sealed_opening import SealedOpening, opening_limit
from isonomy.common.wire.envelopes import Purpose
from isonomy.common.wire.messages import (
    ATTEMPT_BYTES,
    MAX_OPENING_BYTES,
    OpeningDemand,
    OpeningHeader,
    Refusal,
    SumPart,
    decode,
    encode,
    frame_hash,
    frames_hash,
)

MAX_WAITING = 8  # queries that one company may have asked before the others


@dataclass
class _CompanyQuery:
    exchange: int
    query: Query
    frame: bytes


@dataclass
class _Attempt:
    """One attempt at one query."""

    authorised: Authorised
    key: QueryKey
    attempt: bytes
    queries: dict[str, _CompanyQuery]
    people: dict[str, slice]  # each company's part of the people asked about
    columns_hash: dict[str, bytes] = field(default_factory=dict)
    requests: dict[str, PooledRequest] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class _Pending:
    """A joint request that was decrypted and not yet answered."""

    authorised: Authorised
    reply: PooledReply
    sums: NDArray[np.int64]


@dataclass
class _Inspected:
    """A query whose parts were demanded: what its answer will be, and who waits for it."""

    pending: _Pending | None = None  # None: lost in our restart, so all begin again
    parts: dict[str, SealedOpening] = field(default_factory=dict)  # by company
    waiting: dict[str, int] = field(default_factory=dict)  # the company's exchange


class PooledHalf:
    """Answers joint queries of one plan. Knows exchanges, not streams.

    `desks`: who decides about inspections, for each company by name; none without an auditor.
    """

    def __init__(
        self,
        custodian: Custodian,
        identity: Identity,
        plan: Plan,
        store: PooledStore,
        desks: Mapping[str, InspectionDesk] | None = None,
    ) -> None:
        self._custodian, self._identity, self._plan = custodian, identity, plan
        self._companies = [card.name for card in plan.companies]
        self._shares = dict(zip(self._companies, share_slices(plan), strict=True))
        self._prefix = query_id_prefix(plan.hash)
        self._desks = dict(desks or {})
        self._desk = next(iter(self._desks.values()), None)  # for what concerns all companies
        self._inspected: dict[str, _Inspected] = {}  # by query id
        self.failed: InspectionFailed | None = None  # an opening did not hold: the plan is over
        self._alone = {
            name: RegulatorHalf(
                custodian,
                identity,
                self._desks.get(name),
                ShareColumns(custodian, plan, place),
            )
            for place, name in enumerate(self._companies)
        }
        self._store = store
        self._departed: set[str] = set()  # companies that are done
        self._waiting: dict[str, dict[str, _CompanyQuery]] = {}  # by query id, then company
        self._open: dict[str, _Attempt] = {}

    def alone(self, company: str) -> RegulatorHalf:
        """What answers this company's questions about its own people."""
        return self._alone[company]

    def is_alone(self, query_id: str) -> bool:
        """Whether a query of this id is one that a single company asks."""
        return asks_alone(query_id, self._plan.hash) is not None

    # --- (1) and (2) -----------------------------------------------------------------------------

    def on_query(self, company: str, exchange: int, frame: bytes) -> Iterator[Reply]:
        query_id = ""
        try:
            query = decode(frame, Query)
            query_id = query.query_id
            self._check_query(company, query)
            yield from self._abandon(query_id, _given_up(f"{company} asks for columns again"))
            waiting = self._waiting.setdefault(query_id, {})
            waiting[company] = _CompanyQuery(exchange, query, frame)
            if len(waiting) < len(self._companies):
                return
        except IsonomyError as error:
            yield self._refusal(company, exchange, "columns", query_id, error)
            return
        by_company = self._waiting.pop(query_id)
        try:
            joint = self._begin(by_company)
        except IsonomyError as error:
            for name, each in by_company.items():
                yield self._refusal(name, each.exchange, "columns", query_id, error)
            return
        while len(self._open) >= MAX_OPEN_ATTEMPTS:
            yield from self._abandon(next(iter(self._open)), _given_up("newer ones took its place"))
        self._open[query_id] = joint
        for name, each in by_company.items():
            columns = self._columns_of(joint, name)
            yield Reply(name, each.exchange, "columns", query_id, columns)

    def _check_query(self, company: str, query: Query) -> None:
        query_id, share = query.query_id, self._shares[company]
        self._check_id(query_id)
        if self.is_alone(query_id):
            raise ProtocolError("under this id one company asks alone")
        if self._custodian.was_answered(query_id):
            raise ReplayRefused(
                f"query {query_id!r} was answered before; send the stored request to get the same "
                "answer again"
            )
        if self._departed:
            raise _left_error(min(self._departed))
        waiting_queries = [other for other, waiting in self._waiting.items() if company in waiting]
        if query_id not in waiting_queries and len(waiting_queries) >= MAX_WAITING:
            raise ProtocolError(
                f"{MAX_WAITING} queries of {company} wait for the other companies already; all "
                "must ask the same questions in the same order"
            )
        # Before it waits: positions ascend, so this also limits what is kept to the company's size.
        positions = query.position_array(0)  # empty if it asks about everybody
        if len(positions) and positions[-1] >= share.stop - share.start:
            raise ProtocolError(f"{company} asks about a position outside its own people")

    def _check_id(self, query_id: str) -> None:
        """Before anything is looked up: one plan must not probe another plan's ids."""
        if not query_id.startswith(self._prefix):
            raise ProtocolError(f"a query id of this plan begins with {self._prefix}")

    def _begin(self, by_company: dict[str, _CompanyQuery]) -> _Attempt:
        queries = [by_company[name].query for name in self._companies]
        query, parts = joint_query(queries, list(self._shares.values()))
        people = dict(zip(self._companies, parts, strict=True))
        authorised = self._custodian.authorise(query)
        if self._desk is not None:
            self._desk.check_query(query, authorised.shapes)
            if query.shape == "weighted":
                raise ProtocolError(
                    "a weighted sum of several companies has a public part that no inspection can "
                    "check; ask for group sums, or under a plan without an auditor"
                )
        key = QueryKey(queries[0].params)  # one per attempt: it decrypts once
        return _Attempt(authorised, key, os.urandom(ATTEMPT_BYTES), by_company, people)

    def _columns_of(self, joint: _Attempt, company: str) -> Iterator[bytes]:
        hashes, query_hash = [], frame_hash(joint.queries[company].frame)
        people = joint.people[company]
        for frame in column_frames(joint.authorised, joint.key, joint.attempt, query_hash, people):
            hashes.append(frame_hash(frame))
            yield frame
        joint.columns_hash[company] = frames_hash(hashes, hashed=True)

    # --- (3) and (4) -----------------------------------------------------------------------------

    def on_request(self, company: str, frames: list[Parcel]) -> Iterator[Reply]:
        """A company's whole request: totals, header, and what the relay left of the parts."""
        exchange, query_id = frames[0].exchange, frames[0].query_id
        try:
            request = read_request(frames, len(self._companies))
            query_id = request.header.query_id
            self._check_id(query_id)
            if self._custodian.was_answered(query_id):
                header_hash = frame_hash(request.header_frame)
                yield self._stored(company, exchange, query_id, header_hash)
                return
            inspected = list(self._demand_again(company, request))
            if inspected:
                yield from inspected
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

    def _check_joint(self, joint: _Attempt, company: str, request: PooledRequest) -> None:
        header, shapes = request.header, joint.authorised.shapes
        if header.query_hash != frame_hash(joint.queries[company].frame):
            raise ProtocolError("the request answers another query than the one it names")
        if header.columns_hash != joint.columns_hash.get(company):
            raise ProtocolError("the request was not made from the columns that were sent")
        if header.parts != shapes.parts:
            raise ProtocolError(f"the query has {shapes.parts} answer ciphertexts")
        if len(request.digests) != header.parts:
            raise ProtocolError(
                f"the request announces {header.parts} ciphertexts and has {len(request.digests)}"
            )
        if pooled_digests_hash(request.totals_frame, request.digests) != header.parts_hash:
            raise ProtocolError("totals and parts are not those that the request's header binds")
        if request.totals.masked.size != shapes.layout.columns:
            raise ProtocolError("a company sends one total per column")
        if any(
            other.totals.masks_hash != request.totals.masks_hash
            for other in joint.requests.values()
        ):
            raise ProtocolError(
                f"{company} has other masks than the companies before it. Nothing was decrypted; "
                "one of them does not run what was agreed"
            )

    def _finish(self, query_id: str, joint: _Attempt) -> Iterator[Reply]:
        del self._open[query_id]
        requests = [joint.requests[name] for name in self._companies]
        try:
            try:
                totals = relay_totals(joint.requests, joint.authorised.shapes.parts)
                for total in totals:  # all of them first: nothing is refused after a decryption
                    check_answer(joint.authorised.query.params, total)
                sums = decrypt_sums(joint.authorised, joint.key, totals)
            finally:
                joint.key.destroy()
            reply = PooledReply(
                tuple(frame_hash(request.header_frame) for request in requests),
                add_masked([request.totals.masked for request in requests]),
                joint.authorised.shapes.layout.block,
                frames_hash(encode(SumPart(index, part)) for index, part in enumerate(totals)),
            )
            # Before a demand or a record: whoever finds one must find what it is about.
            self._store.save(query_id, reply)
            pending = _Pending(joint.authorised, reply, sums)
            demand = self._draw(query_id, reply)
            if demand is None:
                frames = self._release(query_id, pending)
            else:
                frames = [encode(demand), reply.dump()]
                self._inspected[query_id] = _Inspected(pending)
        except IsonomyError as error:
            for name, request in joint.requests.items():
                yield self._refusal(name, request.exchange, "answer", query_id, error)
            return
        for name, request in joint.requests.items():
            yield Reply(name, request.exchange, "answer", query_id, frames)

    def _release(self, query_id: str, pending: _Pending) -> list[bytes]:
        """Noise and record; the frames of the answer, which are the same for all."""
        request_hash = pending.reply.request_hash()
        record = self._custodian.release(pending.authorised, request_hash, pending.sums)
        return [encode(sign_answer(self._identity, record)), pending.reply.dump()]

    # --- Inspections -----------------------------------------------------------------------------

    def _draw(self, query_id: str, reply: PooledReply) -> OpeningDemand | None:
        """One coin for the whole query."""
        return self._desk.draw(query_id, reply.request_hash(), None) if self._desk else None

    def _demand_again(self, company: str, request: PooledRequest) -> Iterator[Reply]:
        """The demand that stands against a request, for a company that restarted."""
        query_id = request.header.query_id
        if self._desk is None:
            return
        reply, place = self._store.load(query_id), self._companies.index(company)
        mine = reply is not None and reply.header_hashes[place] == frame_hash(request.header_frame)
        joint_hash = reply.request_hash() if reply is not None and mine else b""
        demand = self._desk.check_request(query_id, joint_hash)
        if demand is not None and reply is not None:
            frames = [encode(demand), reply.dump()]
            yield Reply(company, request.exchange, "answer", query_id, frames)
            return
        inspected = self._inspected.get(query_id)
        if mine and inspected is not None and inspected.pending is not None:
            # The last verdict has come in since the parts were opened.
            inspected.waiting[company] = request.exchange
            yield from self._inspection_passed(query_id)

    def on_opening(self, company: str, exchange: int, frames: Iterator[bytes]) -> Iterator[Reply]:
        """A company's opening of its part; all are answered once no part is left."""
        query_id = ""
        try:
            header = decode(next(frames, b""), OpeningHeader)
            query_id = header.query_id
            self._check_id(query_id)
            if self._custodian.was_answered(query_id):
                yield self._stored(company, exchange, query_id)
                return
            reply = self._store.load(query_id)
            if self._desk is None or reply is None:
                raise ProtocolError("no opening was demanded")
            demand = self._desk.check_request(query_id, header.request_hash)
            if demand is None or header.request_hash != reply.request_hash():
                raise ProtocolError("no opening of this request was demanded")
            inspected = self._inspected.setdefault(query_id, _Inspected())
            largest = _largest_opening(inspected.pending)
            part = self._desks[company].collect(demand, header, frames, largest)
            inspected.parts[company], inspected.waiting[company] = part, exchange
            if len(inspected.parts) < len(self._companies):
                return  # the others have parts to open
            parts = tuple(inspected.parts[name] for name in self._companies)
            inspected.parts = {}
            opening = JointOpening(self._plan.hash, query_id, reply, parts, encode(demand))
            self._desk.decide(opening, demand)
        except IsonomyError as error:
            yield from self._end_inspection(query_id, company, exchange, error)
            return
        yield from self._inspection_passed(query_id)

    def _end_inspection(
        self, query_id: str, company: str, exchange: int, error: IsonomyError
    ) -> Iterator[Reply]:
        """Whoever waits hears why there is no answer; a failure is the end of the plan."""
        waiting = {company: exchange}
        if isinstance(error, InspectionFailed | InspectionPending):
            inspected = self._inspected.get(query_id, _Inspected())
            waiting |= inspected.waiting
            inspected.waiting = {}
        if isinstance(error, InspectionFailed):
            self.failed = error
            self._inspected.clear()  # nobody will ever ask for them again
        for name, number in waiting.items():
            yield self._refusal(name, number, "answer", query_id, error)

    def _inspection_passed(self, query_id: str) -> Iterator[Reply]:
        inspected = self._inspected.pop(query_id)
        try:
            if inspected.pending is None:
                # All parts passed, but we restarted meanwhile: asked again, and inspected again.
                raise AttemptLost("no key is open for this attempt; ask for columns again")
            frames = self._release(query_id, inspected.pending)
        except IsonomyError as error:
            for name, exchange in inspected.waiting.items():
                yield self._refusal(name, exchange, "answer", query_id, error)
            return
        for name, exchange in inspected.waiting.items():
            yield Reply(name, exchange, "answer", query_id, frames)

    def _stored(
        self, company: str, exchange: int, query_id: str, header_hash: bytes = b""
    ) -> Reply:
        """The answer that was given; `header_hash`: of the request that asks for it again."""
        reply, place = self._store.load(query_id), self._companies.index(company)
        expected = (header_hash,) if header_hash else ()
        if reply is None or (expected and reply.header_hashes[place : place + 1] != expected):
            raise ReplayRefused(f"query {query_id!r} was answered before, for another request")
        if self._custodian.answered_request(query_id) != reply.request_hash():
            raise VerificationError(
                f"the stored joint request of {query_id!r} was changed on disk; restore it from "
                "the backup"
            )
        record = self._custodian.stored(query_id, reply.request_hash())
        if record is None:
            raise ProtocolError("the record of an answered query is missing")
        frames = [encode(sign_answer(self._identity, record)), reply.dump()]
        return Reply(company, exchange, "answer", query_id, frames)

    def restarted(self, company: str) -> None:
        """A company began anew: nobody waits for what it had asked before."""
        self._departed.discard(company)
        for query_id in list(self._waiting):
            self._waiting[query_id].pop(company, None)
            if not self._waiting[query_id]:
                del self._waiting[query_id]
        for joint in self._open.values():
            joint.requests.pop(company, None)
        for inspected in self._inspected.values():
            inspected.waiting.pop(company, None)

    @property
    def awaited(self) -> set[str]:
        """The companies that others wait for."""
        sent = [set(by_company) for by_company in self._waiting.values()]
        sent += [set(attempt.requests) for attempt in self._open.values()]
        sent += [set(each.waiting) for each in self._inspected.values() if each.waiting]
        return {name for names in sent for name in self._companies if name not in names}

    def departed(self, company: str) -> Iterator[Reply]:
        """A company is done: whoever waits for it would wait for ever, and is refused instead."""
        self._departed.add(company)
        error = _left_error(company)
        for query_id in list(self._waiting):
            for name, each in self._waiting.pop(query_id).items():
                if name not in self._departed:
                    yield self._refusal(name, each.exchange, "columns", query_id, error)
        for query_id in list(self._open):
            self._open[query_id].requests.pop(company, None)
            yield from self._abandon(query_id, error)
        for query_id, inspected in self._inspected.items():
            # The demand stays. What the others opened is kept for when it comes back.
            for name, exchange in inspected.waiting.items():
                yield self._refusal(name, exchange, "answer", query_id, error)
            inspected.waiting = {}

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
        refusal = Refusal.of(query_id, error)
        return Reply(company, exchange, purpose, query_id, [encode(refusal)], refusal.reason)


def _largest_opening(pending: _Pending | None) -> int:
    """Bytes of the largest honest opening; after our restart nobody knows them."""
    if pending is None:
        return MAX_OPENING_BYTES
    return opening_limit(pending.authorised.query, pending.authorised.shapes)


def _given_up(why: str) -> AttemptLost:
    return AttemptLost(f"the attempt was given up: {why}")


def _left_error(company: str) -> ProtocolError:
    return ProtocolError(
        f"{company} has ended its part of the session, so nothing more can be asked together; the "
        "companies' scripts must ask the same questions in the same order"
    )
