"""From releases to estimates: proxy, memberships, landscape. Post-processing; spends nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from isonomy.company.fair.inputs.feature_rows import FeatureRows, by_parts
from isonomy.company.fair.inputs.features import FeatureMap
from isonomy.company.fair.inputs.people import People
from isonomy.company.fair.inputs.proxy import Geometry, fit_posterior
from isonomy.company.fair.tilt._audits import Audit, Knowledge, Stratum
from isonomy.company.fair.tilt.notions import Event, centred
from isonomy.company.fair.tilt.releases import Releases
from isonomy.company.fair.tilt.rule import HALF, Tilt, costs
from isonomy.company.fair.tilt.search import Landscape

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TAIL = 0.025  # on either side of an interval: 95 %
DRAWS = 128  # of what the rates may be, and as many mirrored ones
LEAST_DEVIATION = 0.002  # of a rate in these draws: the search needs a smooth violation


@dataclass(frozen=True)
class Problem:
    """The company's side: whose rows, labels, out-of-fold probabilities, events."""

    people: People
    y: Ints  # (rows,) class numbers
    proba: Floats  # (rows, classes)
    events: tuple[Event, ...]
    tolerance: Floats  # (attributes, events)
    keep_selection_rate: bool = False
    cut: float = HALF  # of the base model's rule
    confidence: float | None = None  # with which the tolerance must be shown to be kept
    identity: bytes = b""  # fingerprint of the rows (releases.py)
    losses: Floats | None = None  # (rows, classes) of each choice; None: 1 where it is wrong


@dataclass(frozen=True)
class Proxy:
    """g_a(x, y) for anybody: shares (strata, groups) and β (strata, free groups, d)."""

    shares: Floats  # P(A = a, stratum) among this company's people
    beta: Floats
    blocks: tuple[slice, ...]
    intercepts: Floats  # (strata, free groups) P(A = a | stratum) among the people of the moments

    def __call__(self, rows: Floats) -> Floats:
        """(strata, n, groups) from rows φ(x), clipped to [0, 1], each attribute adding up to 1."""
        result = np.empty((len(self.beta), len(rows), self.shares.shape[1]))
        for stratum, beta in enumerate(self.beta):
            free = rows @ beta.T + self.intercepts[stratum]  # (n, free groups)
            g = np.clip(with_last(free, self.blocks), 0.0, 1.0)
            for block in self.blocks:
                result[stratum, :, block] = g[:, block] / g[:, block].sum(axis=1, keepdims=True)
        return result


def with_last(free: Floats, blocks: tuple[slice, ...], total: float = 1.0) -> Floats:
    """(n, free groups) -> (n, groups): the last group of an attribute is `total` less the rest."""
    columns, start = [], 0
    for block in blocks:
        first = free[:, start : start + block.stop - block.start - 1]
        columns += [first, total - first.sum(axis=1, keepdims=True)]
        start += first.shape[1]
    return np.hstack(columns)


class Analyst:
    """Reads releases for one problem: proxy once, memberships after every audit."""

    def __init__(self, problem: Problem, releases: Releases, features: FeatureMap, X: Any) -> None:
        self.problem = problem
        score = releases.score if features.bins else None
        rows = FeatureRows(features, X, score, problem.people)
        counts = releases.floored.T  # (strata, groups)
        everybody = counts[:, releases.blocks[0]].sum(axis=1, keepdims=True)
        within = releases.within  # (strata, groups) of the people of the moments
        label = problem.people.stratum if releases.strata > 1 else None
        self.strata = []
        for stratum in range(releases.strata):
            inside = np.arange(len(rows)) if label is None else np.flatnonzero(label == stratum)
            geometry = Geometry.of(rows, inside, releases.scales[stratum])
            share = np.clip(within[stratum], 1e-4, 1 - 1e-4)
            moments = features.columns(releases.moments[stratum])
            total = releases.total(stratum, features)
            posteriors = tuple(
                fit_posterior(geometry, moments[g], float(share[g]), float(deviation), total)
                for g, deviation in zip(
                    releases.free, releases.moment_deviation[releases.free], strict=True
                )
            )
            self.strata.append(Stratum(inside, geometry, posteriors))
        beta = np.stack([[p.beta for p in stratum.posteriors] for stratum in self.strata])
        intercepts = within[:, releases.free]
        self.proxy = Proxy(counts / everybody.sum(), beta, releases.blocks, intercepts)
        g = by_parts(self.proxy, features, X, score, len(problem.y))
        self.cost = costs(problem.events, problem.proba, g, self.proxy.shares)

    def read(self, releases: Releases) -> View:
        """All that is known after these releases."""
        problem, free = self.problem, releases.free
        audits = [
            Audit(
                problem.people.fold(audited_rows(releases.events, decided, problem)),
                values[free],
                deviation[free],
            )
            for decided, values, deviation in zip(
                releases.decisions, releases.audits, releases.audit_deviation, strict=True
            )
        ]
        knowledge = Knowledge(self.strata, problem.people.entries, audits)
        member = with_last(knowledge.memberships, releases.blocks)
        counts = releases.event_counts(problem.events)
        land = Landscape(
            events=problem.events,
            blocks=releases.blocks,
            y=problem.y,
            weight=problem.people.weight,
            proba=problem.proba,
            cost=self.cost,
            member=problem.people.unfold(member),
            counts=counts,
            tolerance=problem.tolerance,
            cut=problem.cut,
            losses=problem.losses,
        )
        if problem.keep_selection_rate:
            base, _ = land.decide(Tilt.none(*land.shape))
            land = replace(land, keep_rate=float(land.weight @ base / land.weight.sum()))
        return View(land, knowledge, releases, problem.people, problem.confidence)


def audited_rows(events: Sequence[Event], decided: Ints, problem: Problem) -> Floats:
    """(rows, events) what an audit added up: centred among the rows that it was about, 0 else."""
    inside = decided >= 0
    rows = np.zeros((len(decided), len(events)))
    weight = problem.people.weight[inside]
    rows[inside] = centred(events, decided[inside], problem.y[inside], weight)[0]
    return rows


@dataclass(frozen=True)
class Gap:
    """The largest gap between two groups of one attribute, with a 95 % interval."""

    value: float
    deviation: float
    low: float
    high: float
    where: str  # which rate, of which two groups


@dataclass(frozen=True)
class _Pairs:
    """All pairs of groups of one attribute, event by event."""

    gaps: Floats  # (pairs,)
    deviations: Floats  # (pairs,)
    event: Ints  # (pairs,)
    groups: Ints  # (2, pairs)


@dataclass(frozen=True)
class View:
    """Estimates of any decisions' rates, and how sure they are."""

    land: Landscape
    knowledge: Knowledge
    releases: Releases
    people: People
    confidence: float | None = None

    def beyond(self, decided: Ints) -> float:
        """By how much the gaps' upper bounds at `confidence` exceed the tolerances, at most.

        The bound of the largest gap needs no correction for their number: whichever it is, its own
        bound holds with this confidence. Infinite where a group is too small to be measured.
        """
        measured = self.releases.measured(self.land.events)
        if self.confidence is None or not measured.all():
            return np.inf
        _, rates, variance, alone = self._answers(decided)
        pairs = self._pairs(rates, np.sqrt(variance), alone, measured)
        bounds = [each.gaps + ndtri(self.confidence) * each.deviations for each in pairs]
        return max(
            float((bound - tolerance[each.event]).max())
            for bound, each, tolerance in zip(bounds, pairs, self.land.tolerance, strict=True)
        )

    def draws(self, decided: Ints) -> Floats:
        """(draws, groups, events) what the true rates may be, less the estimated ones.

        The same draws each time, so that the same releases give the same model.
        """
        counts = self.land.counts
        free = np.maximum(
            self._sum_deviations(decided), LEAST_DEVIATION * counts[self.releases.free]
        )
        normal = np.random.default_rng(0).standard_normal((DRAWS, *free.shape)) * free
        sums = np.concatenate([normal, -normal])  # (draws, free groups, events)
        groups = [with_last(each.T, self.land.blocks, total=0.0).T for each in sums]
        return np.stack(groups) / counts

    def fair(self, decided: Ints, deviations: float) -> bool:
        """No gap is beyond its tolerance by so many deviations; more, where many are looked at.

        Each gap by its own deviation: a gap that nobody can measure must not hide another.
        """
        rates = self.land.rates(decided)
        everybody = np.ones_like(rates, dtype=bool)
        pairs = self._pairs(
            rates, self._sum_deviations(decided), self._count_noise(rates), everybody
        )
        limit = -ndtri(ndtr(-deviations) / sum(len(each.gaps) for each in pairs))  # Bonferroni
        return all(
            (each.gaps - tolerance[each.event] <= limit * each.deviations).all()
            for each, tolerance in zip(pairs, self.land.tolerance, strict=True)
        )

    def gaps(self, decided: Ints) -> tuple[Gap | None, ...]:
        """For each attribute the largest gap that the budget can measure, with its interval.

        None where some event has fewer than two such groups: a part of the groups is reported, a
        part of equalized odds is not. The value is what the search saw. The interval is around
        what the nearest audit answered, and the low limit allows for the choice of the largest
        of all attributes (Bonferroni), as the regulator's audits do.
        """
        measured = self.releases.measured(self.land.events)
        _, rates, variance, alone = self._answers(decided)
        answers = self._pairs(rates, np.sqrt(variance), alone, measured)
        estimates = self._pairs(self.land.rates(decided), np.sqrt(variance), alone, measured)
        tail = TAIL / max(1, sum(len(pairs.gaps) for pairs in answers))
        return tuple(
            self._gap(answer, estimate, tail) if (measured[block].sum(axis=0) >= 2).all() else None
            for block, answer, estimate in zip(self.land.blocks, answers, estimates, strict=True)
        )

    def _answers(self, decided: Ints) -> tuple[Floats, Floats, Floats, Floats]:
        """What the nearest audits answered: pooled rates (events,), and (groups, events) centred
        rates, the free groups' variance of their sums, the deviation of each group by itself."""
        u, pooled = self.land.centred(decided)
        sums, variance = self.knowledge.answers(self.people.fold(u))
        counts = self.land.counts
        rates = with_last(sums.T, self.land.blocks, total=0.0).T / counts
        # Four more people, two of them positive: a rate of 0 in a small sample is not certain.
        p = (np.clip(pooled + rates, 0.0, 1.0) * counts + 2) / (counts + 4)
        alone = np.hypot(self._count_noise(rates), np.sqrt(p * (1 - p) / counts))
        return pooled, rates, variance, alone

    def _gap(self, answers: _Pairs, estimates: _Pairs, tail: float) -> Gap:
        low = float((answers.gaps + ndtri(tail) * answers.deviations).max())
        high = float((answers.gaps - ndtri(TAIL) * answers.deviations).max())
        largest = int(estimates.gaps.argmax())
        value = float(estimates.gaps[largest])
        first, second = (self.releases.groups[g] for g in estimates.groups[:, largest])
        event = self.land.events[estimates.event[largest]]
        return Gap(
            value,
            float(answers.deviations[answers.gaps.argmax()]),
            min(value, max(0.0, low)),
            max(value, min(1.0, high)),
            f"{event.name}, {first} against {second}",
        )

    def _count_noise(self, rates: Floats) -> Floats:
        """(groups, events) deviation of centred rates by the noise of the groups' counts."""
        deviations = self.releases.event_deviations(self.land.events)
        return np.asarray(deviations / self.land.counts * rates)

    def _pairs(
        self, rates: Floats, free: Floats, alone: Floats, measured: NDArray[np.bool_]
    ) -> list[_Pairs]:
        """For each attribute the gaps of all pairs of measured groups, and their deviations.

        A group's rate is a linear function of the free groups' sums, of deviation `free`: the last
        group's sum is minus all others. `alone` is the deviation that a group shares with nobody.
        """
        result = []
        for number, block in enumerate(self.land.blocks):
            start = block.start - number  # each attribute before this one has a last group
            inside = slice(start, start + block.stop - block.start - 1)
            columns = []
            for event in range(len(self.land.events)):
                members = np.flatnonzero(measured[block, event])
                sums = free[inside, event]
                parts = np.vstack([np.diag(sums), -sums]) / self.land.counts[block, event][:, None]
                parts, values = parts[members], rates[block, event][members]
                squares = (parts**2).sum(axis=1) + alone[block, event][members] ** 2
                variance = squares[:, None] + squares - 2 * parts @ parts.T
                a, b = np.triu_indices(len(members), 1)
                which = np.full(len(a), event)
                deviation = np.sqrt(np.maximum(variance[a, b], 0.0))
                groups = block.start + members
                columns.append((np.abs(values[a] - values[b]), deviation, which, groups[[a, b]]))
            gaps, deviations, events, both = zip(*columns, strict=True)
            result.append(
                _Pairs(
                    np.concatenate(gaps),
                    np.concatenate(deviations),
                    np.concatenate(events),
                    np.hstack(both),
                )
            )
        return result

    def _sum_deviations(self, decided: Ints) -> Floats:
        """(free groups, events) deviation of the estimated sums of centred rows."""
        return self.knowledge.deviations(self.people.fold(self.land.centred(decided)[0]))

    def limits(self, decided: Ints) -> Floats:
        """(3, groups, events) rates with the ends of their 95 % intervals; NaN: not measurable.

        As in a gap, the value is what the search saw and the interval is around what the nearest
        audit answered.
        """
        pooled, rates, variance, alone = self._answers(decided)
        # The last group's sum is minus all others, so its variance is theirs together.
        noise = np.abs(with_last(variance.T, self.land.blocks, total=0.0).T)
        margin = -ndtri(TAIL) * np.hypot(np.sqrt(noise) / self.land.counts, alone)
        value = np.clip(pooled + self.land.rates(decided), 0.0, 1.0)
        low = np.minimum(value, np.clip(pooled + rates - margin, 0.0, 1.0))
        high = np.maximum(value, np.clip(pooled + rates + margin, 0.0, 1.0))
        measured = self.releases.measured(self.land.events)
        return np.where(measured, np.stack([value, low, high]), np.nan)
