"""Draw docs/images/report-*.png anew: `make docs-pictures`. Needs Chromium.

The pages come from the product's own functions, over runs of the tests' kit: invented people,
real plans, ledgers, noise and signatures.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from report_kit import audited_run, write_report

from isonomy.common.agreements.about import About
from isonomy.common.keys.party import PartyKeys
from isonomy.company.federation.auditing import audit
from isonomy.regulator.report.collection import VerifiedReport, verified
from isonomy.regulator.report.diff import compare, render_diff
from isonomy.regulator.report.history import history_of, render_history

IMAGES = Path(__file__).parents[2] / "docs" / "images"
PICTURES = {  # page, width, height, dark
    "report-desktop": ("report", 1000, 2000, False),
    "report-phone": ("report", 400, 1500, False),
    "report-dark": ("report", 1000, 2000, True),
    "report-history": ("history", 1000, 1700, False),
    "report-diff": ("diff", 1000, 2300, False),
}
SEASONS = (("spring", 0.15), ("summer", 0.10), ("autumn", 0.04), ("winter", 0.0))
LABELS = {
    "sex": ("female", "male", "not stated"),
    "race": ("Asian", "Black", "Hispanic", "White", "other"),
}
ABOUT = About(
    purpose="Consumer loans up to 20,000 euros",
    system="scorecard 4.2",
    selected="loan granted",
    deployer="Acme Loans",
    legal_basis="Article 10(5) of the EU AI Act",
    contact="fairness@company.example",
)


def reports(folder: Path) -> list[VerifiedReport]:
    """One company's reports, a season apart; its decisions differ less from one to the next."""
    company = PartyKeys.create(folder / "company" / "keys", "acme-loans", "company")
    regulator = PartyKeys.create(folder / "keys", "regulator", "regulator")
    files = []
    for number, (season, gap) in enumerate(SEASONS):
        run = audited_run(
            folder / season, people=12_000, epsilon="2", seed=number, labels=LABELS,
            parties=(company, regulator), name=f"loans of the {season}", tolerance="0.05",
            about=ABOUT,
        )  # fmt: skip
        rng = np.random.default_rng(number)
        before = rng.random(len(run.sex)) < 0.25 + 0.4 * run.label + 0.15 * (run.sex == 1)
        after = rng.random(len(run.sex)) < 0.27 + 0.4 * run.label + gap * (run.sex == 1)
        for name, decisions in (("before", before), ("after", after)):
            audit(
                *(run.oracle, decisions.astype(int), run.label),
                **{"name": name, "share": 0.4, "whose": "held out"},
            )
        run.ledger.close()
        created = 1_774_000_000 + number * 7_900_000
        files.append(write_report(run, folder / season / "report", created=created))
    return [verified(paths.report, regulator.card()) for paths in files]


def screenshot(page: Path, out: Path, width: int, height: int, *, dark: bool) -> None:
    """Have Chromium draw a page, without network."""
    command = [
        os.environ.get("CHROMIUM", "chromium"), "--headless", "--no-sandbox", "--disable-gpu",
        "--hide-scrollbars", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--disable-quic",
        f"--user-data-dir={page.parent / 'browser'}", f"--window-size={width},{height}",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"--screenshot={out}",
        page.as_uri(),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def main(out: Path) -> None:
    """Draw every picture into a folder."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        lines = reports(folder)
        pages = {name: folder / f"{name}.html" for name in ("report", "history", "diff")}
        shutil.copy(lines[2].path.with_suffix(".html"), pages["report"])
        pages["history"].write_bytes(render_history(history_of(lines)))
        pages["diff"].write_bytes(render_diff(compare(lines[0], lines[2])))
        for name, (page, width, height, dark) in PICTURES.items():
            screenshot(pages[page], out / f"{name}.png", width, height, dark=dark)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
