"""Audits that a plan keeps its budget for; guarantees of `privacy/planned_audits.py` by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isonomy.common.base.errors import BudgetExceeded, ConfigError
from isonomy.common.privacy.planned_audits import PlannedAudits

CAP = 10_000


@given(
    number=st.integers(1, 10),
    questions=st.lists(st.tuples(st.booleans(), st.integers(1, 3_000)), max_size=40),
)
def test_planned_audits_always_fit(number: int, questions: list[tuple[bool, int]]) -> None:
    planned = PlannedAudits.of(number, CAP, "tilt")
    spent, answered = 0, 0
    for audit, units in questions:
        try:
            kept = planned.kept_beside(units, answered, audit=audit)
        except BudgetExceeded:
            assert audit
            continue
        if spent + units + kept <= CAP:  # what the ledger checks
            spent, answered = spent + units, answered + audit
        assert spent + (number - answered) * planned.units <= CAP


def test_no_audit_more() -> None:
    planned = PlannedAudits.of(8, CAP, "tilt")
    assert planned.kept_beside(500, 7, audit=True) == 0
    with pytest.raises(BudgetExceeded, match="all 8 audits"):
        planned.kept_beside(1, 8, audit=True)
    with pytest.raises(BudgetExceeded, match="costs more"):
        planned.kept_beside(501, 0, audit=True)


def test_a_plan_of_audits_alone_gives_them_all_of_it() -> None:
    assert PlannedAudits.of(8, CAP, "audit") == PlannedAudits(8, 1_250)
    assert PlannedAudits.of(8, CAP, "tilt") == PlannedAudits(8, 500)


def test_none_planned_keeps_nothing() -> None:
    none = PlannedAudits.of(0, CAP, "tilt")
    assert none.kept_beside(7_000, 3, audit=True) == 0
    assert none.share(CAP) == 0.05


@pytest.mark.parametrize(("number", "strategy"), [(11, "tilt"), (401, "audit"), (-1, "audit")])
def test_too_many_are_refused(number: int, strategy: str) -> None:
    with pytest.raises(ConfigError, match="1 to 10 audits"):
        PlannedAudits.of(number, CAP, strategy)
