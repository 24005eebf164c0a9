"""The company's side of a query that several companies ask together.

Each company runs the same script on its own people, and all get the same released values: those of
one company that held everybody, bit for bit for group sums and counts. (Weighted sums have a public
part in floating point; it is added up in fixed point, so it is the same for all companies, and
within 2^-38 of the rows' norm of what one company would have computed.)
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isonomy.common.base.errors import (
    AttemptLost,
    CapacityError,
    ConfigError,
    ProtocolError,
    VerificationError,
)
from isonomy.common.crypto.blinding import SEED_BYTES, Seeds
from isonomy.common.crypto.he import SumBuilder
from isonomy.common.crypto.packing import MIN_BLOCK, Layout
from isonomy.common.people.cohort import Cohort, group_labels
from isonomy.common.pooled.joint import (
    JointReply,
    JointTotals,
    MaskKey,
    agree_mask_key,
    company_index,
    joint_parts_hash,
)
from isonomy.common.privacy.quantise import checked_norm, quantise_weighted
from isonomy.common.privacy.queries import MAX_ANSWERS, Query, Shapes
from isonomy.common.remote.remote import MAX_RESTARTS, RemoteOracle, RemoteRegulator
from isonomy.common.session.connection import Session
from isonomy.common.sums.company_half import (
    EncryptedOracle,
    add_block,
    block_columns,
    mask_values,
    part_frames,
)
from isonomy.common.sums.openings import NONCE_BYTES, Opening, OpeningStore, StoredRequest
from isonomy.common.sums.oracle import Asked, Receipt, Release
from isonomy.common.wire.envelopes import Purpose
from isonomy.common.wire.messages import (
    Answer,
    ColumnsHeader,
    Refusal,
    SumHeader,
    decode,
    decode_any,
    encode,
    frame_hash,
    frames_hash,
)

_FIXED = 2.0**38  # 4 million people with rows of norm 1 stay below 2^60


class JointRegulator(RemoteRegulator):
    """The regulator's port with a totals frame before, and a joint reply after."""

    def joint_answer(
        self, totals: JointTotals, frames: Sequence[bytes]
    ) -> tuple[bytes, JointReply | None]:
        request: list[tuple[Purpose, bytes]] = [("joint", totals.dump())]
        request += [("sum", frame) for frame in frames]
        replies = list(self._exchange(request, "answer", totals.query_id))
        if len(replies) == 1:  # a refusal
            return replies[0], None
        if len(replies) != 2:
            raise ProtocolError("a joint answer is two frames")
        return replies[0], JointReply.parse(replies[1])


class JointOracle(RemoteOracle):
    """A GroupOracle over all companies' people, of which this one holds its own."""

    _port: JointRegulator

    def __init__(self, session: Session, cohort: Cohort, *, openings: OpeningStore | None = None):
        plan = session.plan
        self._place, self._companies = company_index(plan, session.keys.name), len(plan.companies)
        if len(plan.companies) < 2:
            raise ConfigError("a plan of one company takes a RemoteOracle")
        share = plan.shares[self._place]
        if (cohort.root.hex(), len(cohort)) != (share.cohort_root, share.people):
            raise ConfigError("these people, in this order, are not this company's in the plan")
        EncryptedOracle.__init__(
            self,
            JointRegulator(session),
            cohort,
            plan.groups,
            plan=plan.hash,
            cap_units=plan.cap_units,
            delta=plan.delta_value,
            regulator_key=plan.regulator.signing_key,
            openings=openings,
        )
        self.record_privacy = plan.record_privacy
        self._masks: MaskKey = agree_mask_key(session)
        self._public: NDArray[np.int64] | None = None  # what to add up instead of the rows
        # Of the last query, over all companies: the public totals, and what was released.
        self._joint_total = self._released = np.zeros(0, dtype=np.int64)

    # --- Public totals ---------------------------------------------------------------------------

    def _sums(self, rows: ArrayLike, **options: Any) -> Release:
        release = super()._sums(rows, **options)
        unit = checked_norm(options["norm"]) / self.params.row_bound
        expressions = self._expressions(options["attribute"])
        # Values are integers below 2^53 times the unit: dividing and rounding gives them back.
        integers = np.rint(release.values / unit).astype(np.int64)
        start = 0
        for expression in expressions:
            stop = start + len(group_labels(expression, self.groups))
            # The last group is the public total minus the others: now everybody's total.
            integers[stop - 1] = self._joint_total - integers[start : stop - 1].sum(axis=0)
            start = stop
        return replace(release, values=integers.astype(np.float64) * unit)

    def weighted_sum(
        self, rows: ArrayLike, weights: ArrayLike, *, norm: float, **options: Any
    ) -> Release:
        u = np.asarray(weights, dtype=np.float64).reshape(-1)
        if u.size == 0 or not np.isfinite(u).all() or u.max() == u.min():
            raise ConfigError(
                "with several companies a weighted sum needs weights that differ: equal ones need "
                "no attribute, and no company knows the others' rows"
            )
        given, _ = self._by_person(rows, self._positions(options.get("people")))
        quantised = quantise_weighted(given, u, checked_norm(norm), self.params.row_bound)
        span, largest = float(u.max() - u.min()), float(np.abs(u).max()) * norm
        unit = span * norm / self.params.row_bound
        own = (float(u.min()) + span / 2) * norm * quantised.clipped_total
        own = own + quantised.last_total * unit
        self._public = np.rint(own / largest * _FIXED).astype(np.int64)
        try:
            release = super().weighted_sum(rows, weights, norm=norm, **options)
        finally:
            self._public = None
        everybody = self._joint_total / _FIXED * largest
        return replace(release, values=everybody + self._released[0] * unit)

    def _ask(self, query: Query, integers: NDArray[np.int32]) -> tuple[NDArray[np.int64], Receipt]:
        self._released, receipt = super()._ask(query, integers)
        return self._released, receipt

    # --- An attempt ------------------------------------------------------------------------------

    def _exchange(self, asked: Asked) -> tuple[NDArray[np.int64], Receipt]:
        for _ in range(MAX_RESTARTS):
            try:
                return super()._exchange(asked)
            except AttemptLost:
                continue  # another company, or the relay, restarted: all begin this query again
        raise ProtocolError("the companies could not finish a query together; see their logs")

    def _attempt(self, asked: Asked) -> StoredRequest:
        query_frame = encode(asked.query)
        query_id = asked.query.query_id
        attempt, builder, columns_hash = self._multiply(asked, query_frame)
        mask = self._masks.seed(query_id, attempt, self._place)
        seeds = Seeds(os.urandom(SEED_BYTES), mask)
        opening = Opening(query_frame, asked.rows, seeds, os.urandom(NONCE_BYTES))
        parts = part_frames(builder, seeds, blind=asked.query.kind == "blind")
        header = SumHeader(
            query_id=query_id,
            attempt=attempt,
            query_hash=frame_hash(query_frame),
            columns_hash=columns_hash,
            commitment=opening.commitment(),
            parts_hash=joint_parts_hash(self._totals(asked.rows, query_id, attempt).dump(), parts),
            parts=len(parts),
        )
        request = StoredRequest(opening, (encode(header), *parts))
        self._openings.save(query_id, request)
        return request

    def _multiply(self, asked: Asked, query_frame: bytes) -> tuple[bytes, SumBuilder, bytes]:
        hashes: list[bytes] = []
        stream = self._hashed(query_frame, hashes)
        header = decode(next(stream, b""), ColumnsHeader)
        if (header.query_id, header.query_hash) != (asked.query.query_id, frame_hash(query_frame)):
            raise ProtocolError("the columns belong to another query")
        shapes = self._joint_shapes(asked.query, header.block)
        if (header.blocks, header.indicators) != (shapes.layout.blocks, shapes.indicators):
            raise ProtocolError("the regulator cut the people into other blocks than we did")
        builder = SumBuilder(shapes.layout, sums=shapes.sums, zero=header.zero)
        for index in range(shapes.layout.blocks):
            add_block(builder, asked.rows, index, block_columns(stream, index, shapes.indicators))
        if next(stream, None) is not None:
            raise ProtocolError("the columns go on after their last block")
        return header.attempt, builder, frames_hash(hashes, hashed=True)

    def _hashed(self, query_frame: bytes, hashes: list[bytes]) -> Iterator[bytes]:
        for frame in self._port.columns(query_frame):
            hashes.append(frame_hash(frame))
            yield frame

    def _joint_shapes(self, query: Query, block: int) -> Shapes:
        """Our own people in blocks of the size that all companies use."""
        shapes = self._shapes(query)
        known = [MIN_BLOCK << j for j in range((self.params.poly_degree // MIN_BLOCK).bit_length())]
        if block not in known:
            raise ProtocolError("the regulator chose a block size that does not exist")
        own = shapes.layout
        layout = Layout(own.params, own.people, own.columns, block)
        joint = Shapes(layout, shapes.indicators, shapes.sums)
        # What shapes_of checks for a block size of our own choice.
        products = 1 if query.shape == "groups" else shapes.indicators
        try:
            self.params.check_hiding(own.people, block, products)
        except CapacityError:
            raise ProtocolError(
                f"the regulator chose blocks of {block} people, for which the flood would not "
                "hide our rows"
            ) from None
        if joint.parts > MAX_ANSWERS:
            raise ProtocolError(
                f"the regulator chose blocks of {block} people, which need {joint.parts} "
                f"ciphertexts; one query holds {MAX_ANSWERS}"
            )
        return joint

    # --- The answer ------------------------------------------------------------------------------

    def _totals(self, rows: NDArray[np.int32], query_id: str, attempt: bytes) -> JointTotals:
        """Our public totals under the mask of this attempt; the same each time."""
        totals = rows.sum(axis=0, dtype=np.int64) if self._public is None else self._public
        masked = self._masks.mask_totals(totals, query_id, attempt, self._place)
        return JointTotals(query_id, attempt, masked)

    def _send(self, query: Query, request: StoredRequest) -> tuple[NDArray[np.int64], Receipt]:
        header = decode(request.frames[0], SumHeader)
        place = (query.query_id, header.attempt)
        totals = self._totals(request.opening.rows, *place)
        frame, reply = self._port.joint_answer(totals, request.frames)
        answer = _answer(frame)
        if reply is None or reply.masked_total.size != totals.masked.size:
            raise ProtocolError("a joint answer comes with all companies' totals")
        if len(reply.header_hashes) != self._companies:
            raise ProtocolError(
                f"the joint answer names {len(reply.header_hashes)} requests; the plan has "
                f"{self._companies} companies"
            )
        if reply.header_hashes[self._place] != frame_hash(request.frames[0]):
            raise ProtocolError("the joint answer was given to another request than ours")
        shapes = self._joint_shapes(query, reply.block)
        values = self._check(answer, query, shapes, reply.request_hash())
        if query.kind == "blind":
            for seed in self._masks.seeds(*place):
                values = values - mask_values(shapes, Seeds(b"", seed))
        self._joint_total = self._masks.unmask_totals(reply.masked_total, *place)
        if request.answer not in (None, frame):
            raise VerificationError(
                f"the regulator answers query {query.query_id!r} differently than before. Stop, "
                "and show it its first answer: it is stored and signed."
            )
        if request.answer is None:
            self._openings.acknowledge(query.query_id, frame)
        self._last_sequence = answer.sequence
        return values, Receipt(query.query_id, answer.units, answer.sequence, answer.ledger_head)


def _answer(frame: bytes) -> Answer:
    message = decode_any(frame)
    if isinstance(message, Refusal) and message.code == AttemptLost.__name__:
        raise AttemptLost(message.text)
    return decode(frame, Answer)
