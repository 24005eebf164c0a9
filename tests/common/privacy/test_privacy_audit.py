"""An empirical audit: what an attacker really learns stays below what the ledger claims.

Two worlds differ in people's attributes. Every person j puts their whole row into column j, so one
query is thousands of independent attacks on one person each. From false positives and negatives
(Clopper–Pearson) follows a lower bound on μ, hence on ε, as in Nasr et al. 2023 ("Tight
auditing of differentially private machine learning", §4). A mechanism with half the noise must be
caught by the same test, else the test would mean nothing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from federation import DELTA, federation
from scipy import stats

from isonomy.common.privacy.accounting import UNITS_PER_MU2, epsilon_of
from isonomy.common.privacy.noise import NoiseSource, discrete_laplace, rounded_gaussian
from isonomy.common.sums import noise_and_budget
from isonomy.common.sums.oracle import GroupOracle, Release

TRIALS = 3000
EPSILON = 3.0
NO_FALSE_ALARM = 1e-6  # an honest mechanism fails this test once in a million runs
CAUGHT = 1e-3  # and a broken one must be proven broken with this confidence


def mu_lower_bound(world0: np.ndarray, world1: np.ndarray, doubt: float) -> float:
    """The largest μ that the two samples prove, by the threshold in the middle."""
    threshold = (world0.mean() + world1.mean()) / 2
    false_positives = int((world0 > threshold).sum())
    false_negatives = int((world1 <= threshold).sum())
    rates = [
        stats.beta.ppf(1 - doubt / 2, errors + 1, len(sample) - errors)
        for errors, sample in ((false_positives, world0), (false_negatives, world1))
    ]
    return float(stats.norm.ppf(1 - rates[0]) - stats.norm.ppf(rates[1]))


def ask(oracle: GroupOracle, call: str) -> tuple[Release, np.ndarray]:
    """The release and the best statistic of each attack: people in 'x' against people in 'y'."""
    rows = np.eye(len(oracle.cohort))
    if call == "weighted":
        release = oracle.weighted_sum(rows, [10.0, 0.0], norm=1.0, share=1.0)
        return release, release.values
    if call == "laplace":
        release = oracle.open_sum(rows, norm=1.0, epsilon=0.5)
        return release, release.values[0]
    release = oracle.blind_sum(rows, norm=1.0, share=1.0)
    if len(release.groups) == 2:
        return release, release.values[0]
    return release, release.values[0] - release.values[1]  # moved from one column to another


def audit(
    folder: Path, call: str, groups: str, doubt: float, *, encrypted: bool = False
) -> tuple[float, float]:
    """Proven ε and claimed ε of one query."""
    trials = 1000 if encrypted else TRIALS
    samples, claimed = [], 0
    for group in "yx":
        fed = federation(
            folder, {"a": [group] * trials}, {"a": groups}, epsilon=EPSILON, seed=None, name=group
        )
        release, sample = ask(fed.company() if encrypted else fed.local(), call)
        assert release.receipt is not None
        claimed = release.receipt.units
        samples.append(sample)
        fed.ledger.close()
    proven = mu_lower_bound(samples[0], samples[1], doubt)
    units = int(max(0.0, proven) ** 2 * UNITS_PER_MU2)
    return epsilon_of(units, DELTA), epsilon_of(claimed, DELTA)


def half_the_noise(sigma: int, size: int, source: NoiseSource) -> np.ndarray:
    return rounded_gaussian(sigma // 2, size, source)


def half_the_laplace(scale: int, size: int, source: NoiseSource) -> np.ndarray:
    return discrete_laplace(scale // 2, size, source)


@pytest.mark.parametrize(
    ("call", "groups"), [("sum", "xy"), ("sum", "xyz"), ("weighted", "xy"), ("laplace", "xy")]
)
def test_measured_epsilon_stays_below_the_claim_and_half_the_noise_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, groups: str
) -> None:
    proven, claimed = audit(tmp_path, call, groups, NO_FALSE_ALARM)
    assert proven <= claimed <= EPSILON * (1 + 1e-9)
    assert proven > 0.3 * claimed  # the audit is sharp enough to mean something
    monkeypatch.setattr(noise_and_budget, "rounded_gaussian", half_the_noise)
    monkeypatch.setattr(noise_and_budget, "discrete_laplace", half_the_laplace)
    broken = tmp_path / "broken"
    broken.mkdir()
    proven, claimed = audit(broken, call, groups, CAUGHT)
    assert proven > claimed


def test_the_same_audit_on_the_encrypted_oracle(tmp_path: Path) -> None:
    proven, claimed = audit(tmp_path, "sum", "xy", NO_FALSE_ALARM, encrypted=True)
    assert 0.1 * claimed < proven <= claimed


def test_forgetting_that_a_person_moves_between_columns_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trap of k > 2 groups: noise for one column, although two of them change."""

    def one_column(sigma: int, size: int, source: NoiseSource) -> np.ndarray:
        return rounded_gaussian(int(sigma / np.sqrt(2)), size, source)

    monkeypatch.setattr(noise_and_budget, "rounded_gaussian", one_column)
    proven, claimed = audit(tmp_path, "sum", "xyz", CAUGHT)
    assert proven > claimed
