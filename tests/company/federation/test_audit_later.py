"""Audits by default: a training leaves room for two, and they may come from another script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import Federation, federation, labels
from sklearn.linear_model import LogisticRegression

from isonomy.common.base.errors import BudgetExceeded, ConfigError, ReplayRefused
from isonomy.common.privacy.queries import audit_number
from isonomy.common.sums.local import LocalOracle
from isonomy.common.sums.openings import FolderOpenings
from isonomy.common.sums.oracle import FilteredOracle, GroupOracle
from isonomy.company.fair.estimator import FairClassifier
from isonomy.company.fair.inputs.checks import affordable_units
from isonomy.company.federation.auditing import AuditResult, audit

PEOPLE = 600
SEX = np.arange(PEOPLE) % 2
DECIDED = (np.arange(PEOPLE) % 3 == 0).astype(int)
CUT = (np.arange(PEOPLE) % 5 == 0).astype(int)
ROWS = np.ones((PEOPLE, 2)) / 2


@pytest.fixture
def fed(tmp_path: Path) -> Federation:
    return federation(tmp_path, {"sex": labels(SEX, "fm")}, {"sex": ("f", "m")}, seed=None)


def trained(oracle: GroupOracle) -> list[np.ndarray]:
    """What a training asks: two questions under numbers of its own."""
    return [oracle.blind_sum(ROWS * scale, norm=2.0, share=0.4).values for scale in (1.0, 2.0)]


def audited(oracle: GroupOracle, name: str, decided: np.ndarray = DECIDED) -> AuditResult:
    return audit(oracle, decided, ids=oracle.cohort.ids, name=name)


def test_another_script_audits_a_finished_plan(fed: Federation, tmp_path: Path) -> None:
    folder = FolderOpenings(tmp_path / "openings")
    first = trained(fed.company(folder))
    fed.restart_regulator()
    later = fed.company(folder)
    before, after = audited(later, "before"), audited(later, "after", CUT)
    records = fed.ledger.records

    again = audited(fed.company(folder), "before")  # one more script: the stored answer, for free
    assert np.array_equal(again.counts.counts, before.counts.counts)
    assert before.receipt.query_id != after.receipt.query_id
    # Audits took no number from the training: its script still gets its answers, in any order.
    rerun = fed.company(folder)
    audited(rerun, "after", CUT)
    for old, new in zip(first, trained(rerun), strict=True):
        assert np.array_equal(old, new)
    assert fed.ledger.records == records


def test_a_repeated_audit_is_free(fed: Federation) -> None:
    for oracle in (fed.company(), fed.local()):
        records, name = fed.ledger.records, oracle.capabilities.carrier
        first = audited(oracle, name)
        spent = oracle.budget.spent_units
        assert np.array_equal(audited(oracle, name).counts.counts, first.counts.counts)
        assert oracle.budget.spent_units == oracle.budget.audit_units == spent > 0
        assert fed.ledger.records == records + 1


def test_other_decisions_under_an_old_name_are_refused(fed: Federation, tmp_path: Path) -> None:
    folder = FolderOpenings(tmp_path / "openings")
    audited(fed.company(folder), "after")
    records = fed.ledger.records
    for oracle in (fed.company(folder), fed.company(), fed.local()):
        with pytest.raises(ReplayRefused, match="another name"):
            audited(oracle, "after", CUT)
        assert oracle.budget.spent_units == 0
    assert fed.ledger.records == records
    audited(fed.company(folder), "after the spring", CUT)


def test_a_budget_that_an_earlier_script_spent_is_refused_by_the_ledger(
    fed: Federation, tmp_path: Path
) -> None:
    folder = FolderOpenings(tmp_path / "openings")
    trained(fed.company(folder))
    later, records = fed.company(folder), fed.ledger.records
    with pytest.raises(BudgetExceeded):
        audit(later, DECIDED, ids=later.cohort.ids, name="dear", share=0.3)
    assert later.budget.spent_units == 0
    assert fed.ledger.records == records


def test_numbers_of_audits_are_no_numbers_of_questions() -> None:
    numbers = {audit_number(f"audit {i}") for i in range(1000)}
    assert len(numbers) == 1000
    assert min(numbers) >= 10**11
    assert max(numbers) < 10**12


@pytest.mark.parametrize("first", [True, False])
def test_a_fit_leaves_room_for_two_audits(first: bool) -> None:
    rng = np.random.default_rng(0)
    sex = rng.random(2000) < 0.5
    X = np.column_stack([rng.normal(size=2000) - 0.8 * sex, sex + rng.normal(size=2000)])
    y = (X[:, 0] + rng.normal(size=2000) > 0).astype(int)
    attributes = {"sex": np.where(sex, "f", "m").tolist()}
    oracle = LocalOracle.rehearse(range(2000), attributes, epsilon=2.0, delta=1e-6)
    if first:  # an audit before the fit takes from the audits' part, not from the training's
        audit(oracle, y, name="labels")
    model = FairClassifier(LogisticRegression(), oracle=oracle, random_state=0).fit(X, y)
    assert model.releases_ is not None
    assert 0.8999 * oracle.budget.cap_units < model.releases_.units <= 0.9 * oracle.budget.cap_units
    with pytest.raises(BudgetExceeded, match=r"kept for audits.*releases="):
        FairClassifier(LogisticRegression(), oracle=oracle).fit(X, y)
    decisions = {"before": model.base_estimator_.predict(X), "after": model.predict(X)}
    for name in list(decisions)[first:]:
        assert audit(oracle, decisions[name], y, name=name).name == name
    assert oracle.budget.spent_units <= oracle.budget.cap_units


def test_an_epsilon_that_is_named_is_spent_whole() -> None:
    def plan(*, individual: bool = False) -> GroupOracle:
        attributes = {"sex": ["f", "m"] * 50}
        return LocalOracle.rehearse(
            range(100), attributes, epsilon=1.0, delta=1e-6, individual=individual
        )

    cap = plan().budget.cap_units
    assert affordable_units(plan(), None) == cap - -(-cap // 10)
    assert affordable_units(plan(), 1.0) == cap
    assert affordable_units(FilteredOracle(plan(individual=True)), None) == cap


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "After"}, {"name": ""}, {"name": "ä"}, {"name": "x" * 25}, {"share": 0.0},
        {"share": 1.5}, {"share": float("nan")}, {"pos_label": "approve"}, {"attribute": "age"},
        {"whose": "mine"},
    ],
)  # fmt: skip
def test_a_bad_audit_spends_nothing(fed: Federation, settings: dict[str, Any]) -> None:
    oracle, records = fed.local(), fed.ledger.records
    with pytest.raises(ConfigError):
        audit(oracle, DECIDED, **{"name": "after", **settings})
    assert oracle.budget.spent_units == 0
    assert fed.ledger.records == records
