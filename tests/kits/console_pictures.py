"""Draw docs/images/console-*.png anew: `make docs-pictures`. Needs Chromium.

A real federation on this machine, with invented people; the pictures are of its console.
With a folder as argument, every page is drawn there: light, dark and narrow.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from console_town import PAGES, TEXTS, Town, town
from playwright.sync_api import Page

IMAGES = Path(__file__).parents[2] / "docs" / "images"
LOOKS = {"light": (1100, "light"), "dark": (1100, "dark"), "narrow": (400, "light")}
SHOWN = {"today": "light", "plan": "light", "session": "dark", "report": "narrow"}


def draw(page: Page, name: str, folder: Path | None) -> None:
    """Draw what the browser shows now: for the docs, or in all looks into a folder."""
    looks = LOOKS if folder else {SHOWN[name]: LOOKS[SHOWN[name]]} if name in SHOWN else {}
    for look, (width, scheme) in looks.items():
        page.set_viewport_size({"width": width, "height": 760})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        path = folder / f"{name}-{look}.png" if folder else IMAGES / f"console-{name}.png"
        page.screenshot(path=path, full_page=folder is not None or name != "report")
    page.set_viewport_size({"width": 1100, "height": 760})
    page.emulate_media(color_scheme="light")


def day(one: Town, folder: Path | None) -> None:
    """Walk through the pages, and draw them where something is to see."""
    page = one.page
    one.upload_plan(one.layout.plan)
    one.press("Show the plan")
    draw(page, "plan", folder)
    boxes = page.locator("input[type=checkbox]")
    for number in range(boxes.count()):
        boxes.nth(number).check()
    page.fill("#approve-passphrase", one.passphrase)
    one.press("Approve")
    one.follow(one.plan.name)
    company = one.start_company()
    one.federation.open_session()
    one.go(0, 1, 2)
    one.says("4 answered", 120)
    draw(page, "session", folder)
    one.upload_plan(one.second_plan("loans of the autumn"))
    one.press("Show the plan")
    draw(page, "plan-refused", folder)
    one.open("/")
    draw(page, "today", folder)
    one.go(3)
    one.processes.finish(company)
    one.federation.outcome()
    one.open(f"/reports/new?plan={one.plan.hash.hex()}")
    for name, text in TEXTS.items():
        page.fill(f"#{name}", text)
    page.fill("#write-passphrase", one.passphrase)
    draw(page, "report-new", folder)
    one.press("Write and sign")
    one.says("The report holds.", 30)
    draw(page, "report", folder)
    one.open("/people")
    path = one.layout.root / "more.csv"
    first = one.population.labels[0]
    path.write_text(f"id,{one.population.attribute}\nnew-1,{first}\nnew-2,f\n")
    page.set_input_files("#file", path)
    one.press("Look at it")
    page.get_by_label("“f”").select_option(first)
    page.select_option("#mode", "update")
    page.fill("#check-passphrase", one.passphrase)
    one.press("What would change?")
    draw(page, "people-file", folder)
    for address in PAGES:
        one.open(address)
        draw(page, address.strip("/") or "today-later", folder)
    key = page.context.request.get(f"{one.base}/companies").text().split("/companies/")[1][:32]
    one.open(f"/companies/{key}")
    draw(page, "company", folder)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory() as place, town(Path(place), people=4000) as federation:
        day(federation, target)
