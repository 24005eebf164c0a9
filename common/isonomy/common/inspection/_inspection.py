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

The ciphertexts themselves are not asked for: a company could show others than it sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import ConfigError, VerificationError
from isonomy.common.crypto.he import SumBuilder
from isonomy.common.people.cohort import group_count
from isonomy.common.privacy.quantise import Order, integer_norms
from isonomy.common.privacy.queries import Query, Shapes, shapes_of
from isonomy.common.sums.company_half import block_columns, part_frames
from isonomy.common.sums.openings import Opening
from isonomy.common.sums.sealed_opening import SealedOpening, Shown
from isonomy.common.wire.messages import (
    ColumnsHeader,
    SumHeader,
    decode,
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
) -> None:
    """Raise VerificationError, naming the check, unless all of (0) to (6) hold."""
    header = decode(header_frame, SumHeader)
    query = decode(opening.query_frame, Query)
    # (0)
    if frame_hash(header_frame) != request_hash:
        raise VerificationError("(0) the header belongs to another request than was answered")
    # (1)
    if frame_hash(opening.query_frame) != header.query_hash:
        raise VerificationError("(1) the opening is for another query")
    # (2)
    if opening.commitment() != header.commitment:
        raise VerificationError("(2) rows or seeds are not those committed to")
    # (3)
    if frames_hash(columns) != header.columns_hash:
        raise VerificationError("(3) the request was made from other columns")
    # (4)
    shapes = shapes_of(query, group_counts, cohort_size)
    people = query.people(cohort_size)
    expected: tuple[int, ...] = (people, query.columns)
    if query.shape == "weighted":
        expected = (shapes.indicators, *expected)
    if opening.rows.shape != expected:
        raise VerificationError(f"(4) rows have shape {opening.rows.shape}, not {expected}")
    # (5)
    _check_norms(query, opening.rows)
    # (6)
    again = recompute(opening, columns, shapes, blind=query.kind == "blind")
    if frames_hash(again) != header.parts_hash or len(again) != header.parts:
        raise VerificationError("(6) the ciphertexts do not follow from the opened rows and seeds")


def inspect_shown(plan: Plan, sealed: SealedOpening, contents: Shown) -> None:
    """Raise VerificationError, naming the check, unless (0) to (6) hold under this plan."""
    query = decode(contents.opening.query_frame, Query)
    if (query.plan, query.query_id) != (plan.hash, sealed.query_id):
        raise VerificationError("(1) the opening is for another query")
    try:
        counts = tuple(group_count(name, plan.groups) for name in query.attributes)
        inspect_request(
            sealed.request_hash,
            contents.header_frame,
            contents.columns,
            contents.opening,
            group_counts=counts,
            cohort_size=plan.cohort_size,
        )
    except ConfigError as error:
        raise VerificationError(f"(4) the query cannot be asked under this plan: {error}") from None


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
