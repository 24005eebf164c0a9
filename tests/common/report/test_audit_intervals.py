"""Intervals of audits: exact where theory is; the covariance of noise against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from isonomy.common.base.errors import DataError
from isonomy.common.people.cohort import group_labels, labels_fault, without_value
from isonomy.common.report._audit_rates import (
    CountRates,
    GroupCounts,
    findings_of,
    largest_difference,
)
from isonomy.common.report._tables import shown_table
from isonomy.common.report.audit import NoisedCounts, noise_covariance
from isonomy.common.report.audit_cells import MEASURES
from isonomy.common.report.audit_intervals import (
    Z_95,
    Estimate,
    NoisedRate,
    difference,
    rate_interval,
    ratio,
)
from isonomy.common.report.schema import Group

COUNT = st.floats(1.0, 1e6)
SHARE = st.floats(0.0, 1.0)


@pytest.mark.parametrize(("x", "n"), [(0, 12), (3, 10), (50, 100), (999, 1000), (7, 7)])
def test_without_noise_it_is_wilsons_interval(x: int, n: int) -> None:
    found = rate_interval(NoisedRate(x, n, 0.0, 0.0, 0.0))
    wilson = binomtest(x, n).proportion_ci(0.95, method="wilson")
    assert found is not None
    assert found.low == pytest.approx(wilson.low, abs=1e-9)
    assert found.high == pytest.approx(wilson.high, abs=1e-9)


@given(n=COUNT, share=SHARE, noise=st.floats(0.0, 100.0))
def test_limits_enclose_the_value_and_stay_in_the_unit_interval(
    n: float, share: float, noise: float
) -> None:
    found = rate_interval(NoisedRate(share * n, n, noise**2, noise**2, 2 * noise**2))
    if found is None:  # only where the noise drowns the denominator
        assert n * n <= Z_95**2 * 2 * noise**2 * 1.0001
    else:
        assert 0 <= found.low <= found.value <= found.high <= 1


@given(n=st.floats(500.0, 1e5), share=st.floats(0.05, 0.95), noise=st.floats(1.0, 20.0))
def test_noise_only_widens(n: float, share: float, noise: float) -> None:
    quiet = rate_interval(NoisedRate(share * n, n, 0.0, 0.0, 0.0))
    loud = rate_interval(NoisedRate(share * n, n, noise**2, noise**2, 2 * noise**2))
    assert quiet is not None
    assert loud is not None
    assert loud.high - loud.low > quiet.high - quiet.low


@given(
    p=st.floats(0.05, 0.95), q=st.floats(0.1, 0.95), t=st.floats(0.001, 0.04),
    rho=st.floats(-0.8, 0.8),
)  # fmt: skip
def test_a_ratios_limits_are_where_the_difference_touches_zero(
    p: float, q: float, t: float, rho: float
) -> None:
    one, two = Estimate(p, p - t, p + t), Estimate(q, q - t, q + t)
    found = ratio(one, two, rho)
    assert found is not None
    for limit in (found.low, found.high):
        spread = math.sqrt(t * t + (limit * t) ** 2 - 2 * rho * limit * t * t)
        assert abs(p - limit * q) == pytest.approx(spread, abs=1e-9)


def test_a_denominator_that_may_be_zero_bounds_nothing_from_above() -> None:
    found = ratio(Estimate(0.3, 0.2, 0.4), Estimate(0.02, 0.0, 0.1), 0.0)
    assert found is not None
    assert found.high == math.inf
    assert found.low > 0


@given(a=SHARE, b=SHARE, rho=st.floats(-1.0, 1.0))
def test_a_difference_turns_round_with_its_groups(a: float, b: float, rho: float) -> None:
    one, two = Estimate(a, a * 0.9, a + (1 - a) * 0.1), Estimate(b, b * 0.8, b + (1 - b) * 0.2)
    there, back = difference(one, two, rho), difference(two, one, rho)
    assert there.low == pytest.approx(-back.high)
    assert there.value == -back.value


def test_the_covariance_is_that_of_a_total_minus_the_others() -> None:
    rng = np.random.default_rng(3)
    free = rng.normal(size=(200_000, 4))
    noise = np.column_stack([free, -free.sum(axis=1)])  # the last is public total − the rest
    sets = [(0,), (1, 2), (3, 4), (4,), (0, 1, 2, 3, 4)]
    drawn = np.column_stack([noise[:, list(own)].sum(axis=1) for own in sets])
    assert np.cov(drawn.T) == pytest.approx(noise_covariance(sets, 5), abs=0.05)
    assert noise_covariance(sets, 5)[4] == pytest.approx(0.0)  # everybody: the total is public


def test_coarser_tables_are_sums_of_the_finest() -> None:
    groups = {"sex": ("f", "m"), "race": ("a", "b", "c")}
    counts = np.arange(24, dtype=float).reshape(6, 4) * 100
    tables = {
        own.attribute: own for own in NoisedCounts("sex*race", groups, "yd", counts, 2.0).tables(1)
    }
    assert list(tables) == ["sex", "race", "sex*race"]
    assert tables["sex"].counts.counts == pytest.approx(
        np.stack([counts[:3].sum(axis=0), counts[3:].sum(axis=0)])
    )
    assert tables["race"].counts.counts == pytest.approx(counts[:3] + counts[3:])
    assert [own.label for own in tables["sex*race"].groups][-1] == "m × c"


def test_small_groups_are_pooled_or_withheld() -> None:
    groups = {"race": ("a", "b", "c", "d")}
    sizes = np.array([900.0, 40.0, 30.0, 800.0])
    counts = np.repeat(sizes[:, None] / 4, 4, axis=1)
    (pooled,) = NoisedCounts("race", groups, "yd", counts, 1.0).tables(50)
    assert [own.label for own in pooled.groups] == ["a", "d", "b or c"]
    assert pooled.groups[2].members == (1, 2)
    assert pooled.withheld == ()
    (withheld,) = NoisedCounts("race", groups, "yd", counts, 1.0).tables(100)
    assert withheld.withheld == ("b", "c")
    assert [own.label for own in withheld.groups] == ["a", "d"]


def test_people_without_a_value_are_compared_with_nobody_and_are_in_no_pool() -> None:
    groups = {"race": ("a", "b", "c", "d", "not stated")}
    sizes = np.array([900.0, 40.0, 30.0, 800.0, 45.0])
    counts = np.stack(
        [sizes * [0.5, 0.5, 0.5, 0.5, 0.1], sizes * [0.5, 0.5, 0.5, 0.5, 0.9]], axis=1
    )
    (few,) = NoisedCounts("race", groups, "d", counts, 0.1).tables(50)
    assert [own.label for own in few.groups] == ["a", "d", "b or c"]
    assert few.withheld == ("not stated",)
    (shown,) = NoisedCounts("race", groups, "d", counts, 0.1).tables(10)
    found = shown.findings()
    assert found.impact_ratios[4] is None
    assert found.rates["selection_rate"][4] is not None  # it is measured like the others
    assert all(own is not None and own.value == 1.0 for own in found.impact_ratios[:4])
    gap = found.differences["demographic_parity"]
    assert gap is not None
    assert gap.value == 0.0  # their 90 % against the others' 50 % are no gap


def test_a_label_says_where_people_without_a_value_are() -> None:
    groups = {"sex": ("f", "m or not stated"), "race": ("a", "b", "not stated")}
    labels = group_labels("sex*race", groups)[-2:]
    assert labels == ("m or not stated × b", "m or not stated × not stated")
    assert [without_value(label) for label in labels] == [False, True]
    wrong = [("a", "not stated"), ("a", "not stated", "b"), ("a or not stated", "b")]
    for labels in (*wrong, ("m", "m or not stated"), ("m", " or not stated"), ("m", "m"), ("m",)):
        assert labels_fault(labels), labels
    assert not any(map(labels_fault, groups.values()))


def test_a_rate_that_noise_drowns_is_not_told() -> None:
    counts = np.array([[400.0, 400.0, 4.0, 4.0], [400.0, 300.0, 300.0, 500.0]])
    given = GroupCounts("yd", counts, np.array([[1.0, -1.0], [-1.0, 1.0]]), 3.0)
    found = findings_of(given)
    assert found.rates["selection_rate"][0] is not None
    assert found.rates["true_positive_rate"][0] is None  # 8 people, noise of ± 4
    assert found.differences["equalized_odds"] is None  # half of it is not it
    assert found.differences["equal_fpr"] is not None


def test_a_group_whose_size_noise_drowns_has_no_number_at_all() -> None:
    # 33 people with noise of ± 6: the 33 with label 1 alone would pass, with noise of ± 4.
    counts = np.array([[0.0, 0.0, 25.0, 8.0], [400.0, 300.0, 300.0, 500.0]])
    drowned = GroupCounts("yd", counts, np.array([[1.0, -1.0], [-1.0, 1.0]]), 3.0)
    assert CountRates(MEASURES["yd"][1], drowned).estimates()[0] is not None
    assert all(rates[0] is None for rates in findings_of(drowned).rates.values())
    assert drowned.people() == [None, 1500.0]
    groups = [Group(label=name, members=(n,), counts=tuple(int(1e6 * c) for c in counts[n]))
              for n, name in enumerate("fm")]  # fmt: skip
    table = shown_table("sex", groups, (), cells="yd", released=2, sigma=3.0)
    assert [group.counts is None for group in table.groups] == [True, False]
    again = shown_table("sex", table.groups, (), cells="yd", released=2, sigma=3.0)
    assert again == table  # a verifier gets the same from what is left


def test_the_correlation_is_the_noises() -> None:
    """Two groups share all their noise (one released column): rates move against each other."""
    counts = np.array([[300.0, 200.0], [300.0, 200.0]])
    given = GroupCounts("d", counts, np.array([[1.0, -1.0], [-1.0, 1.0]]), 10.0)
    rates = CountRates(MEASURES["d"][0], given)
    noise = 100.0 * (1 - 2 * 0.4 + 2 * 0.16) / 500**2
    sampling = 0.24 / 500
    assert rates.correlation(0, 1) == pytest.approx(-noise / (noise + sampling))
    assert largest_difference([rates]) is not None


def test_counts_must_fit_their_groups() -> None:
    with pytest.raises(DataError):
        NoisedCounts("sex", {"sex": ("f", "m")}, "yd", np.zeros((3, 4)), 1.0)
