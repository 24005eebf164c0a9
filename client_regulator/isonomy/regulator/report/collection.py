"""Reports from files, each verified before anybody reads a number of it: for diff and history.

A report counts only if every check that needs no ledger holds (common/report/verify) and the key is
the regulator's. What does not hold is refused by its file's name; nothing is left out in silence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isonomy.common.base.errors import ConfigError, VerificationError
from isonomy.common.keys.party import Card
from isonomy.common.keys.rotation import Rotation
from isonomy.common.report.few_shot import AnyReport
from isonomy.common.report.schema import ReportFile
from isonomy.common.report.verify import ReportPaths, Verification, require
from isonomy.regulator.config.config import RegulatorConfig

FILE_NAME = "report.json"


@dataclass(frozen=True)
class VerifiedReport:
    """A report that holds, and the file that it stands in."""

    path: Path
    report: AnyReport

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.report.to_json()).hexdigest()

    @property
    def companies(self) -> tuple[str, ...]:
        report = self.report  # of several companies it may be about one
        company = report.settings.company if isinstance(report, ReportFile) else ""
        names = [card.name for card in self.report.plan.companies]
        return (company,) if company else tuple(sorted(names))


def verified(path: Path, card: Card, rotations: Sequence[Rotation] = ()) -> VerifiedReport:
    """Return the report of a file or folder; VerificationError, with its name, unless it holds."""
    paths = ReportPaths.of(path)
    verification = Verification(paths, card=card, rotations=rotations)
    try:
        require(verification.run())
    except VerificationError as error:
        raise VerificationError(f"{paths.report}: {error}") from None
    return VerifiedReport(paths.report, verification.report)


def home_trust(config: RegulatorConfig) -> tuple[Card, list[Rotation]]:
    """Return the home's card, and the records that lead to it from earlier identities."""
    records = sorted((config.keys_folder / "rotations").glob("*.json"))
    return Card.load(config.keys_folder / "card.json"), [Rotation.load(path) for path in records]


def report_files(folder: Path) -> list[Path]:
    """Return every report.json below a folder; ConfigError if there is none."""
    files = sorted(folder.rglob(FILE_NAME)) if folder.is_dir() else [folder]
    if not files:
        raise ConfigError(f"no {FILE_NAME} lies in {folder} or a folder below it")
    return files


def check_same_company(reports: Sequence[VerifiedReport]) -> None:
    """Raise ConfigError unless all reports are about decisions of the same companies."""
    first = reports[0]
    for other in reports[1:]:
        if other.companies != first.companies:
            raise ConfigError(
                f"these reports are about different companies: {first.path} about "
                f"{', '.join(first.companies)}, {other.path} about {', '.join(other.companies)}"
            )
