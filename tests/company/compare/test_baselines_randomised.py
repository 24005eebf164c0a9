"""k-ary randomised response: exact chances, one payment, unbiased corrections."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isonomy.common.base.errors import BudgetExceeded, ConfigError, ReplayRefused
from isonomy.common.ledger.ledger import verify_ledger
from isonomy.common.privacy.accounting import epsilon_of, laplace_units
from isonomy.common.privacy.noise import SystemNoise
from isonomy.common.sums.local import LocalOracle, true_groups
from isonomy.company.compare.baselines._randomised_response import (
    GRID,
    corrected_indicators,
    flip_matrix,
    keep_threshold,
    largest_epsilon,
    randomise,
    release,
    units_of,
)

MILLIONTHS = st.integers(1, 20_000_000)


@settings(max_examples=60, deadline=None)
@given(MILLIONTHS, st.integers(2, 9))
def test_ratio_is_bounded(epsilon: int, groups: int) -> None:
    keep = Fraction(keep_threshold(epsilon, groups), GRID)
    other = (1 - keep) / (groups - 1)
    with localcontext() as context:
        context.prec = 80
        limit = Fraction((Decimal(epsilon) / 10**6).exp())
    assert keep / other <= limit
    # Not wastefully below it either: one step of the grid more would exceed it.
    more = keep + Fraction(1, GRID)
    assert more == 1 or more * (groups - 1) / (1 - more) > limit


@settings(max_examples=30, deadline=None)
@given(MILLIONTHS, st.integers(2, 6))
def test_inverse_is_unbiased(epsilon: int, groups: int) -> None:
    if epsilon < 10_000:
        epsilon += 10_000  # below, the inverse is too large for floats to show it
    estimates = corrected_indicators(np.arange(groups), epsilon, groups)  # by report
    expected = flip_matrix(epsilon, groups) @ estimates
    np.testing.assert_allclose(expected, np.eye(groups), atol=1e-6)


@pytest.mark.parametrize("groups", [2, 4])
def test_reports_have_these_chances(groups: int) -> None:
    size = 60_000
    reports = randomise(np.ones(size, np.int64), groups, 1_000_000, SystemNoise())
    seen = np.bincount(reports, minlength=groups) / size
    chances = flip_matrix(1_000_000, groups)[1]
    assert np.abs(seen - chances).max() < 6 * np.sqrt(0.25 / size)


def test_what_it_costs() -> None:
    assert units_of(1_000_000) == laplace_units(1, 1)
    found = largest_epsilon(10**12)
    assert units_of(found) <= 10**12 < units_of(found + 1)
    with pytest.raises(ConfigError, match="too small for randomised response"):
        largest_epsilon(0)


@pytest.mark.parametrize(("epsilon", "groups"), [(0, 2), (10**9, 2), (1, 1)])
def test_wrong_settings(epsilon: int, groups: int) -> None:
    with pytest.raises(ConfigError):
        keep_threshold(epsilon, groups)


def test_paid_once(tmp_path: Path) -> None:
    ids = [f"p{n}" for n in range(500)]
    values = {"sex": ["f" if n % 3 else "m" for n in range(500)]}
    oracle = LocalOracle.rehearse(ids, values, epsilon=8.0, delta=1e-6, folder=tmp_path)
    first = release(oracle, "comparison", 1_000_000, "sex")
    assert oracle.budget.spent_units == laplace_units(1, 1)
    assert 0.6 < np.mean(first == true_groups(oracle, "comparison")) < 0.85  # e/(1 + e) = .731
    with pytest.raises(ReplayRefused):
        release(oracle, "comparison", 500_000, "sex")
    oracle.accounts.restore(0 * oracle.accounts.state())  # a company that forgot it has paid
    np.testing.assert_array_equal(release(oracle, "comparison", 1_000_000, "sex"), first)
    # It composes with Gaussian releases in one account.
    oracle.counts(share=0.1)
    spent = oracle.budget.spent_units
    assert spent > laplace_units(1, 1)
    summary = verify_ledger(tmp_path / "ledger.jsonl")
    assert summary.max_person_units == spent
    assert epsilon_of(spent, 1e-6) < 8.0


def test_a_budget_that_does_not_reach(tmp_path: Path) -> None:
    oracle = LocalOracle.rehearse(
        ["a", "b"], {"sex": ["f", "m"]}, epsilon=0.1, delta=1e-6, folder=tmp_path
    )
    with pytest.raises(BudgetExceeded):
        release(oracle, "comparison", 1_000_000, "sex")
    assert oracle.budget.spent_units == 0
    assert verify_ledger(tmp_path / "ledger.jsonl").debits == 0
