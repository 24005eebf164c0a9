"""Draw docs/images/console-*.png anew: `make docs-pictures`. Needs Chromium.

A real federation: its plan comes in, is approved, runs, and is reported on.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from console_town import TEXTS, Town, town

IMAGES = Path(__file__).parents[2] / "docs" / "images"


def draw(one: Town, name: str, path: str, *, dark: bool = False, narrow: bool = False) -> None:
    """Take a picture of a page: of the whole page, or of what a telephone shows of it."""
    one.page.emulate_media(color_scheme="dark" if dark else "light")
    one.page.set_viewport_size({"width": 400 if narrow else 1100, "height": 760})
    one.open(path)
    one.page.screenshot(path=str(IMAGES / f"console-{name}.png"), full_page=not narrow)


def main() -> None:
    """Play the officer's part, and take a picture of each step."""
    with tempfile.TemporaryDirectory() as folder, town(Path(folder)) as one:
        page, plan = one.page, one.plan.hash.hex()
        one.upload_plan(one.layout.plan)
        one.press("Show the plan")
        draw(one, "today", "/")
        draw(one, "plan", f"/inbox/{plan}")
        for box in page.locator("input[type=checkbox]").all():
            box.check()
        page.fill("#approve-passphrase", one.passphrase)
        one.press("Approve")
        company = one.start_company()
        one.federation.open_session()
        one.open(f"/live/{plan}")
        one.says("1 answered", 60)
        one.go(0, 1)
        one.says("3 answered", 60)
        draw(one, "session", f"/live/{plan}", dark=True)
        one.go(2, 3)
        one.processes.finish(company)
        one.federation.outcome()
        one.open(f"/reports/new?plan={plan}")
        for name, text in TEXTS.items():
            page.fill(f"#{name}", text)
        page.fill("#write-passphrase", one.passphrase)
        one.press("Write and sign")
        one.says("The report holds.", 30)
        (report,) = (one.layout.regulator / "reports").iterdir()
        draw(one, "report", f"/reports/{report.name}", narrow=True)


if __name__ == "__main__":
    main()
