"""A short form of `make matrix`: cells from every axis, also those that once broke."""

from __future__ import annotations

from pathlib import Path

import pytest
from matrix import NOTIONS, TRAINS, Cell, cells, run_cell
from two_companies import run_pooled, trains_together

PAGE = Path(__file__).parents[2] / "docs" / "matrix.md"
PLAIN, PADS = ("encrypted", False, False), ("pads", False, False)
WORKS = [
    Cell("tilt", "equalized_odds", 2, 4, *PLAIN),
    Cell("tilt", "demographic_parity", 4, 2, *PLAIN),
    Cell("tilt", "equalized_odds", 4, 2, *PLAIN),
    Cell("tilt", "equal_fpr", 4, 4, *PLAIN),
    Cell("scores", "score_parity", 2, 2, *PLAIN),
    Cell("tilt", "equalized_odds", 4, 4, *PLAIN, attributes=2),
    Cell("pf_ld", "demographic_parity", 2, 4, *PLAIN, attributes=2),
    Cell("pf_ld", "equalized_odds", 4, 2, *PLAIN),  # once passed its rehearsal and was refused
    Cell("pf_ld", "demographic_parity", 2, 4, "encrypted", True, False),
    Cell("pf_ld", "demographic_parity", 2, 2, "encrypted", False, True),
    Cell("dp_fermi", "demographic_parity", 2, 4, *PLAIN),
    Cell("dp_fermi", "demographic_parity", 2, 2, "encrypted", False, True),
    Cell("f_ld", "demographic_parity", 2, 2, "local", False, False),
    Cell("dp_postprocess", "equalized_odds", 2, 2, *PLAIN),
    Cell("tilt", "equalized_odds", 2, 4, *PADS),
    Cell("scores", "score_parity", 2, 4, *PADS),
    Cell("pf_ld", "equalized_odds", 4, 2, *PADS),
    Cell("pf_ld", "demographic_parity", 2, 4, "pads", True, False),
    Cell("pf_ld", "demographic_parity", 2, 2, "pads", False, True),
    Cell("dp_fermi", "demographic_parity", 2, 4, *PADS),
    Cell("tilt", "equalized_odds", 4, 2, "inspected", False, False),
    Cell("pf_ld", "demographic_parity", 2, 4, "inspected", False, False),
    Cell("sums", "-", 2, 8, "inspected", False, False),
    Cell("sums", "-", 2, 8, *PADS),
    Cell("audit", "-", 2, 8, *PADS),
    Cell("sums", "-", 2, 8, *PLAIN),
    Cell("audit", "-", 2, 8, *PLAIN),
]
REFUSED = {
    Cell("tilt", "demographic_parity", 2, 2, "encrypted", False, True): "records are protected",
    Cell("dp_fermi", "demographic_parity", 2, 4, *PLAIN, attributes=2): "takes one attribute",
    Cell("dp_fermi", "equal_opportunity", 4, 2, *PLAIN): "no form for 'equal_opportunity'",
    Cell("pf_ld", "demographic_parity", 2, 2, "encrypted", True, True): "do not go together",
    Cell("f_ld", "demographic_parity", 2, 2, *PLAIN): "true attributes",
    Cell("f_ld", "demographic_parity", 2, 2, *PADS): "true attributes",
    Cell("audit", "-", 2, 2, "encrypted", False, True): "records are protected",
}


def label(cell: Cell) -> str:
    marks = (cell.carrier, "filter" * cell.filtered, "records" * cell.records)
    return " ".join(str(part) for part in (cell.strategy, cell.notion, *marks) if part)


@pytest.mark.parametrize("cell", WORKS, ids=label)
def test_it_trains_with_the_bits_of_its_rehearsal(cell: Cell) -> None:
    outcome = run_cell(cell)
    assert (outcome.text, outcome.surprise) == (TRAINS, False)


@pytest.mark.parametrize("cell", REFUSED, ids=label)
def test_it_is_refused_by_name_with_nothing_spent(cell: Cell) -> None:
    outcome = run_cell(cell)
    assert REFUSED[cell] in outcome.text
    assert not outcome.surprise


TOGETHER = [
    Cell("tilt", "demographic_parity", 2, 4, "pooled", filtered=False, records=False),
    Cell("tilt", "equalized_odds", 4, 4, "pooled", filtered=False, records=False),
]


def test_two_companies() -> None:
    """All but sums, audits and tilt is refused before it asks; an individual filter always."""
    chosen = [cell for cell in cells() if (cell.carrier, cell.groups) == ("pooled", 4)]
    few = [cell for cell in chosen if not trains_together(cell)]
    few += [cell for cell in chosen if trains_together(cell) and cell in TOGETHER]
    outcomes = list(run_pooled(few))
    assert not [outcome for outcome in outcomes if outcome.surprise]
    trained = {outcome.cell.strategy for outcome in outcomes if outcome.text == TRAINS}
    assert trained == {"sums", "audit", "tilt"}


def test_the_page_has_every_strategy_and_notion() -> None:
    page = PAGE.read_text()
    rows = {(cell.strategy, cell.notion) for cell in cells()}
    missing = [row for row in rows if f"| {row[0]} | {row[1]} |" not in page]
    assert not missing, "run `make matrix`"
    assert len({notion for _, notion in rows}) == len(NOTIONS) + 2  # score_parity, and none
