"""Was a request what it claims to be? Recomputes its ciphertexts from the company's opening.

An inspection needs neither key nor attributes, so that whoever the plan names as auditor can do it
(docs/design.md §6). Comparing only the decrypted sum would be unsound: an over-long row can be
offset in the mask. So the very bytes are recomputed:

    (0) the header is that of the request which the ledger's record (or the pending one) names
    (1) the query frame is the one that the header binds
    (2) the opening is what was committed to
    (3) the columns are those that the request was made from
    (4) rows have the shape that the query declares
    (5) no person's rows exceed the bound, in integers
    (6) the ciphertexts that the header binds follow, byte for byte, from columns, rows and seeds
    (8) of a query that several companies asked together: masks and public totals are those that
        this company had to send (sums/pool_masks.py)
    (9) and of their sum: it is what the server had to make of all companies' ciphertexts

The ciphertexts themselves are not asked for: a company could show others than it sent.

Under a plan by pads some people's rows are opened, not the request, and (6) is about their cells
and tags: the demand has a hash of what arrived (docs/adr/0014). That the tags are those of the keys
in use was the regulator's to compare, for everybody; (2) and (3) cannot be had from some rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import ConfigError, VerificationError
from isonomy.common.crypto.he import SumBuilder
from isonomy.common.crypto.params import add_answers, parameter_set
from isonomy.common.pads.draw import RowDraw, drawn_slices
from isonomy.common.pads.message import PadMessage, Sides
from isonomy.common.pads.stream import Pads, part_slices
from isonomy.common.pads.transfer import KEY_BYTES, Keys
from isonomy.common.people.cohort import group_count
from isonomy.common.privacy.quantise import Order, integer_norms
from isonomy.common.privacy.queries import Query, Shapes, shapes_of
from isonomy.common.sums.company_half import block_columns, part_frames
from isonomy.common.sums.openings import Opening
from isonomy.common.sums.pool_masks import PooledReply, PoolPart, pooled_digests_hash
from isonomy.common.sums.sealed_opening import SealedOpening, Shown
from isonomy.common.wire.envelopes import payload_digest
from isonomy.common.wire.messages import (
    ColumnsHeader,
    OpeningDemand,
    SumHeader,
    SumPart,
    decode,
    encode,
    frame_hash,
    frames_hash,
)


def recompute(
    opening: Opening, columns: Sequence[bytes], shapes: Shapes, *, blind: bool
) -> list[bytes]:
    """The SumPart frames that this opening and these column frames give."""
    header = decode(columns[0], ColumnsHeader)
    builder = SumBuilder(shapes.layout, sums=shapes.sums, zero=header.zero)
    stream = iter(columns[1:])
    for index in range(shapes.layout.blocks):
        builder.add_block(index, opening.rows, block_columns(stream, index, shapes.indicators))
    return part_frames(builder, opening.seeds, blind=blind)


def inspect_request(
    request_hash: bytes,
    header_frame: bytes,
    columns: Sequence[bytes],
    opening: Opening,
    *,
    group_counts: tuple[int, ...],
    cohort_size: int,
    pool: Pool | None = None,
) -> list[bytes]:
    """Raise VerificationError, naming the check, unless all of (0) to (6), and (8), hold.

    Returns the SumPart frames of the request. `cohort_size`: the people whom positions count;
    `pool`: of a query of several companies.
    """
    header, query = _bound(request_hash, header_frame, opening)
    # (2)
    _check_commitment(header, opening)
    # (3)
    if frames_hash(columns) != header.columns_hash:
        raise VerificationError("(3) the request was made from other columns")
    # (4), (5)
    shapes = shapes_of(query, group_counts, cohort_size)
    if pool is not None:
        shapes = shapes.with_block(decode(columns[0], ColumnsHeader).block)
    _check_rows(query, shapes, np.asarray(opening.rows), query.people(cohort_size))
    # (6)
    again = recompute(opening, columns, shapes, blind=query.kind == "blind")
    if pool is None:
        _check_parts(header, [frame_hash(frame) for frame in again])
        return again
    if pool.parts_hash(again) != header.parts_hash or len(again) != header.parts:
        raise _other_parts()
    # (8)
    total = np.asarray(opening.rows).sum(axis=0, dtype=np.int64)
    pool.part.check(opening.seeds.mask, total, pool.place, pool.companies)
    return again


def inspect_rows(
    request_hash: bytes, contents: Shown, demand: bytes, counts: tuple[int, ...], cohort_size: int
) -> None:
    """The same by pads: of the people whom the demand draws; without one, of everybody."""
    opening = contents.opening
    header, query = _bound(request_hash, contents.header_frame, opening)
    shapes, people = shapes_of(query, counts, cohort_size), query.people(cohort_size)
    drawn, slices = np.arange(people), part_slices(people, query.columns, tagged=True)
    demanded = decode(demand, OpeningDemand) if demand else None
    if demanded is not None:
        drawn = RowDraw(demanded.seed, demanded.millionths).people(people)
        slices = drawn_slices(drawn, people, query.columns)
    else:
        _check_commitment(header, opening)
    _check_rows(query, shapes, np.asarray(opening.rows), len(drawn))
    sides = _shown_sides(contents.columns, shapes.indicators, len(drawn))
    place = (query, shapes, opening.rows, header.commitment, sides, slices)
    message = PadMessage(*place, tagged=True)
    if demanded is None:
        _check_parts(header, [frame_hash(frame) for frame in message.frames()])
    elif message.cells_hash() != demanded.cells_hash:
        raise VerificationError("(6) the cells do not follow from the opened rows and row keys")


def _bound(request_hash: bytes, header_frame: bytes, opening: Opening) -> tuple[SumHeader, Query]:
    """The header and the query of a request, after checks (0) and (1)."""
    header, query = decode(header_frame, SumHeader), decode(opening.query_frame, Query)
    if frame_hash(header_frame) != request_hash:
        raise VerificationError("(0) the header belongs to another request than was answered")
    if frame_hash(opening.query_frame) != header.query_hash:
        raise VerificationError("(1) the opening is for another query")
    return header, query


def _check_commitment(header: SumHeader, opening: Opening) -> None:
    if opening.commitment() != header.commitment:
        raise VerificationError("(2) rows or seeds are not those committed to")


def _check_rows(query: Query, shapes: Shapes, rows: NDArray[np.int32], people: int) -> None:
    """(4) and (5)."""
    expected: tuple[int, ...] = (people, query.columns)
    if query.shape == "weighted":
        expected = (shapes.indicators, *expected)
    if rows.shape != expected:
        raise VerificationError(f"(4) rows have shape {rows.shape}, not {expected}")
    _check_norms(query, rows)


def _check_parts(header: SumHeader, hashes: list[bytes]) -> None:
    if frames_hash(hashes, hashed=True) != header.parts_hash or len(hashes) != header.parts:
        raise _other_parts()


def _other_parts() -> VerificationError:
    return VerificationError("(6) the ciphertexts do not follow from the opened rows and seeds")


def _shown_sides(chunks: Sequence[bytes], indicators: int, people: int) -> Sides:
    """The row keys that an opening has, as a message takes them."""
    if [len(chunk) for chunk in chunks] != [2 * people * KEY_BYTES] * indicators:
        raise VerificationError("(4) an opening has two row keys per person and released group")
    keys = [np.frombuffer(chunk, "<u8").reshape(2, people, 2) for chunk in chunks]

    def sides(pads: Pads, number: int, some: slice) -> tuple[Keys, Keys]:
        zeros, ones = keys[number].astype(np.uint64)
        return zeros[some], ones[some]

    return sides


@dataclass(frozen=True, repr=False)
class Pool:
    """Whose part of a query of several companies it is, and what binds it to the others."""

    part: PoolPart
    place: int
    companies: int

    def parts_hash(self, frames: list[bytes]) -> bytes:
        """What the header of such a request binds."""
        return pooled_digests_hash(self.part.totals_frame, [payload_digest(f) for f in frames])


def inspect_shown(
    plan: Plan, sealed: SealedOpening, contents: Shown, place: int = 0, header_hash: bytes = b""
) -> list[bytes]:
    """Raise VerificationError, naming the check, unless all hold under this plan.

    Returns the SumPart frames of a whole request. `place`: which of the plan's companies opens;
    `header_hash`: of its part of a joint request.
    """
    query = decode(contents.opening.query_frame, Query)
    if (query.plan, query.query_id) != (plan.hash, sealed.query_id):
        raise VerificationError("(1) the opening is for another query")
    pool, people = None, plan.cohort_size
    if header_hash:
        pool = Pool(PoolPart.parse(contents.pool), place, len(plan.companies))
        people = plan.shares[place].people
    try:
        counts = tuple(group_count(name, plan.groups) for name in query.attributes)
        if plan.carrier == "pads":
            demand = sealed.demand
            inspect_rows(sealed.request_hash, contents, demand, counts, plan.cohort_size)
            return []
        return inspect_request(
            header_hash or sealed.request_hash,
            contents.header_frame,
            contents.columns,
            contents.opening,
            group_counts=counts,
            cohort_size=people,
            pool=pool,
        )
    except ConfigError as error:
        raise VerificationError(f"(4) the query cannot be asked under this plan: {error}") from None


def check_added(reply: PooledReply, parameters: str, frames: Sequence[list[bytes]]) -> None:
    """(9) VerificationError unless the server added the very ciphertexts of all companies."""
    params = parameter_set(parameters)
    totals = []
    for same in zip(*frames, strict=True):
        parts = [decode(frame, SumPart) for frame in same]
        total = add_answers(params, [part.ciphertext for part in parts])
        totals.append(encode(SumPart(parts[0].index, total)))
    if frames_hash(totals) != reply.totals_hash:
        raise VerificationError("(9) the server did not add up what the companies sent")


def _check_norms(query: Query, rows: NDArray[np.int32]) -> None:
    bound = query.params.row_bound
    order: Order = 1 if query.mechanism == "laplace" else 2
    limit = bound if order == 1 else bound * bound
    for difference in differences(rows):
        # Entries far above the bound could overflow the squares, so they are refused first.
        too_long = np.abs(difference).max() > bound
        if too_long or (integer_norms(difference, order) > limit).any():
            raise VerificationError("(5) a person's rows exceed the norm bound")


def differences(rows: NDArray[np.int32]) -> Iterator[NDArray[np.int64]]:
    """What replacing a person's attribute can change: a row, or a difference of weighted rows."""
    wide = rows.astype(np.int64)
    if wide.ndim == 2:
        yield wide
        return
    yield from wide  # against the last group, which the rows are relative to
    for one, other in combinations(wide, 2):
        yield one - other
