"""Inspecting a query that several companies asked together: every summand, then the sum.

The answer's request hash binds every company's header, and each header its commitment and its
ciphertexts. So an auditor who is given all openings recomputes each company's part (the checks (1)
to (6) of inspection.py, with the joint block size) and then that the relay added exactly those:

    (0) the headers are those that the answer was given to; each company signed its own, and the
        digest of each of its ciphertexts, so what fails below is proven to be its doing
    (7) what the regulator decrypted (its hash is in the request hash, too) is the sum of the
        recomputed ciphertexts
    (8) all companies derive the same masks, each has used its own, and its totals are those of its
        rows. (In weighted sums totals have a part in floating point, which the integer rows do not
        determine: there the company is only held to the number that it sent.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import VerificationError
from isonomy.common.crypto.ciphertexts import add_answers
from isonomy.common.crypto.packing import Layout
from isonomy.common.inspection.inspection import _check_norms, recompute
from isonomy.common.pooled.joint import JointTotals, mask_totals
from isonomy.common.pooled.store import JointEvidence
from isonomy.common.privacy.queries import Query, Shapes, shapes_of
from isonomy.common.sums.openings import Opening
from isonomy.common.wire.envelopes import payload_digest
from isonomy.common.wire.messages import (
    ColumnsHeader,
    SumHeader,
    SumPart,
    decode,
    encode,
    frame_hash,
    frames_hash,
)


@dataclass(frozen=True, repr=False)  # no repr: rows and seeds must not reach logs
class Summand:
    """What one company shows of a joint query."""

    header_frame: bytes
    columns: Sequence[bytes]
    opening: Opening
    people: int  # of the company, in the plan
    masks: tuple[tuple[bytes, bytes], ...]  # of all companies, as this one knows: MaskKey.shown


def inspect_joint(
    request_hash: bytes,
    evidence: JointEvidence,
    summands: Sequence[Summand],
    *,
    plan: Plan,
    group_counts: tuple[int, ...],
) -> None:
    """Raise VerificationError, naming the check, unless all of (0) to (8) hold."""
    # (0)
    reply, headers = evidence.reply, tuple(summand.header_frame for summand in summands)
    hashes = tuple(map(frame_hash, headers))
    if reply.request_hash() != request_hash or hashes != reply.header_hashes:
        raise VerificationError("(0) the headers are not those that the answer was given to")
    query_id = decode(headers[0], SumHeader).query_id
    evidence.check(query_id)
    evidence.check_signatures(query_id, plan)
    parts = [
        _inspect_one(summand, digests, reply.block, group_counts)
        for summand, digests in zip(summands, evidence.digests, strict=True)
    ]
    # (7)
    params = decode(summands[0].opening.query_frame, Query).params
    if len({len(own) for own in parts}) != 1:
        raise VerificationError("(7) the companies' sums have different lengths")
    totals = []
    for index, frames in enumerate(zip(*parts, strict=True)):
        ciphertexts = [decode(frame, SumPart).ciphertext for frame in frames]
        totals.append(encode(SumPart(index, add_answers(params, ciphertexts))))
    if frames_hash(totals) != reply.totals_hash:
        raise VerificationError("(7) what was decrypted is not the sum of what the companies sent")
    _check_masks(evidence, summands)


def _check_masks(evidence: JointEvidence, summands: Sequence[Summand]) -> None:
    """(8). Whoever masks otherwise than agreed alone can read the answer; the others get noise."""
    if len({summand.masks for summand in summands}) != 1 or len(summands[0].masks) != len(summands):
        raise VerificationError("(8) the companies do not derive the same masks")
    for place, summand in enumerate(summands):
        opening, (seed, key) = summand.opening, summand.masks[place]
        if opening.seeds.mask != seed:
            raise VerificationError("(8) a company masked otherwise than the others know")
        if not evidence.totals or decode(opening.query_frame, Query).shape != "groups":
            continue
        own = mask_totals(opening.rows.sum(axis=0, dtype=np.int64), key)
        if not np.array_equal(JointTotals.parse(evidence.totals[place]).masked, own):
            raise VerificationError("(8) a company's totals are not those of its rows")


def _inspect_one(
    summand: Summand, digests: tuple[bytes, ...], block: int, group_counts: tuple[int, ...]
) -> list[bytes]:
    """Checks (1) to (6) for one company; its recomputed ciphertext frames."""
    header, opening = decode(summand.header_frame, SumHeader), summand.opening
    query = decode(opening.query_frame, Query)
    if frame_hash(opening.query_frame) != header.query_hash:
        raise VerificationError("(1) the opening is for another query")
    if opening.commitment() != header.commitment:
        raise VerificationError("(2) rows or seeds are not those committed to")
    if frames_hash(summand.columns) != header.columns_hash:
        raise VerificationError("(3) the request was made from other columns")
    if decode(summand.columns[0], ColumnsHeader).block != block:
        raise VerificationError("(3) the columns have another block size than the answer")
    alone = shapes_of(query, group_counts, summand.people)
    layout = Layout(query.params, alone.layout.people, query.columns, block)
    shapes = Shapes(layout, alone.indicators, alone.sums)
    expected: tuple[int, ...] = (layout.people, query.columns)
    if query.shape == "weighted":
        expected = (shapes.indicators, *expected)
    if opening.rows.shape != expected:
        raise VerificationError(f"(4) rows have shape {opening.rows.shape}, not {expected}")
    _check_norms(query, opening.rows)  # (5)
    again = recompute(opening, summand.columns, shapes, blind=query.kind == "blind")
    if tuple(map(payload_digest, again)) != digests or len(again) != header.parts:
        raise VerificationError("(6) the ciphertexts do not follow from the opened rows and seeds")
    return again
