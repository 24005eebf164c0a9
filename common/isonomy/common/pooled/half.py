"""The regulator's half of queries that several companies ask together.

    (1) every company sends the same Query, each about its own people; the last one opens an attempt
    (2) each gets the columns of its own people, under one key
    (3) each sends its masked totals, its header and its ciphertexts, which the relay has added up
    (4) the sum is decrypted, noised, recorded with all headers' hashes, and answered to all

What the relay takes out in (3) leaves the digest that its company signed; all digests together must
be those that the header binds. So what was committed to is what was added.

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

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import (
    AttemptLost,
    IsonomyError,
    ProtocolError,
    ReplayRefused,
    VerificationError,
)
from isonomy.common.crypto.he import QueryKey
from isonomy.common.crypto.params import check_answer
from isonomy.common.keys.identity import Identity
from isonomy.common.pooled._masks import PooledReply, add_masked, pooled_digests_hash, share_slices
from isonomy.common.pooled._requests import PooledRequest, Reply, read_request, relay_totals
from isonomy.common.pooled.store import PooledStore
from isonomy.common.privacy.queries import Query, query_id_prefix
from isonomy.common.session.sealed_links import Parcel
from isonomy.common.sums.noise_and_budget import Authorised, Custodian
from isonomy.common.sums.regulator_half import (
    MAX_OPEN_ATTEMPTS,
    column_frames,
    decrypt_sums,
    sign_answer,
)
from isonomy.common.wire.envelopes import Purpose
from isonomy.common.wire.messages import (
    ATTEMPT_BYTES,
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


class PooledHalf:
    """Answers joint queries of one plan. Knows exchanges, not streams."""

    def __init__(
        self, custodian: Custodian, identity: Identity, plan: Plan, store: PooledStore
    ) -> None:
        self._custodian, self._identity = custodian, identity
        self._companies = [card.name for card in plan.companies]
        self._shares = dict(zip(self._companies, share_slices(plan), strict=True))
        self._prefix = query_id_prefix(plan.hash)
        self._store = store
        self._departed: set[str] = set()  # companies that are done
        self._waiting: dict[str, dict[str, _CompanyQuery]] = {}  # by query id, then company
        self._open: dict[str, _Attempt] = {}

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
        if query.positions is not None and query.positions[-1] >= share.stop - share.start:
            raise ProtocolError(f"{company} asks about a position outside its own people")

    def _check_id(self, query_id: str) -> None:
        """Before anything is looked up: one plan must not probe another plan's ids."""
        if not query_id.startswith(self._prefix):
            raise ProtocolError(f"a query id of this plan begins with {self._prefix}")

    def _begin(self, by_company: dict[str, _CompanyQuery]) -> _Attempt:
        queries = [by_company[name].query for name in self._companies]
        if len({replace(query, positions=None) for query in queries}) != 1:
            raise ProtocolError(
                "the companies ask different things under one query id; their scripts must ask the "
                "same questions in the same order"
            )
        positions, people, start = [], {}, 0
        for name, query in zip(self._companies, queries, strict=True):
            share = self._shares[name]
            share_positions = query.position_array(share.stop - share.start)
            positions.append(share_positions + share.start)
            people[name] = slice(start, start + share_positions.size)
            start += share_positions.size
        whole = all(query.positions is None for query in queries)
        everybody = None if whole else tuple(np.concatenate(positions).tolist())
        authorised = self._custodian.authorise(replace(queries[0], positions=everybody))
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
            # Before the record: whoever finds a record must find what it answers.
            self._store.save(query_id, reply)
            record = self._custodian.release(joint.authorised, reply.request_hash(), sums)
            frames = [encode(sign_answer(self._identity, record)), reply.dump()]
        except IsonomyError as error:
            for name, request in joint.requests.items():
                yield self._refusal(name, request.exchange, "answer", query_id, error)
            return
        for name, request in joint.requests.items():
            yield Reply(name, request.exchange, "answer", query_id, frames)

    def _stored(self, company: str, request: PooledRequest) -> Reply:
        query_id = request.header.query_id
        reply = self._store.load(query_id)
        place, header_hash = self._companies.index(company), frame_hash(request.header_frame)
        if reply is None or reply.header_hashes[place : place + 1] != (header_hash,):
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
        return Reply(company, request.exchange, "answer", query_id, frames)

    def restarted(self, company: str) -> None:
        """A company began anew: nobody waits for what it had asked before."""
        self._departed.discard(company)
        for query_id in list(self._waiting):
            self._waiting[query_id].pop(company, None)
            if not self._waiting[query_id]:
                del self._waiting[query_id]
        for joint in self._open.values():
            joint.requests.pop(company, None)

    @property
    def awaited(self) -> set[str]:
        """The companies that others wait for."""
        sent = [set(by_company) for by_company in self._waiting.values()]
        sent += [set(attempt.requests) for attempt in self._open.values()]
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
        return Reply(company, exchange, purpose, query_id, [encode(refusal)], refusal.text)


def _given_up(why: str) -> AttemptLost:
    return AttemptLost(f"the attempt was given up: {why}")


def _left_error(company: str) -> ProtocolError:
    return ProtocolError(
        f"{company} has ended its part of the session, so nothing more can be asked together; the "
        "companies' scripts must ask the same questions in the same order"
    )
