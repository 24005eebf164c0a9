"""The How-to pages, run in one federation: every command and every Python block, in order.

Server, regulator's daemon and both nodes are processes of their own; the people are made up. The
pages tell one story: whom both sides know, a plan about them, a model, audits, reports,
inspections.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
from page_kit import DOCS, Block, Walk, blocks
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from isonomy.company.demo.federation import Federation
from isonomy.company.demo.layout import DemoSettings, Layout
from isonomy.company.demo.population import read_company
from isonomy.company.demo.prepare import prepare
from isonomy.company.demo.processes import Processes, program


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Walk]:
    """Homes of all parties in one folder, their processes, and the tables that pages assume."""
    layout = Layout.make(tmp_path / "run")
    with Processes(layout.logs) as processes, Walk(layout.root) as walk:
        prepare(layout, DemoSettings(people=1_200, epsilon="6"), processes, approved=False)
        federation = Federation(layout, processes)
        federation.start()
        features, target, ids, _ = read_company(layout)
        walk.names |= {
            "X": pd.get_dummies(features).astype(float),
            "y": target,
            "ids": ids,
            "estimator": make_pipeline(StandardScaler(), LogisticRegression()),
        }
        Path("ids.txt").write_text("\n".join(ids))
        decisions = pd.DataFrame({"id": ids, "decision": target, "label": target})
        decisions.to_csv("after.csv", index=False)
        federation.wait()
        yield walk


def test_align_train_report_and_inspect(town: Walk) -> None:
    town.page("alignment.md")
    (tutorial,) = [block for block in blocks(DOCS / "quickstart.md") if "join(" in block.text]
    with session():
        town.run(tutorial)
    model, table = town.names["model"], town.names["X"]
    town.names |= {"decisions": model.predict(table), "target": town.names["y"]}
    join, *rest = blocks(DOCS / "reports.md")
    with session():
        town.run(join)  # an audit
    for block in rest:
        if "reports/autumn" in block.text:
            write_autumn(town)
        town.run(block)
    assert "Local Law 144" in Path("reports/spring/report.html").read_text()
    town.page("inspection.md")
    town.page("operations.md")


@contextmanager
def session(plan: str = "plan") -> Iterator[None]:
    """The operator's `isonomy-server run`, beside a script that joins."""
    command = ["isonomy-server", "run", f"{plan}.public.json", "-c", "server/server.toml"]
    operator = subprocess.Popen([program(command[0]), *command[1:]])
    yield
    assert operator.wait(60) == 0


def write_autumn(walk: Walk) -> None:
    """A second report of the same company, about the same plan, in other words."""
    spring = next(b for b in blocks(DOCS / "reports.md") if "-o reports/spring" in b.text)
    report = next(spring.steps()).command.replace("reports/spring", "reports/autumn")
    report = report.replace("To see", "Once more, to see")  # else, in one second, the same bytes
    walk.run(Block("console", "", f"$ {report}\n…\n"))
