"""The examples of docs/examples run as they stand, and do what their prose says."""

from __future__ import annotations

import json
import runpy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jupytext
import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "examples"
NOTEBOOKS = ("rehearsal", "federation", "pf_ld_torch", "audit", "tuning")
SCRIPTS = ("lightgbm_model", "mlflow_model")

Run = Callable[[str], dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs an example in an empty folder; returns its variables."""
    monkeypatch.chdir(tmp_path)
    return lambda name: runpy.run_path(str(FOLDER / f"{name}.py"))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_has_prose_and_code_in_turn(name: str) -> None:
    cells = jupytext.read(FOLDER / f"{name}.py").cells
    kinds = [cell.cell_type for cell in cells]
    assert kinds[0] == "markdown"
    assert cells[0].source.startswith("# ")
    assert kinds.count("markdown") >= 3
    assert kinds.count("code") >= 3
    assert "markdown markdown" not in " ".join(kinds)


def test_the_page_lists_every_example() -> None:
    page = (FOLDER / "README.md").read_text()
    listed = {f"{name}.py" for name in (*NOTEBOOKS, *SCRIPTS)}
    assert {path.name for path in FOLDER.glob("*.py")} == listed
    for name in listed:
        assert f"[{name}]({name})" in page
        assert len((FOLDER / name).read_text().splitlines()) <= 75


def test_rehearsal(run: Run) -> None:
    names = run("rehearsal")
    assert names["before"] > 0.08
    assert names["after"] < names["before"]
    assert 0.5 < names["spent"] <= 1.0
    assert Path("groups.svg").read_text().startswith("<svg")
    assert "accuracy" in Path("frontier.html").read_text()


def test_federation(run: Run) -> None:
    names = run("federation")
    assert 2.7 <= names["spent"] <= 3.0
    assert "the report holds" in names["verified"].log.read_text()
    assert [
        audit["name"] for audit in json.loads(Path("report/report.json").read_text())["audits"]
    ] == ["before", "after"]
    assert Path("report/report.html").is_file()
    assert names["outcome"]["relay"]["bytes"] > 100_000


def test_pf_ld_on_a_torch_model(run: Run) -> None:
    names = run("pf_ld_torch")
    assert names["result"].stopped == "rounds"
    assert len(names["result"].history) == 12
    assert 2.7 < names["result"].epsilons.spent <= 3.0  # a tenth is kept for audits
    assert names["accuracy"] > 0.65
    assert "not a guarantee" in Path("history.html").read_text()


def test_audit(run: Run) -> None:
    names = run("audit")
    assert names["difference"].low > 0.02  # the true difference is about .12
    assert names["budget"].spent_epsilon < names["budget"].cap_epsilon


def test_tuning(run: Run) -> None:
    names = run("tuning")
    assert names["spent"] == names["oracle"].budget.spent_epsilon
    assert names["again"].report_.reused
    assert names["looser"].report_.tolerance == 0.05


def test_lightgbm(run: Run) -> None:
    pytest.importorskip("lightgbm", reason="LightGBM is not installed")
    names = run("lightgbm_model")
    assert 0.5 < names["oracle"].budget.spent_epsilon <= 1.0
    assert names["model"].report_.notion == "equal_opportunity"


def test_mlflow(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "")  # the example sets it: put back afterwards
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow, about its own stores
        pytest.importorskip("mlflow", reason="the extra isonomy[mlflow] is not installed")
        names = run("mlflow_model")
    assert (names["again"].predict(names["X"]) == names["model"].predict(names["X"])).all()
    assert list(Path("mlruns").rglob("report.json"))
