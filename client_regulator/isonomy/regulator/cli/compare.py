"""`diff`, `history` and `csv`: reports beside each other, over time, and as a spreadsheet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isonomy.common.base.errors import ConfigError
from isonomy.common.base.output import emit, wants_json
from isonomy.common.base.private_files import write_whole
from isonomy.common.keys.party import Card
from isonomy.common.keys.rotation import Rotation
from isonomy.common.report.verify import SignerUnknown
from isonomy.regulator.cli.output import Home
from isonomy.regulator.config.config import RegulatorConfig

if TYPE_CHECKING:
    from isonomy.regulator.report.collection import VerifiedReport

Report = Annotated[Path, typer.Argument(help="report.json, or its folder.")]
Trusted = Annotated[
    Path | None, typer.Option("--card", help="The regulator's card.json. Default: the home's.")
]
Rotations = Annotated[
    list[Path] | None,
    typer.Option("--rotation", help="A record of a new identity. Default: the home's."),
]
Page = Annotated[Path | None, typer.Option("--out", "-o", help="The page, a new file.")]


def diff(
    one: Report,
    two: Report,
    home: Home = Path(),
    card: Trusted = None,
    rotation: Rotations = None,
    out: Page = None,
) -> None:
    """Show two reports of one company beside each other, on a page.

    Both are verified first. A change counts only where two 95 % intervals do not touch.

    \b
    Examples:
    isonomy-regulator diff reports/spring reports/autumn -o changes.html
    isonomy-regulator diff reports/spring reports/autumn --card regulator-card.json --json
    """
    from isonomy.regulator.report.diff import compare, render_diff

    page = _new_file(out, "diff.html")
    reports = _verified([one, two], home, card, rotation)
    comparison = compare(*reports)
    if page:
        write_whole(page, render_diff(comparison))
    emit({"html": page, **comparison}, str(page))


def history(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders with reports, at any depth, or report.json files.")
    ],
    home: Home = Path(),
    card: Trusted = None,
    rotation: Rotations = None,
    out: Page = None,
) -> None:
    """Show all reports of one company on a page: differences over time, verdicts, budget.

    Every report.json below the folders is verified first; one that does not hold stops it.

    \b
    Examples:
    isonomy-regulator history reports/acme -o acme.html
    isonomy-regulator history reports/acme --json
    """
    from isonomy.regulator.report.collection import report_files
    from isonomy.regulator.report.history import history_of, render_history

    page = _new_file(out, "history.html")
    files = [file for folder in folders for file in report_files(folder)]
    lines = history_of(_verified(files, home, card, rotation))
    if page:
        write_whole(page, render_history(lines))
    emit({"html": page, **lines}, str(page))


def csv(
    report: Report,
    out: Annotated[Path, typer.Option("--out", "-o", help="A new file.")] = Path("report.csv"),
    home: Home = Path(),
    card: Trusted = None,
    rotation: Rotations = None,
) -> None:
    """Write a report's tables as CSV (UTF-8): a line for each audit, group and measure.

    The report is verified first. A name that a spreadsheet would compute as a formula gets an
    apostrophe in front.

    \b
    Examples:
    isonomy-regulator csv reports/spring -o spring.csv
    """
    from isonomy.regulator.report.spreadsheet import csv_tables

    file = _new_file(out, "")
    (source,) = _verified([report], home, card, rotation)
    data = csv_tables(source.report)
    write_whole(out, data)
    emit({"csv": file, "sha256": source.sha256}, str(file))


def _verified(
    paths: list[Path], home: Path, card: Path | None, rotation: list[Path] | None
) -> list[VerifiedReport]:
    """Return the reports, each verified against the card that was named, or the home's."""
    from isonomy.regulator.report.collection import home_trust, verified

    rotations: list[Rotation] = []
    if card is not None:
        trusted = Card.load(card)
    else:
        try:
            trusted, rotations = home_trust(RegulatorConfig.load(home))
        except ConfigError:
            raise SignerUnknown(
                "whose key? Name the regulator's card (--card), or its home (--home)"
            ) from None
    if rotation:
        rotations = [Rotation.load(path) for path in rotation]
    return [verified(path, trusted, rotations) for path in paths]


def _new_file(out: Path | None, default: str) -> Path | None:
    """Return where the page goes, if anywhere; ConfigError if something is there already."""
    if out is None:
        if wants_json():
            return None
        out = Path(default)
    if out.exists():
        raise ConfigError(f"{out} exists; name a new file with -o. Nothing was written")
    return out
