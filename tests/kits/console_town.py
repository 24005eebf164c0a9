"""A whole federation with the officer's console, and a browser in front of it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from browser_kit import browser, new_context
from playwright.sync_api import Page, expect

from isonomy.common.agreements.approvals import sign_agreement
from isonomy.common.agreements.plan import Plan
from isonomy.common.keys.party import PartyKeys
from isonomy.common.people.cohort import Cohort
from isonomy.company.demo.federation import Federation
from isonomy.company.demo.layout import DemoSettings, Layout
from isonomy.company.demo.population import Population
from isonomy.company.demo.prepare import prepare
from isonomy.company.demo.processes import Processes, Running
from isonomy.company.federation.planning import PlanFiles, make_plan, write_plan

PAGES = ("/", "/inbox", "/live", "/companies", "/ledger", "/reports", "/people", "/upkeep")
TEXTS = {
    "reason": "To see whether loans are granted alike.",
    "alternatives": "No other data tell who is a woman.",
    "access": "Officer Kim, in March.",
    "retention": "On 2027-12-31.",
}
SCRIPT = """
import sys, time
from pathlib import Path
from isonomy.company.federation.auditing import audit
from isonomy.company.federation.joining import join
root = Path(sys.argv[1])
with join(root / "plan.json", home=root / "company") as oracle:
    for number in range(4):
        oracle.counts(share=0.05, purpose=f"question <{number}>")
        while not (root / f"go-{number}").exists():
            time.sleep(0.1)
    decisions = [number % 2 for number in range(PEOPLE)]
    audit(
        oracle, decisions, ids=oracle.cohort.ids, name="loans", share=0.5, whose="live"
    )
"""


@dataclass
class Town:
    """All processes of a federation, and the officer's browser."""

    layout: Layout
    processes: Processes
    population: Population
    page: Page
    base: str
    daemon: Running
    federation: Federation
    clicks: dict[str, int] = field(default_factory=dict)

    @property
    def passphrase(self) -> str:
        return self.layout.regulator_unlock.read_text().strip()

    @property
    def plan(self) -> Plan:
        return Plan.load(self.layout.plan)

    def open(self, path: str) -> None:
        self.page.goto(self.base + path)

    def press(self, name: str, what: str = "") -> None:
        """Press a button, and count it among the clicks for `what`."""
        self.count(what)
        self.page.locator("main").get_by_role("button", name=name, exact=True).click()

    def follow(self, name: str, what: str = "") -> None:
        """Follow a link, and count it."""
        self.count(what)
        self.page.locator("main").get_by_role("link", name=name, exact=True).click()

    def count(self, what: str) -> None:
        if what:
            self.clicks[what] = self.clicks.get(what, 0) + 1

    def upload_plan(self, path: Path) -> None:
        """Put the three files of a plan into the inbox's form."""
        files = PlanFiles.beside(path)
        self.open("/inbox")
        own = [files.plan, files.people, path.with_suffix(".company.sig")]
        self.page.set_input_files("#files", own)

    def second_plan(self, name: str = "once more <b>") -> Path:
        """Another plan of the company, about the same people, signed."""
        keys, plan = PartyKeys.load(self.layout.company.keys_folder), self.plan
        another, cohort = make_plan(
            name=name,
            companies=[(keys.card(), Cohort.of(self.population.training_ids))],
            regulator=plan.regulator,
            relay_name=plan.relay_name,
            groups=plan.groups,
            notion=plan.notion,
            strategy=plan.strategy,
            tolerance="0.01",
            epsilon="1",
            delta="1e-6",
        )
        path = self.layout.root / "second.json"
        write_plan(another, cohort, path)
        sign_agreement(another, path, keys)
        return path

    def says(self, text: str, timeout_s: float = 10.0) -> None:
        expect(self.page.locator("main")).to_contain_text(text, timeout=1000 * timeout_s)

    def start_company(self) -> Running:
        """Start the company's script, which waits for a file go-N after each question."""
        text = SCRIPT.replace("PEOPLE", str(self.plan.cohort_size))
        command = [Path(sys.executable).name, "-c", text, str(self.layout.root)]
        return self.processes.start("company", command)

    def go(self, *numbers: int) -> None:
        """Let the company ask on."""
        for number in numbers:
            (self.layout.root / f"go-{number}").touch()

    def start_daemon(self) -> Running:
        config = str(self.layout.regulator_config)
        command = ["isonomy-regulator", "serve", "-c", config]
        daemon = self.processes.start("regulator", command)
        self.processes.until(lambda: daemon.says('"ready"'), "the daemon", 60)
        return daemon


@contextlib.contextmanager
def town(folder: Path, people: int = 1000) -> Iterator[Town]:
    """A federation whose plan waits for approval, and a browser that is logged in."""
    layout = Layout.make(folder / "run")
    with Processes(layout.logs) as processes, browser() as chrome:
        settings = DemoSettings(people=people, epsilon="2")
        population = prepare(layout, settings, processes, approved=False)
        federation = Federation(layout, processes)
        federation.start()
        home = str(layout.regulator)
        command = ["isonomy-regulator", "console", "--home", home, "--port", "0"]
        console = processes.start("console", command)
        processes.until(lambda: console.says("/login?token="), "the console", 60)
        address = console.log.read_text().strip()
        page = new_context(chrome).new_page()
        page.goto(address)
        page.wait_for_selector("nav")
        base = address.partition("/login")[0]
        daemon = federation._regulator
        yield Town(layout, processes, population, page, base, daemon, federation)
