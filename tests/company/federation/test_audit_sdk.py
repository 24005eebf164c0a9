"""`audit`: what it asks, what it refuses, and what it tells the ledger."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_kit import Audited, audited_run

from isonomy.common.base.errors import BudgetExceeded, ConfigError, DataError
from isonomy.common.privacy.declarations import Audit, Declaration
from isonomy.common.report.schema import Statement
from isonomy.common.sums.local import LocalOracle
from isonomy.company.federation.auditing import audit, audit_scores, price
from isonomy.company.federation.decisions import numbers, read_decisions
from isonomy.company.federation.statement import add_to_statement


@pytest.fixture
def run(tmp_path: Path) -> Audited:
    return audited_run(tmp_path, groups=1)


def test_a_declaration_is_read_back_as_it_was_written() -> None:
    for content in (
        Audit("before", "yd", (1000, 20_000, 0, 999_999_000), "1"),
        Audit("spring audit", "d", (12_500, 3_250), "granted: yes"),
        Audit("joint", "yd", (), "1", "held out"),
        Audit("june", "d", (), "1", "live", "ab" * 32),
    ):
        assert Declaration.from_text(Declaration(content).to_text()).content == content


@pytest.mark.parametrize(
    "fields",
    [
        ("A", "yd", (), "1"), ("a", "zz", (), "1"), ("a", "yd", (1, 1, 1), "1"),
        ("a", "d", (-1, 1), "1"), ("a", "d", (1, 1), ""), ("a", "d", (1, 1), "two\nlines"),
        ("a", "d", (2**53, 1), "1"), ("a" * 25, "d", (), "1"),
        ("a", "d", (), "1", "everybody"), ("a", "d", (), "1", "live", "ab" * 31),
    ],
)  # fmt: skip
def test_anything_else_is_not_an_audit(fields: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError):
        Audit(*fields)


def test_one_query_and_the_stated_price(run: Audited) -> None:
    cost = price(run.oracle, share=0.1)
    found = audit(run.oracle, run.before, run.label, name="before", share=0.1)
    assert run.ledger.records == 5  # open, key, people, reserve, and one debit
    record = run.ledger.find(found.receipt.query_id)
    assert record is not None
    assert record.units <= 0.1 * run.plan.cap_units
    declaration = Declaration.from_text(str(record.event["declaration"]))
    totals = tuple(round(1000 * total) for total in found.totals)
    assert declaration.content == Audit("before", "yd", totals, "1")
    assert sum(found.totals) == len(run.cohort)
    assert found.counts.sigma * 2 == pytest.approx(cost.count_deviation, rel=1e-6)
    (table,) = found.tables
    half = [
        (own.high - own.low) / 2
        for own in table.findings().rates["selection_rate"]
        if own is not None
    ]
    assert max(half) == pytest.approx(cost.half_width, rel=0.25)
    assert "95 %" in str(found)


def test_without_labels_there_are_selection_rates_only(run: Audited) -> None:
    found = audit(run.oracle, run.before, name="hires", share=0.1)
    findings = found.table().findings()
    assert list(findings.rates) == ["selection_rate"]
    assert list(findings.differences) == ["demographic_parity"]


def test_a_useless_share_is_refused_before_anything_is_spent(run: Audited) -> None:
    with pytest.raises(BudgetExceeded, match="is needed"):
        audit(run.oracle, run.before, run.label, share=0.00001)
    assert run.oracle.budget.spent_units == 0
    with pytest.raises(ConfigError):
        price(run.oracle, share=0.0)


def test_more_groups_than_anybody_compares_are_refused(run: Audited) -> None:
    many = {"a": [str(n) for n in range(20)], "b": [str(n) for n in range(20)]}
    values = {name: ["0", "1"] * 50 for name in many}
    oracle = LocalOracle.rehearse(range(100), values, epsilon=9.0, delta=1e-6, groups=many)
    with pytest.raises(DataError, match="400 groups"):
        audit(oracle, [0, 1] * 50, share=0.5)
    assert oracle.budget.spent_units == 0


def test_several_classes_are_refused_until_one_is_named(run: Audited) -> None:
    three = np.arange(len(run.cohort)) % 3
    with pytest.raises(ConfigError, match="pos_label"):
        audit(run.oracle, three, share=0.1)
    found = audit(run.oracle, three, three, share=0.1, pos_label=2)
    rates = found.table().findings().rates
    assert rates["selection_rate"][0] is not None
    assert rates["selection_rate"][0].value == pytest.approx(1 / 3, abs=0.05)
    words = np.where(run.before == 1, "granted", "refused")
    named = audit(run.oracle, words, name="words", share=0.1, pos_label="granted")
    assert named.selected == "granted"


@pytest.mark.parametrize("gap", [np.nan, None])
def test_rows_without_a_decision_or_label_are_refused_by_number(run: Audited, gap: Any) -> None:
    decisions = run.before.astype(object)
    decisions[:3] = gap
    with pytest.raises(DataError, match="3 rows have no decision"):
        audit(run.oracle, decisions, run.before, share=0.1)
    with pytest.raises(DataError, match="3 rows have no label"):
        audit(run.oracle, run.before, decisions, share=0.1)


def test_people_with_several_rows_count_once() -> None:
    ids = [f"p{i}" for i in range(600)]
    oracle = LocalOracle.rehearse(ids, {"sex": ["f", "m"] * 300}, epsilon=50.0, delta=1e-6)
    rows = np.repeat(ids, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = audit(oracle, np.tile([1, 0, 0], 600), ids=rows.tolist(), share=0.5)
    assert sum(found.totals) == pytest.approx(600)
    for own in found.table().findings().rates["selection_rate"]:
        assert own is not None
        assert own.value == pytest.approx(1 / 3, abs=0.02)


@pytest.mark.parametrize(
    ("decisions", "target"),
    [([], None), ([[1, 0]], None), ([1, 0], [1]), ([0.2, 0.7], None)],
)
def test_bad_decisions(run: Audited, decisions: list[object], target: list[int] | None) -> None:
    with pytest.raises(ConfigError):  # DataError is one
        audit(run.oracle, decisions, target, share=0.1)
    with pytest.raises(DataError):
        audit(run.oracle, run.before, ids=["nobody"] * len(run.before), share=0.1)
    assert run.oracle.budget.spent_units == 0


def test_scores_are_shares_above_the_median(run: Audited) -> None:
    scores = np.where(run.sex == 1, 10.0, 0.0) + np.linspace(0, 1, len(run.sex))
    result = audit_scores(run.oracle, scores, share=0.2, name="ranks", whose="held out")
    low, high = result.table().findings().rates["selection_rate"]
    assert low is not None
    assert high is not None
    assert (low.value < 0.1, high.value > 0.9) == (True, True)
    for wrong in ([0.0, np.nan], ["a", "b"], [], [1.0, 1.0], [0.0, 1.0, 1.0], [[1.0]]):
        with pytest.raises(DataError):
            audit_scores(run.oracle, wrong, share=0.2)


def test_decisions_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "decisions.csv"
    path.write_text("id,decision,label\na,1,0\nb,0,1\n")
    found = read_decisions(path)
    assert found.ids == ["a", "b"]
    assert found.labels is not None
    assert found.labels.tolist() == ["0", "1"]
    path.write_text("id,decision\na,yes\n")
    assert read_decisions(path).labels is None
    path.write_text("id,score\na,0.5\nb,1e-3\n")
    assert read_decisions(path).scored
    assert numbers(read_decisions(path).decisions).tolist() == [0.5, 0.001]
    with pytest.raises(DataError, match="not a number"):
        numbers(np.array(["much"]))
    for bad, words in (
        (b"id,label\na,1\n", "columns"),
        (b"id,score,decision\na,1,1\n", "columns"),
        (b"id,decision\na,\n", "line 2"),
        (b"id,decision\n", "no decisions"),
        (b"id,decision\n\xff,1\n", "UTF-8"),
    ):
        path.write_bytes(bad)
        with pytest.raises(DataError, match=words):
            read_decisions(path)


def test_the_fingerprint_of_decisions_cannot_be_tried_out(run: Audited) -> None:
    """Who knows everybody else's cells could test a person's against an unsalted hash."""
    one, two = (audit(run.oracle, run.after, run.label, name="after", share=0.1) for _ in "12")
    assert one.decisions_sha256 != two.decisions_sha256
    cells = 2 * np.asarray(run.label) + np.asarray(run.after)
    people = np.arange(len(cells)).astype("<i8").tobytes()
    raw = run.oracle.cohort.root + people + cells.astype("<i8").tobytes()
    assert hashlib.sha256(one.salt + raw).hexdigest() == one.decisions_sha256
    assert one.salt.hex() not in repr(one)


def test_a_statement_grows_by_audits_and_fits_one_plan(run: Audited, tmp_path: Path) -> None:
    path, model = tmp_path / "statement.json", tmp_path / "model.bin"
    model.write_bytes(b"weights")
    first = audit(run.oracle, run.before, run.label, name="before", share=0.1)
    second = audit(run.oracle, run.after, run.label, name="after", share=0.1)
    add_to_statement(path, run.plan, "company", [first], model="a model", file=model)
    made = add_to_statement(path, run.plan, "company", [second], reason="because")
    assert made == Statement.load(path)
    assert set(made.decisions) == {"before", "after"}
    salts = path.with_suffix(".salts")
    assert first.salt.hex() in salts.read_text()
    assert second.salt.hex() in salts.read_text()
    assert salts.stat().st_mode & 0o077 == 0
    assert made.model == "a model"
    assert len(made.model_sha256) == 64
    assert made.reason == "because"
    with pytest.raises(ConfigError, match="another"):
        add_to_statement(path, run.plan, "other", [first])
    path.write_bytes(b"{}")
    with pytest.raises(ConfigError):
        Statement.load(path)
