"""A new officer in a real browser: every click from `init` to the first approval is counted."""

from __future__ import annotations

import re
from pathlib import Path

from authority_kit import authority
from browser_kit import barriers, browser, chromium, new_context, overflows
from console_kit import handed_over
from page_kit import DOCS, blocks
from playwright.sync_api import Page, expect
from regulator_kit import Regulator, run_regulator

from isonomy.common.keys.certificates import Request, sign_request
from isonomy.company.demo.processes import Processes
from isonomy.regulator.config.config import RegulatorConfig

PAGES = ("/", "/inbox", "/live", "/companies", "/ledger", "/reports", "/reports/new", "/people")


class Officer:
    """Counts clicks and passphrases. Choosing files and typing are no clicks."""

    def __init__(self, page: Page, passphrase: str) -> None:
        self.page, self._passphrase = page, passphrase
        self.clicks: dict[str, int] = {}
        self.passphrases = 0

    def open(self, name: str) -> None:
        """Open a page by the menu."""
        self._at = name
        self._click(self.page.locator("nav").get_by_role("link", name=name, exact=True))

    def press(self, name: str) -> None:
        self._click(self.page.locator("main").get_by_role("button", name=name, exact=True))

    def save(self, name: str) -> Path:
        with self.page.expect_download() as saved:
            self._click(self.page.locator("main").get_by_role("link", name=name, exact=True))
        return Path(saved.value.path())

    def tick_all(self) -> None:
        boxes = self.page.locator("main input[type=checkbox]")
        for number in range(boxes.count()):
            self._click(boxes.nth(number))

    def prove(self, field: str) -> None:
        self.passphrases += 1
        self.page.fill(f"#{field}-passphrase", self._passphrase)

    def reads(self, text: str) -> None:
        expect(self.page.locator("main")).to_contain_text(text, timeout=20_000)

    def _click(self, target: object) -> None:
        self.clicks[self._at] = self.clicks.get(self._at, 0) + 1
        target.click()  # type: ignore[attr-defined]


def test_a_new_officer(tmp_path: Path) -> None:
    chromium()
    unlock = tmp_path / "vault.key"
    init = ("--groups", "sex=female,male", "--complete", "sex", "--epsilon", "2")
    made = run_regulator("init", tmp_path / "home", *init, "--unlock-file", unlock)
    assert made.code == 0, made.stderr
    regulator = Regulator(tmp_path, RegulatorConfig.load(tmp_path / "home"))
    with Processes(tmp_path / "logs") as processes, browser() as chrome:
        step = next(blocks(DOCS / "console.md")[0].steps())
        command = step.command.replace("/srv/regulator", str(regulator.home)).split()
        console = processes.start("console", [*command, "--port", "0"])
        processes.until(lambda: console.says("/login?token="), "the console", 60)
        assert re.match(r"http://isonomy-[0-9a-f]{16}\.localhost:", console.log.read_text())
        assert step.output[0].startswith("http://isonomy-")
        page = new_context(chrome).new_page()
        page.goto(console.log.read_text().strip())
        page.wait_for_selector("nav")
        officer = Officer(page, unlock.read_text().strip())
        empty_pages_say_what_to_do_first(page)
        the_certificate_is_asked_for_and_installed(officer, tmp_path)
        people_are_enrolled(officer, tmp_path)
        processes.start("daemon", ["isonomy-regulator", "serve", "--home", str(regulator.home)])
        a_plan_is_approved(officer, regulator)
    assert officer.clicks == {"Upkeep": 4, "People": 4, "Inbox": 5}  # docs/console.md
    assert officer.passphrases == 4


def empty_pages_say_what_to_do_first(page: Page) -> None:
    base = page.url.rstrip("/")
    words = {"/": "First steps", "/people": "Nobody is enrolled", "/reports": "write one"}
    for path in PAGES:
        page.goto(base + path)
        assert barriers(page) == [], path
        expect(page.locator("main")).to_contain_text(words.get(path, ""))
        page.set_viewport_size({"width": 400, "height": 800})
        assert not overflows(page), path
        page.set_viewport_size({"width": 1200, "height": 900})
        page.emulate_media(media="print")  # paper has the content, and nothing to press
        assert not page.locator("nav").is_visible()
        assert page.locator("h1").is_visible()
        assert not page.locator("main button >> visible=true").count()
        page.emulate_media(media="screen")
    page.goto(base)


def the_certificate_is_asked_for_and_installed(officer: Officer, folder: Path) -> None:
    officer.open("Upkeep")
    assert b"ed25519" in officer.save("Save card.json").read_bytes()
    raw = officer.save("Save tls.csr").read_bytes()
    request = Request.parse(raw, folder / "tls.csr")
    signed = sign_request(authority(folder / "ca"), request, folder / "signed")
    officer.page.set_input_files("#pem", [signed.cert, signed.ca])
    officer.prove("install")
    officer.press("Install a certificate")
    officer.reads("Installed, valid until")


def people_are_enrolled(officer: Officer, folder: Path) -> None:
    people = Regulator.people(40).items()
    path = folder / "people.csv"
    path.write_text("id,sex\n" + "".join(f"{person},{value}\n" for person, value in people))
    officer.open("People")
    officer.page.set_input_files("#file", path)
    officer.press("Look at it")
    officer.prove("check")
    officer.press("What would change?")
    officer.reads("40 people would be added")
    officer.prove("check")
    officer.press("Enroll")
    officer.reads("Enrolled: 40 added")


def a_plan_is_approved(officer: Officer, regulator: Regulator) -> None:
    plan = regulator.plan_file(groups={"sex": ("female", "male")})
    names = [name for _, (name, _) in handed_over(plan)]
    officer.open("Inbox")
    officer.page.set_input_files("#files", [plan.parent / name for name in names])
    officer.press("Show the plan")
    officer.reads("Your policy allows this plan.")
    officer.tick_all()
    officer.prove("approve")
    officer.press("Approve")
    officer.reads("Approved: test")
