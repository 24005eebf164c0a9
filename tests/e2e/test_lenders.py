"""Three lenders and a regulator through Flower: every command and script of docs/pooling.md.

Server, four nodes, the regulator's daemon and three lenders' scripts are processes of their own,
with TLS between them and keys that never left their owners. The lenders ask together, train each a
fair model of its own, and have it audited alone and together, while every query is inspected. Only
the daemon's noise is a test's: counted, so that some questions, asked before the page's script,
must give the same bits as at one company that holds everybody.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from federation import CountedNoise, custodian_with_noise
from page_kit import DOCS, Block, Walk, blocks
from server_kit import certify, make_server, run, start_node
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import isonomy.company as sdk
from isonomy.common.agreements.plan import Plan
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.people.cohort import AttributeTable, Cohort
from isonomy.common.privacy.accounting import units_for
from isonomy.common.privacy.queries import asks_alone
from isonomy.common.report.schema import ReportFile
from isonomy.common.sums.local import LocalChannel
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.cli.company import app as company_app
from isonomy.company.demo.processes import Processes, Running
from isonomy.company.federation.joining import join
from isonomy.regulator.cli import app as regulator_app
from isonomy.regulator.plans.plan_files import ledger_state

PAGE = DOCS / "pooling.md"
SIZES = {"first": 90, "second": 170, "third": 110}
COMPANIES = tuple(SIZES)
PEOPLE = [f"person-{number}" for number in range(sum(SIZES.values()))]
GROUPS = {"sex": ("f", "m")}
VALUES = ["f" if number % 3 else "m" for number in range(len(PEOPLE))]
RNG = np.random.default_rng(11)
ROWS = RNG.normal(size=(len(PEOPLE), 4))
TABLE = pd.DataFrame(
    {
        "age": RNG.integers(18, 80, len(PEOPLE)),
        "income": np.where(np.array(VALUES) == "f", 30.0, 45.0) + RNG.normal(0, 12, len(PEOPLE)),
        "home": RNG.choice(["rent", "own"], len(PEOPLE)),
    }
)
REPAID = (TABLE["income"] + RNG.normal(0, 8, len(PEOPLE)) > 35).to_numpy().astype(int)
SHARE, EPSILON, DELTA = 0.1, "60", "1e-6"

LOCAL = {  # in the place of the page's own values
    "server.example.org": "localhost",
    "--epsilon 0.5": f"--epsilon {EPSILON} --delta {DELTA}",
    "--inspection-rate 0.1": "--inspection-rate 1",
    "random_state=0": "audits=2, random_state=0",
    "-o reports": "--reason a --alternatives b --access c --retention d -o reports",
}
COMPANY = """
import os, sys
sys.path[:0] = sys.argv[3].split(":")
os.chdir(sys.argv[1])
from test_lenders import lend
lend(sys.argv[2])
"""
REGULATOR = """
import sys
sys.path[:0] = sys.argv[2].split(":")
from federation import CountedNoise, custodian_with_noise
from isonomy.regulator.serving import _plan_desks as plan_desks
from isonomy.regulator.cli import app
def counted(*given, **options):
    return custodian_with_noise(*given, **options, source=CountedNoise(1))
plan_desks.Custodian = counted
sys.argv[1:] = ["serve", "--home", sys.argv[1]]
app()
"""
TESTS = ":".join(
    str(folder) for folder in (Path(__file__).parents[1] / "kits", Path(__file__).parent)
)


def share_of(name: str) -> slice:
    start = sum(SIZES[each] for each in COMPANIES[: COMPANIES.index(name)])
    return slice(start, start + SIZES[name])


def script(oracle: GroupOracle, own: slice) -> list[list[str]]:
    """What every company asks, each about its own people; the answers as exact text."""
    places = np.arange(own.start, own.stop)
    some = places[places % 4 != 0]
    releases = [
        oracle.counts(places % 3, share=SHARE),
        oracle.blind_sum(ROWS[own], norm=2.3, share=SHARE),
        oracle.blind_sum(ROWS[some], norm=1.1, people=some - own.start, share=SHARE),
    ]
    return [[float(value).hex() for value in release.values.ravel()] for release in releases]


def lend(name: str) -> None:
    """One lender's process: the page's script on its own people, after the test's questions."""
    share = share_of(name)

    @contextmanager
    def joined(plan: str, *, home: str) -> Iterator[GroupOracle]:
        with join(plan, home=home, wait_s=120) as oracle:
            save(Path(name) / "values.json", script(oracle, share))
            yield oracle

    sdk.join = joined  # where the page imports it from
    coded = ColumnTransformer([("home", OneHotEncoder(), ["home"])], remainder="passthrough")
    walk = Walk(Path(), LOCAL)
    walk.names |= {
        "X": TABLE.iloc[share].reset_index(drop=True),
        "y": REPAID[share],
        "ids": PEOPLE[share],
        "base": make_pipeline(coded, StandardScaler(), LogisticRegression()),
    }
    (block,) = blocks(PAGE, "3. Train")
    walk.run(as_typed_by(name, block))
    results = {each: walk.names[each].counts.counts.tolist() for each in ("ours", "joint")}
    save(Path(name) / "lent.json", {**results, "selected": int(walk.names["decisions"].sum())})


def as_typed_by(name: str, block: Block) -> Block:
    """A block for every lender: the page has what the first one types."""
    return replace(block, text=block.text.replace("first", name))


def save(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values))


def alone(folder: Path) -> list[list[str]]:
    """The same script at one company that holds everybody, with the same noise."""
    table = AttributeTable(Cohort.of(PEOPLE), {"sex": VALUES}, GROUPS)
    cap, plan = units_for(float(EPSILON), float(DELTA)), bytes(32)
    with Ledger.create(folder / "alone.jsonl", cap_units=cap, delta=float(DELTA)) as ledger:
        custodian = custodian_with_noise(
            table, ledger, plan=plan, member_key=b"k" * 32, source=CountedNoise(1)
        )
        custodian.reserve(cap)
        channel = LocalChannel(table, custodian, plan=plan, cap_units=cap, delta=float(DELTA))
        return script(GroupOracle(channel), slice(0, len(PEOPLE)))


class Town:
    """The folders of all parties below one root, and their processes."""

    def __init__(self, root: Path, processes: Processes, walk: Walk) -> None:
        self.root, self.processes, self.walk = root, processes, walk
        self.config = str(root / "server" / "server.toml")

    # --- Once: keys, certificates, people, plan, approvals ------------------------------------

    def prepare(self) -> None:
        root, home = self.root, str(self.root / "regulator")
        make_server(root)
        run(
            regulator_app,
            *("init", home, "--epsilon", EPSILON, "--delta", DELTA, "--groups", "sex=f,m"),
            *("--complete", "sex"),
            *("--unlock-file", str(root / "unlock.key")),
        )
        for name in COMPANIES:
            run(company_app, "keys", "--name", name, "--home", str(root / name))
            run(company_app, "tls-request", "--home", str(root / name))
        certify(root, (*COMPANIES, "regulator"))
        self.enrol()
        self.agree()

    def enrol(self) -> None:
        path = self.root / "attributes.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([("id", "sex"), *zip(PEOPLE, VALUES, strict=True)])
        home = str(self.root / "regulator")
        run(regulator_app, "enroll", str(path), "--attribute", "sex", "--home", home)

    def agree(self) -> None:
        """Sections 1 and 2 of the page, with the files that it assumes."""
        for name in COMPANIES:
            ids = PEOPLE[share_of(name)]
            Path(f"{name}.txt").write_text("".join(f"{person}\n" for person in ids))
            TABLE.iloc[share_of(name)].to_csv(f"{name}.csv", index=False)
        for name in (*COMPANIES, "regulator"):
            shutil.copy(Path(name) / "keys" / "card.json", f"{name}-card.json")
        (columns,) = re.findall(r'```text title="columns.csv"\n(.*?)```', PAGE.read_text(), re.S)
        Path("columns.csv").write_text(columns)
        for section in ("1. Agree on the columns", "2. Plan and approve"):
            for block in blocks(PAGE, section):
                for name in COMPANIES if block.title == "every lender" else COMPANIES[:1]:
                    self.walk.run(as_typed_by(name, block))

    # --- A session ----------------------------------------------------------------------------

    def hold_session(self) -> dict[str, Any]:
        """Everything up, a whole session, its outcome as the server prints it."""
        processes = self.processes
        server = processes.start("server", ["isonomy-server", "serve", "-c", self.config])
        daemon = self.python("regulator", REGULATOR, str(self.root / "regulator"), TESTS)
        scripts = [self.python(name, COMPANY, str(self.root), name, TESTS) for name in COMPANIES]
        for name in (*COMPANIES, "regulator"):
            start_node(processes, self.root, name)
        processes.until(lambda: server.says('"ready"'), "the server", 90.0)
        processes.until(lambda: daemon.says('"ready"'), "the regulator", 90.0)
        public = str(self.root / "plan.public.json")
        session = processes.start(
            "run", ["isonomy-server", "run", public, "-c", self.config, "--json"]
        )
        for running in scripts:
            processes.finish(running, 180.0)
        processes.finish(session, 90.0)
        lines = [line for line in session.log.read_text().splitlines() if line.startswith("{")]
        return dict(json.loads(lines[-1]))

    def python(self, name: str, text: str, *arguments: str) -> Running:
        return self.processes.start(name, [Path(sys.executable).name, "-c", text, *arguments])


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    with Processes(tmp_path / "logs") as processes, Walk(tmp_path, LOCAL) as walk:
        town = Town(tmp_path, processes, walk)
        town.prepare()
        yield town


def test_three_lenders_train_and_each_gets_its_report(town: Town) -> None:
    outcome = town.hold_session()
    expected, ledger = alone(town.root), town.root / "regulator" / "ledger.jsonl"
    lent = {}
    for name in COMPANIES:
        got = json.loads((town.root / name / "values.json").read_text())
        assert got == expected, f"{name} got other sums than one company would"
        lent[name] = json.loads((town.root / name / "lent.json").read_text())
    assert {party["code"] for party in outcome["parties"].values()} == {0}
    one, *others = (each["joint"] for each in lent.values())
    assert all(other == one for other in others), "one answer for all"
    assert len({json.dumps(each["ours"]) for each in lent.values()}) == 3
    plan = Plan.load(town.root / "plan.json")
    books = ledger_state(ledger)
    inspections, answers = books.inspections(plan.hash), books.answers(plan.hash)
    assert {each.step for each in inspections} == {"passed"}
    assert len(inspections) == answers, "every query was inspected"
    for name in COMPANIES:
        check_report(town, plan, name, lent[name])
    no_key_left_its_owner(town.root)


def check_report(town: Town, plan: Plan, name: str, lent: dict[str, Any]) -> None:
    """A signed report about one lender: its own audit, and that of all; nobody else's."""
    for block in blocks(PAGE, "4. Report"):
        town.walk.run(as_typed_by(name, block))
    root, out = town.root, town.root / "reports" / name
    card, books = root / "regulator" / "keys" / "card.json", root / "regulator" / "ledger.jsonl"
    run(regulator_app, "verify", str(out), "--card", str(card), "--ledger", str(books))
    report = ReportFile.load(out / "report.json")
    together, own = report.audits
    assert own.people == SIZES[name]
    assert together.people == len(PEOPLE)
    assert sum(together.totals) == 1_000_000 * len(PEOPLE)
    assert all(audit.tables for audit in report.audits), "rates of both"
    assert sum(own.totals) == 1_000_000 * SIZES[name]
    assert own.totals[1] + own.totals[3] == 1_000_000 * lent["selected"]
    assert f"This report is about {name}" in (out / "report.html").read_text()
    others = set(COMPANIES) - {name}
    own_queries = [audit.query_id for audit in report.audits]
    assert not [q for q in own_queries if asks_alone(q, plan.hash) in map(COMPANIES.index, others)]


def no_key_left_its_owner(root: Path) -> None:
    for name in (*COMPANIES, "regulator"):
        key = (root / name / "tls" / "tls.key").read_bytes()
        holders = [file for file in root.rglob("*") if file.is_file()]
        assert [f for f in holders if f.read_bytes() == key] == [root / name / "tls" / "tls.key"]
