"""The channel of a company that asks together with others.

Each company runs the same script on its own people, and all get the same released values: those of
one company that held everybody, bit for bit for group sums and counts. Public totals travel as
integers, each under a mask that only the companies can take off. (The public part of a weighted sum
is rounded to fixed point by each company, so it is the same for all of them, and within 2^-38 of
the rows' norm per company of what one company would have computed.)

A question that a company asks alone is about its own people, and no other company learns of it: it
takes the way of a plan of one company (sums/company_half.py), within the same session.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import repeat

from isonomy.common.base.errors import CapacityError, ConfigError, ProtocolError
from isonomy.common.crypto.blinding import SEED_BYTES, Seeds
from isonomy.common.crypto.params import MIN_BLOCK
from isonomy.common.people.cohort import Cohort
from isonomy.common.pooled._masks import MaskKey, agree_mask_key
from isonomy.common.pooled.people import company_index, share_slices
from isonomy.common.privacy.queries import MAX_ANSWERS, Query, Shapes
from isonomy.common.remote.exchanges import RemoteRegulator, Retrying
from isonomy.common.session.connection import Session
from isonomy.common.sums.channel import Capabilities, Channel
from isonomy.common.sums.company_half import EncryptedChannel, Reply, mask_values, read_reply
from isonomy.common.sums.openings import MemoryOpenings, OpeningStore, StoredRequest
from isonomy.common.sums.pool_masks import (
    PooledReply,
    PooledTotals,
    PoolPart,
    pooled_digests_hash,
)
from isonomy.common.sums.question import Prepared, Released, Terms
from isonomy.common.wire.envelopes import Purpose, payload_digest
from isonomy.common.wire.messages import OpeningDemand, frame_hash


class PooledChannel:
    """Blind group sums over all companies' people, of which this one holds its own."""

    def __init__(
        self, session: Session, cohort: Cohort, *, openings: OpeningStore | None = None
    ) -> None:
        plan = session.plan
        if len(plan.companies) < 2:
            raise ConfigError("a plan of one company takes `remote_channel`")
        self._place, self._companies = company_index(plan, session.keys.name), len(plan.companies)
        share = plan.shares[self._place]
        if (cohort.root.hex(), len(cohort)) != (share.cohort_root, share.people):
            raise ConfigError("these people, in this order, are not this company's in the plan")
        self.terms = Terms(
            cohort,
            plan.groups,
            plan.hash,
            plan.cap_units,
            plan.delta_value,
            declaration=plan.declaration,
            place=self._place,
            first=share_slices(plan)[self._place].start,
            feature_map=plan.feature_map,
        )
        self.capabilities = Capabilities("pooled", plan.record_privacy, plan.individual_filter)
        self._port = RemoteRegulator(session)
        self._alone = EncryptedChannel(
            self._port,
            self.terms,
            regulator_key=plan.regulator.signing_key,
            openings=openings or MemoryOpenings(inspected=bool(plan.auditor)),
            auditor=bytes.fromhex(plan.auditor),
            inspection_millionths=plan.inspection_millionths,
            identity=session.keys.identity,
        )
        self.half = self._alone.half
        self._masks: MaskKey = agree_mask_key(session)

    def exchange(self, prepared: Prepared) -> Released:
        """Ask, or ask again: a stored request gets the answer that it had."""
        if prepared.alone:
            return self._alone.exchange(prepared)
        return self.half.exchange(prepared, self._attempt, self._send)

    def _attempt(self, prepared: Prepared, query_frame: bytes) -> StoredRequest:
        query = prepared.query
        columns = self._port.columns(query.query_id, query_frame)
        stored_columns = self.half.openings.keep_columns(query.query_id, columns)
        product = self.half.multiply(
            prepared, query_frame, stored_columns, lambda block: self._shapes(query, block)
        )
        mask = self._masks.masks(query.query_id, product.attempt).seed(self._place)
        totals = self._totals(prepared, product.attempt).dump()
        return self.half.store(
            prepared,
            query_frame,
            product,
            Seeds(os.urandom(SEED_BYTES), mask),
            lambda parts: pooled_digests_hash(totals, [payload_digest(part) for part in parts]),
        )

    def _send(self, prepared: Prepared, request: StoredRequest) -> Released:
        query, attempt = prepared.query, request.header.attempt
        totals, masks = self._totals(prepared, attempt), self._masks.masks(query.query_id, attempt)
        reply, joint = self._ask(totals, request.frames)
        self._check_joint(joint, totals, request)
        if isinstance(reply.message, OpeningDemand):
            pool = (joint.request_hash(), PoolPart(totals.dump(), masks.key).dump())
            opening = self._alone.opening(query, request, reply.message, pool)
            reply, joint = self._reply(query.query_id, zip(repeat("opening"), opening))
            self._check_joint(joint, totals, request)
        shapes = self._shapes(query, joint.block)
        values, receipt = self.half.accept(reply, request, query, shapes, joint.request_hash())
        if query.kind == "blind":
            for seed in masks.seeds():
                values = values - mask_values(shapes, Seeds(b"", seed))
        return Released(values, masks.unmask_totals(joint.masked_total), receipt)

    def _check_joint(
        self, joint: PooledReply, totals: PooledTotals, request: StoredRequest
    ) -> None:
        """ProtocolError unless the joint request has our part in it, and one of each company."""
        if joint.masked_total.size != totals.masked.size:
            raise ProtocolError("a joint answer comes with all companies' totals")
        if len(joint.header_hashes) != self._companies:
            raise ProtocolError(
                f"the joint answer names {len(joint.header_hashes)} requests; the plan has "
                f"{self._companies} companies"
            )
        if joint.header_hashes[self._place] != frame_hash(request.frames[0]):
            raise ProtocolError("the joint answer was given to another request than ours")

    def _ask(self, totals: PooledTotals, frames: Sequence[bytes]) -> tuple[Reply, PooledReply]:
        """Send our part of the request; what came back."""
        request: list[tuple[Purpose, bytes]] = [("joint", totals.dump())]
        request += [("sum", frame) for frame in frames]
        return self._reply(totals.query_id, request)

    def _reply(
        self, query_id: str, frames: Iterable[tuple[Purpose, bytes]]
    ) -> tuple[Reply, PooledReply]:
        """The signed answer, or a demand, and the joint request; a refusal is raised."""
        replies = list(self._port.exchange(query_id, frames, "answer"))
        reply = read_reply(replies[0])
        if len(replies) != 2:
            raise ProtocolError("a joint answer is two frames")
        return reply, PooledReply.parse(replies[1])

    def _totals(self, prepared: Prepared, attempt: bytes) -> PooledTotals:
        """Our public totals under the mask of this attempt; the same each time."""
        query_id, total = prepared.query.query_id, prepared.public_total
        masks = self._masks.masks(query_id, attempt)
        return PooledTotals(query_id, attempt, masks.mask_totals(total, self._place), masks.hash)

    def _shapes(self, query: Query, block: int) -> Shapes:
        """Our own people in blocks of the size that all companies use."""
        shapes, params = self.half.shapes(query), self.terms.params
        sizes = [MIN_BLOCK << j for j in range((params.poly_degree // MIN_BLOCK).bit_length())]
        if block not in sizes:
            raise ProtocolError("the regulator chose a block size that does not exist")
        pooled = shapes.with_block(block)
        # What shapes_of checks for a block size of our own choice.
        products = 1 if query.shape == "groups" else shapes.indicators
        try:
            params.check_hiding(shapes.layout.people, block, products)
        except CapacityError:
            raise ProtocolError(
                f"the regulator chose blocks of {block} people, for which the flood would not "
                "hide our rows"
            ) from None
        if pooled.parts > MAX_ANSWERS:
            raise ProtocolError(
                f"the regulator chose blocks of {block} people, which need {pooled.parts} "
                f"ciphertexts; one query holds {MAX_ANSWERS}"
            )
        return pooled

    def confirm_multipliers(self, query_id: str, values: tuple[float, ...]) -> None:
        """The regulator sends no λ where several companies ask; it refuses what does not follow."""

    def close(self, error: BaseException | None = None) -> None:
        """The last answer is on disk; a session has its own end (federation.joining)."""
        self._alone.close(error)


def pooled_channel(
    session: Session, cohort: Cohort, *, openings: OpeningStore | None = None
) -> Channel:
    """The pooled channel, asked again whenever a party restarts."""
    return Retrying(PooledChannel(session, cohort, openings=openings), session, shared=True)
