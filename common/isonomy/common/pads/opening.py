"""What the company shows an auditor of a request by pads: rows and row keys, never keys.

On demand those of the people drawn (docs/adr/0014); in a file of its own, later, the whole request.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import ProtocolError, VerificationError
from isonomy.common.pads.draw import RowDraw, drawn_slices
from isonomy.common.pads.key_store import KeyColumn, KeyStore, keys_hash, place_of
from isonomy.common.pads.message import PadMessage, message_pads, sides_of
from isonomy.common.pads.stream import part_slices
from isonomy.common.people.cohort import group_count
from isonomy.common.privacy.queries import Query, Shapes, shapes_of
from isonomy.common.privacy.row_sources import rows_of
from isonomy.common.sums.openings import NONCE_BYTES, StoredRequest
from isonomy.common.sums.sealed_opening import Shown
from isonomy.common.wire.messages import OpeningDemand, decode


def show_request(plan: Plan, request: StoredRequest, store: KeyStore) -> Shown:
    """A whole stored request, for a file; VerificationError if its keys are not here any more."""
    query = decode(request.opening.query_frame, Query)
    counts = tuple(group_count(name, plan.groups) for name in query.attributes)
    columns = [
        store.find(place_of(plan.hash, bytes.fromhex(plan.cohort_root), name, group))
        for name, groups in zip(query.attributes, counts, strict=True)
        for group in range(groups - 1)
    ]
    here = [column for column in columns if column is not None]
    if keys_hash(here) != request.header.columns_hash:
        raise VerificationError(
            f"the keys of query {query.query_id!r} are not here, so it cannot be opened; restore "
            "the openings from a backup"
        )
    shapes = shapes_of(query, counts, plan.cohort_size)
    return shown_rows(request, shapes, plan.cohort_size, here, None)


def shown_rows(
    request: StoredRequest,
    shapes: Shapes,
    people: int,
    columns: list[KeyColumn],
    demand: OpeningDemand | None,
) -> Shown:
    """What the auditor gets of a request: the demand's rows and row keys; without one, all of it.

    `people`: the size of the cohort. ProtocolError if the demand is about cells that were not sent:
    an opening under it would look like a cheat's.
    """
    query, opening = decode(request.opening.query_frame, Query), request.opening
    positions = slice(None) if query.positions is None else query.position_array(people)
    number = query.people(people)
    slices = part_slices(number, query.columns, tagged=True)
    drawn: NDArray[np.int64] | slice = slice(None)
    nonce = opening.nonce
    if demand is not None:
        drawn = RowDraw(demand.seed, demand.millionths).people(number)
        slices = drawn_slices(drawn, number, query.columns)
        # With it, whoever knows most rows could try out the others against the commitment.
        nonce = bytes(NONCE_BYTES)
    rows, sides = rows_of(opening.rows, drawn), sides_of(columns, positions, drawn)
    message = PadMessage(query, shapes, rows, request.header.commitment, sides, slices, tagged=True)
    if demand is not None and message.cells_hash() != demand.cells_hash:
        raise ProtocolError(
            "the regulator demands rows under cells that were not sent. Nothing was opened. Stop, "
            "and compare with the regulator."
        )
    pads = message_pads(query, shapes, request.header.commitment, tagged=True)
    row_keys = [
        np.stack(sides(pads, group, slice(None))).astype("<u8").tobytes()
        for group in range(shapes.indicators)
    ]
    part = replace(opening, rows=rows, nonce=nonce)
    return Shown(request.frames[0], part, row_keys, request.answer or b"")
