"""From noised counts of groups to rates, differences and impact ratios, each with its interval.

With counts x̃_g = x_g + noise per cell, and C the covariance of the groups' noise in units of σ²,

    rate            p_g = Σ_hits x̃_g / Σ_among x̃_g
    difference      of a notion: the largest p_g − p_h over groups (and over its rates)
    impact ratio    p_g / max_h p_h                  of selection rates, as the four-fifths rule

The most selected group, and the pair that differs most, are themselves estimates. Intervals allow
for that: the limit on the side to which the choice errs takes a quantile for all the candidates
(Bonferroni), the other limit the plain one. With two groups both are plain. Coverage is therefore
at least 95 %, and more where groups are tied.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from isonomy.common.report.audit_cells import MEASURES, Cells, Measure, notions_of
from isonomy.common.report.audit_intervals import (
    Estimate,
    NoisedRate,
    difference,
    rate_limits,
    ratio,
)

Floats = NDArray[np.float64]

TAIL = 0.025  # on either side: 95 %
NOISE_FLOOR = 6.0  # a rate needs a denominator of at least this many noise deviations
NEAR_FLOOR, NEAR_TAIL = 9.0, 0.4  # below so many deviations the tail shrinks to this part


@dataclass(frozen=True)
class GroupCounts:
    """Noised counts of the groups of one table.

    | name | shape | meaning |
    |---|---|---|
    | counts | (groups, cells) | noised people per group and cell |
    | covariance | (groups, groups) | of one cell's noise between groups, in units of σ² |
    | sigma | | deviation of one released cell, in people |
    | left_out | | numbers of the groups that no difference or impact ratio is about |
    """

    cells: Cells
    counts: Floats
    covariance: Floats
    sigma: float
    left_out: tuple[int, ...] = ()

    def people(self) -> list[float | None]:
        """Noised group sizes; None where the noise drowns them."""
        rates = CountRates(MEASURES[self.cells][0], self).estimates()  # among everybody
        sizes = self.counts.sum(axis=1).tolist()
        return [None if rate is None else size for rate, size in zip(rates, sizes, strict=True)]


class Rates:
    """One rate of all groups; None where it cannot be told. The groups' errors are independent."""

    def __init__(self, rates: Sequence[NoisedRate | None], left_out: tuple[int, ...] = ()) -> None:
        self._rates, self._left_out = rates, left_out
        self._limits: dict[float, list[Estimate | None]] = {}  # by tail

    def estimates(self) -> list[Estimate | None]:
        """Each group's rate with its 95 % interval."""
        return [None if limits is None else limits.within_unit() for limits in self.limits()]

    def limits(self, tail: float = TAIL) -> list[Estimate | None]:
        """Each group's rate and limits, not cut to [0, 1]; `tail` is the error on either side."""
        if tail not in self._limits:
            self._limits[tail] = [
                None if rate is None else rate_limits(rate, float(-ndtri(self._share(rate, tail))))
                for rate in self._rates
            ]
        return self._limits[tail]

    def _share(self, rate: NoisedRate, tail: float) -> float:
        """`tail`, or a part of it near the noise floor: there only lucky noise shows a rate."""
        return tail * NEAR_TAIL if rate.n < NEAR_FLOOR * math.sqrt(rate.v_nn) else tail

    def correlation(self, g: int, h: int) -> float:
        """Between the errors of two groups' rates."""
        return 0.0

    def compared(self) -> list[int]:
        """Groups whose rate can be told, without those that comparisons leave out."""
        return [
            g
            for g, estimate in enumerate(self.estimates())
            if estimate is not None and g not in self._left_out
        ]

    def difference(self, g: int, h: int, tail: float = TAIL) -> Estimate | None:
        """p_g − p_h for two groups that were named beforehand."""
        one, two = self.limits(tail)[g], self.limits(tail)[h]
        if one is None or two is None:
            return None
        return difference(one, two, self.correlation(g, h))

    def ratio(self, g: int, h: int, tail: float = TAIL) -> Estimate | None:
        """p_g / p_h for two groups that were named beforehand."""
        one, two = self.limits(tail)[g], self.limits(tail)[h]
        if one is None or two is None:
            return None
        return ratio(one, two, self.correlation(g, h))


class CountRates(Rates):
    """One rate of all groups from noised counts; None where the noise drowns it."""

    def __init__(self, measure: Measure, groups: GroupCounts) -> None:
        self.measure, self._groups = measure, groups
        hits, among = list(measure.hits), list(measure.among)
        rates = [
            self._noised(float(cells[hits].sum()), float(cells[among].sum()), group)
            for group, cells in enumerate(groups.counts)
        ]
        super().__init__(rates, groups.left_out)

    def _noised(self, x: float, n: float, group: int) -> NoisedRate | None:
        scale = self._groups.sigma**2 * float(self._groups.covariance[group, group])
        hits, among = len(self.measure.hits), len(self.measure.among)
        if n <= 0 or n <= NOISE_FLOOR * math.sqrt(among * scale):
            return None
        return NoisedRate(x, n, hits * scale, hits * scale, among * scale)  # hits ⊂ among

    def correlation(self, g: int, h: int) -> float:
        """Between two groups' rates: their people are different, their noise is not always.

        cov(E_x − pE_n, E_x' − p'E_n') = C_gh σ²·(|hits|(1 − p − p') + |among|·p·p')
        """
        one, two = self._rates[g], self._rates[h]
        if one is None or two is None:
            return 0.0
        p, q = one.value, two.value
        shared = len(self.measure.hits) * (1 - p - q) + len(self.measure.among) * p * q
        noise = self._groups.sigma**2 * float(self._groups.covariance[g, h]) * shared
        spread = math.sqrt(one.variance * two.variance)
        return max(-1.0, min(1.0, noise / (one.n * two.n * spread))) if spread else 0.0


def largest_difference(rates: Sequence[Rates]) -> Estimate | None:
    """max over rates and pairs of |p_g − p_h|, among the groups that are compared.

    None unless every rate can be told of two groups: half of equalized odds is not equalized odds.

    low: the largest of the pairs' lower limits, each at tail/(number of pairs): if all of them
    hold, no pair's limit exceeds the truth. high: the largest of the plain upper limits, which is
    at least that of the pair that differs most.
    """
    if any(len(rate.compared()) < 2 for rate in rates):
        return None
    pairs = [(rate, g, h) for rate in rates for g, h in permutations(rate.compared(), 2)]
    tail = TAIL / (len(pairs) / 2)
    plain = _defined(rate.difference(g, h) for rate, g, h in pairs)
    careful = _defined(rate.difference(g, h, tail) for rate, g, h in pairs)
    value = max(gap.value for gap in plain)
    low = max(0.0, *(gap.low for gap in careful))
    return Estimate(value, min(low, value), max(gap.high for gap in plain))


def impact_ratios(rates: Rates) -> list[Estimate | None]:
    """Each group's rate over that of the most selected group, among those that are compared.

    p_g / max_h p_h = min_h p_g / p_h, so low is the smallest of the plain lower limits, high the
    smallest of the upper limits at tail/(number of other groups); never above 1.
    """
    groups = rates.compared()
    ratios: list[Estimate | None] = [None] * len(rates.estimates())
    if len(groups) < 2:
        return ratios
    tail = TAIL / (len(groups) - 1)
    for g in groups:
        others = [h for h in groups if h != g]
        # None where the other group's rate is zero: that bounds nothing from above.
        plain = _defined(rates.ratio(g, h) for h in others)
        careful = _defined(rates.ratio(g, h, tail) for h in others)
        if not plain:
            continue
        value = min(1.0, *(each.value for each in plain))
        low = min(1.0, *(each.low for each in plain))
        high = min(1.0, *(each.high for each in careful))
        ratios[g] = Estimate(value, min(low, value), max(high, value))
    return ratios


@dataclass(frozen=True)
class Findings:
    """Everything that one table of counts tells."""

    rates: dict[str, list[Estimate | None]]
    impact_ratios: list[Estimate | None]
    differences: dict[str, Estimate | None]


def findings_of(groups: GroupCounts) -> Findings:
    """All rates, impact ratios and the largest difference per notion.

    A group whose size the noise drowns has none of them, so that its row shows no number at all.
    """
    counts = groups.counts.copy()
    counts[[size is None for size in groups.people()]] = 0.0  # a rate of nobody is None
    groups = replace(groups, counts=counts)
    rates = {measure.name: CountRates(measure, groups) for measure in MEASURES[groups.cells]}
    return Findings(
        rates={name: rate.estimates() for name, rate in rates.items()},
        impact_ratios=impact_ratios(rates["selection_rate"]),
        differences={
            notion: largest_difference([rates[name] for name in names])
            for notion, names in notions_of(groups.cells).items()
        },
    )


def _defined(estimates: Iterable[Estimate | None]) -> list[Estimate]:
    return [estimate for estimate in estimates if estimate is not None]
