"""`make matrix`: run every combination, write docs/matrix.md, fail on a surprise.

python tests/matrix/run.py [--jobs N] [--out docs/matrix.md]
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "kits")]

from matrix import COMPARISONS, DIRECT, SIZES, TRAINS, Cell, Outcome, cells, run_cell  # noqa: E402
from rich.progress import track  # noqa: E402
from two_companies import run_pooled  # noqa: E402

COLUMNS = {
    "rehearsal": ("local", False, False),
    "encrypted": ("encrypted", False, False),
    "pads": ("pads", False, False),
    "pads, inspected": ("inspected", False, False),
    "individual filter": ("encrypted", True, False),
    "record privacy": ("encrypted", False, True),
    "filter and records": ("encrypted", True, True),
    "two companies": ("pooled", False, False),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, write, and say whether anything surprised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "docs" / "matrix.md")
    options = parser.parse_args(arguments)
    every = list(cells())
    alone = [cell for cell in every if cell.carrier != "pooled"]
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(options.jobs) as pool:
        runs = pool.map(run_cell, alone, chunksize=8)
        outcomes += track(runs, "one company", total=len(alone))
    pooled = [cell for cell in every if cell.carrier == "pooled"]
    outcomes += track(run_pooled(pooled), "two companies", total=len(pooled))
    surprises = [outcome for outcome in outcomes if outcome.surprise]
    for outcome in surprises:
        print(f"SURPRISE {outcome.cell}: {outcome.text}")  # noqa: T201
    options.out.write_text(page(outcomes))
    trained = sum(outcome.text == TRAINS for outcome in outcomes)
    refused = len(outcomes) - trained - len(surprises)
    print(f"{len(outcomes)} cells: {trained} train, {refused} refused, {len(surprises)} surprises")  # noqa: T201
    return 1 if surprises else 0


def page(outcomes: Sequence[Outcome]) -> str:
    """docs/matrix.md: a row per strategy and notion, a column per way of running it."""
    reasons: dict[str, int] = {}
    rows: dict[tuple[str, str, int], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        cell = outcome.cell
        rows[cell.strategy, cell.notion, cell.attributes].append(outcome)
    sizes = ", ".join(str(size) for size in SIZES)
    lines = [
        "# What works with what",
        "",
        "`make matrix` writes this page. It runs every combination at tiny size: strategy, notion,",
        f"{sizes} classes, {sizes} groups, channel, individual filter, record privacy, one or two",
        "companies. A cell by encryption or by pads trains only if all released integers and all",
        "decisions are the same as in its rehearsal. A refusal comes by name, with nothing spent.",
        "Inspected: the regulator looks at a tenth of the people of every query, and all passed.",
        "",
        "A cell lists the numbers of classes that train, with every number of groups; a raised",
        "number is the reason of a refusal, below the tables. Two attributes in one fit, of four",
        "and of two groups, are tried with 2 and 4 classes.",
        "",
    ]
    parts = {
        "Strategies": [key for key in rows if key[0] not in (*COMPARISONS, *DIRECT) and key[2] < 2],
        "Two attributes in one fit": [key for key in rows if key[2] == 2],
        "Without a strategy": [key for key in rows if key[0] in DIRECT],
        "Comparisons, for rehearsals only": [key for key in rows if key[0] in COMPARISONS],
    }
    for title, keys in parts.items():
        cells_here = [outcome.cell for key in keys for outcome in rows[key]]
        ways = {(cell.carrier, cell.filtered, cell.records) for cell in cells_here}
        columns = {name: way for name, way in COLUMNS.items() if way in ways}
        lines += [f"## {title}", "", "| strategy | notion | " + " | ".join(columns) + " |"]
        lines.append("|---" * (len(columns) + 2) + "|")
        for strategy, notion, attributes in keys:
            row = rows[strategy, notion, attributes]
            shown = [_cell(row, column, reasons) for column in columns.values()]
            lines.append(f"| {strategy} | {notion} | " + " | ".join(shown) + " |")
        lines.append("")
    lines += ["## Reasons", ""]
    lines += [f"{number}. {reason}" for reason, number in reasons.items()]
    return "\n".join(lines) + "\n"


def _cell(row: Sequence[Outcome], column: tuple[str, bool, bool], reasons: dict[str, int]) -> str:
    """The classes that train in this column, and why the others do not."""
    by_classes: dict[int, set[str]] = defaultdict(set)
    for outcome in row:
        cell = outcome.cell
        if (cell.carrier, cell.filtered, cell.records) == column:
            by_classes[cell.classes].add(outcome.text)
    working = [str(classes) for classes, texts in by_classes.items() if texts == {TRAINS}]
    texts = [text for texts in by_classes.values() for text in sorted(texts) if text != TRAINS]
    numbers = [reasons.setdefault(text, len(reasons) + 1) for text in dict.fromkeys(texts)]
    notes = "".join(f"<sup>{number}</sup>" for number in dict.fromkeys(numbers))
    return (", ".join(working) or "–") + notes


def chosen(every: Sequence[Cell], step: int) -> list[Cell]:
    """Every `step`-th cell: a short form that visits all axes."""
    return [cell for number, cell in enumerate(every) if number % step == 0]


if __name__ == "__main__":
    sys.exit(main())
