"""What it costs the company to keep a request for inspection, and to open one row in a hundred."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from isonomy.common.keys.party import PartyKeys
from isonomy.common.pads.draw import RowDraw, drawn_slices
from isonomy.common.pads.message import PadMessage, sides_of
from isonomy.common.privacy.row_sources import rows_of
from isonomy.common.sums.openings import FolderOpenings
from isonomy.common.sums.sealed_opening import seal_opening
from isonomy.common.wire.messages import OpeningDemand, encode, frame_hash
from isonomy.company.speed._pads import OPENED, pad_world


@contextmanager
def kept_request(people: int, columns: int, folder: Path) -> Iterator[Callable[[], float]]:
    """A request by pads; what is given keeps it, finds it again, opens it, and counts the bytes."""
    auditor, company = PartyKeys.generate("auditor", "auditor"), PartyKeys.generate("c", "company")
    store = FolderOpenings(folder / "openings", inspected=True)
    with pad_world(people, columns, store, tagged=True) as world:
        query, shapes = world.prepared.query, world.prepared.shapes
        request = world.company.attempt(world.prepared, encode(query))
        # What the regulator would demand: the people drawn, and the hash of their cells.
        seed = bytes(32)
        drawn = RowDraw(seed, OPENED).people(people)
        sides = sides_of(world.company.keys(query), slice(None), drawn)
        place = (request.header.commitment, sides, drawn_slices(drawn, people, columns))
        rows = rows_of(world.prepared.rows, drawn)
        cells = PadMessage(query, shapes, rows, *place, tagged=True).cells_hash()
        demand = OpeningDemand(
            query.query_id,
            query.plan,
            frame_hash(request.frames[0]),
            auditor.card().sealing_key,
            b"",
            seed,
            OPENED,
            cells,
        )

        def work() -> float:
            store.save(query.query_id, request)
            stored = FolderOpenings(folder / "openings", inspected=True).find(query.query_id)
            if stored is None:
                raise AssertionError("a request that was kept is not there")
            shown = world.company.show(query, stored, demand)
            sealed = seal_opening(
                demand.auditor, query.plan, query.query_id, shown, company.identity, encode(demand)
            )
            kept = sum(path.stat().st_size for path in (folder / "openings").iterdir())
            return kept + len(sealed.box)

        yield work
