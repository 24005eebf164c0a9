"""`apply-rule`: forbidden by default, loud, noted, and the same coins however often it is run."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from regulator_kit import Regulator

from isonomy.common.agreements.decision_rule import DecisionRule
from isonomy.common.ledger.ledger import verify_ledger
from isonomy.regulator.report.rule_application import coins

RULE = DecisionRule(
    attribute="sex",
    groups=("female", "male"),
    notion="equal_fpr",
    if_zero=(0, 1_000_000),
    if_one=(500_000, 1_000_000),
)


@pytest.fixture
def regulator(tmp_path: Path) -> Regulator:
    made = Regulator.create(tmp_path, people=40)
    (tmp_path / "rule.json").write_bytes(RULE.to_json())
    lines = [f"person-{n},{n % 2}" for n in range(40)]
    (tmp_path / "base.csv").write_text("\n".join(["id,decision", *lines]) + "\n")
    return made


def allow(regulator: Regulator) -> None:
    regulator.change("apply_rules = false", "apply_rules = true")


def run(regulator: Regulator, out: str = "final.csv", *more: str):
    folder = regulator.folder
    given = ("--decisions", folder / "base.csv", "-o", folder / out, "--yes", *more)
    return regulator.run("apply-rule", folder / "rule.json", *given)


def decisions(path: Path) -> dict[str, str]:
    with path.open() as file:
        return {row["id"]: row["decision"] for row in csv.DictReader(file)}


def test_forbidden_unless_the_policy_allows_it(regulator: Regulator) -> None:
    done = run(regulator)
    assert done.code == 51
    assert "apply_rules" in done.stderr
    assert not (regulator.folder / "final.csv").exists()
    assert not regulator.config.ledger_path.exists()


def test_it_decides_by_the_vaults_attributes(regulator: Regulator) -> None:
    allow(regulator)
    done = run(regulator, "final.csv", "--json")
    assert done.code == 0, done.stderr
    assert "WARNING" in done.stderr
    assert "No ε covers this" in done.stderr
    assert done.json["people"] == 40
    path = regulator.folder / "final.csv"
    assert path.stat().st_mode & 0o777 == 0o600
    found = decisions(path)
    for n in range(40):
        if n % 3 == 0:  # male: always 1
            assert found[f"person-{n}"] == "1"
        elif n % 2 == 0:  # female, base decision 0: always 0
            assert found[f"person-{n}"] == "0"
    coin = [found[f"person-{n}"] for n in range(40) if n % 3 and n % 2]
    assert set(coin) == {"0", "1"} or len(coin) < 10
    assert verify_ledger(regulator.config.ledger_path).debits == 0
    assert f'"{RULE.hash}"' in regulator.config.ledger_path.read_text()


def test_a_second_run_tosses_no_new_coins(regulator: Regulator) -> None:
    allow(regulator)
    assert run(regulator).code == 0
    assert run(regulator, "again.csv").code == 0
    folder = regulator.folder
    assert decisions(folder / "final.csv") == decisions(folder / "again.csv")
    assert run(regulator).code == 10  # never over an old file


def test_coins_are_uniform_and_differ_by_key() -> None:
    ids = [f"p{n}" for n in range(20_000)]
    drawn = coins(ids, b"k" * 32)
    assert 0 <= drawn.min() <= drawn.max() < 1_000_000
    assert abs(drawn.mean() - 499_999.5) < 6 * 288_675 / 20_000**0.5
    assert (drawn != coins(ids, b"l" * 32)).mean() > 0.99


@pytest.mark.parametrize(
    ("content", "code", "text"),
    [
        ("id,decision\nperson-1,2\n", 12, "0 or 1"),
        ("id,decision\nperson-1,1\nperson-1,0\n", 12, "more than once"),
        ('id,decision\n"=HYPERLINK(""x"")",1\n', 12, "line 2: a spreadsheet would take"),
        ("id,decision\n-1,1\n", 12, "formula"),
        ("id,decision\nnobody,1\n", 12, "not enrolled"),
        ("id,decision\n", 12, "no decisions"),
        ("who,what\na,1\n", 12, "no column"),
    ],
)
def test_bad_decisions(regulator: Regulator, content: str, code: int, text: str) -> None:
    allow(regulator)
    (regulator.folder / "base.csv").write_text(content)
    done = run(regulator)
    assert (done.code, text in done.stderr) == (code, True), done.stderr
    assert "nobody" not in done.stderr
    assert not (regulator.folder / "final.csv").exists()


def test_bad_rules(regulator: Regulator) -> None:
    allow(regulator)
    path = regulator.folder / "rule.json"
    path.write_bytes(b"{}")
    assert run(regulator).code == 10
    other = RULE.model_copy(update={"groups": ("male", "female")})
    path.write_bytes(other.to_json())
    done = run(regulator)
    assert done.code == 10
    assert "female, male" in done.stderr
    assert not regulator.config.ledger_path.exists()
