"""Checks of the input that come before anything is spent."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from isonomy.common.base.errors import BudgetExceeded, ConfigError, DataError
from isonomy.common.privacy.accounting import UNITS_PER_MU2, epsilon_of, units_for
from isonomy.common.privacy.planned_audits import AUDIT_SHARE
from isonomy.common.privacy.queries import cost_of
from isonomy.common.sums.channel import Needs, check_needs
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.fair.inputs.copies import RECIPE, LeftOut
from isonomy.company.fair.inputs.public_map import check_table
from isonomy.company.fair.tilt.notions import Event
from isonomy.company.fair.tilt.releases import MEASURED, Prices
from isonomy.company.federation.decisions import favourable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SPENT = 1e-4  # a rest below this part of a plan is rounding, not budget
RESERVE = 2 * AUDIT_SHARE  # of the plan's μ²: two audits of the report
REUSE = "Reuse the releases that you have (releases=clf.releases_), or have a new plan approved."
USELESS = 0.25  # a gap known to ± this (one deviation) says nothing: two deviations are ± 0.5


class AttributeAmongFeaturesWarning(UserWarning):
    """A column of X is named like a sensitive attribute."""


class FeatureMapWarning(UserWarning):
    """Values of X that the plan's feature map does not know."""


def checked_oracle(oracle: object, needs: Needs) -> GroupOracle:
    """The oracle, or a ConfigError that says where to get one, or why it does not fit."""
    if isinstance(oracle, LeftOut):
        raise ConfigError(f"{needs.strategy} needs oracle=…. {RECIPE}")
    if not isinstance(oracle, GroupOracle):
        raise ConfigError(
            f"{needs.strategy} needs oracle=…, the handle to the regulator's attributes; "
            "LocalOracle.rehearse(ids, attributes, …) makes one for rehearsals"
        )
    check_needs(needs, oracle.capabilities)
    return oracle


def checked_attributes(
    oracle: GroupOracle, attribute: str | Sequence[str] | None
) -> tuple[str, ...]:
    """The attributes to be fair by; each must be one that the regulator offers."""
    if attribute is None:
        if len(oracle.groups) != 1:
            raise ConfigError(f"name an attribute: the regulator offers {', '.join(oracle.groups)}")
        return (next(iter(oracle.groups)),)
    names = (attribute,) if isinstance(attribute, str) else tuple(attribute)
    if not names or len(set(names)) != len(names):
        raise ConfigError("name at least one attribute, each once")
    for name in names:
        oracle.labels(name)  # raises for unknown ones
    return names


def one_column(y: Any) -> NDArray[Any]:
    """Labels as one column of classes; a DataError instead of scikit-learn's own complaint."""
    try:
        column = np.asarray(column_or_1d(y, warn=True))
    except ValueError as error:
        raise DataError(f"y must be one label per row: {error}") from error
    if not pd.isna(column).any():
        with suppress(TypeError):  # gaps and labels of two kinds: `class_numbers` has the words
            check_classification_targets(column)
    return column


def for_any_table(tags: Any) -> Any:
    """scikit-learn's tags of an estimator that takes text, gaps and sparse matrices."""
    for name in ("allow_nan", "sparse", "categorical", "string"):
        setattr(tags.input_tags, name, True)
    return tags


def warn_of_attributes(oracle: GroupOracle, names: Sequence[str]) -> None:
    """The company cannot see attributes, but it can see a column that is called like one."""
    attributes = {name.casefold() for name in oracle.groups}
    alike = [name for name in names if str(name).strip().casefold() in attributes]
    if alike:
        warnings.warn(
            f"column {alike[0]!r} of X is named like a sensitive attribute. If it is that "
            "attribute, you already hold what the regulator protects, and the model may decide by "
            "it; drop the column unless you mean to use it",
            AttributeAmongFeaturesWarning,
            stacklevel=4,
        )


def check_pooled(oracle: GroupOracle, X: Any) -> None:
    """Several lenders learn together by a map that their plan fixes, and that X must fit."""
    if oracle.terms.feature_map is None:
        raise ConfigError(
            "the plan is one of several companies and has no feature map, so each would send sums "
            "of other features. Make the map (isonomy-company feature-map) and a plan with it "
            "(plan --feature-map). Nothing was asked."
        )
    for remark in check_table(oracle.terms.feature_map, X):
        warnings.warn(remark, FeatureMapWarning, stacklevel=4)


def affordable_units(
    oracle: GroupOracle, epsilon: float | None, way_out: str = REUSE, *, records: bool = False
) -> int:
    """μ² (in units) that this fit may spend: the part that ε names, or what the plan has left but
    for a tenth, which is kept for audits, or for what the plan itself keeps for them.

    `way_out`: what to do where nothing is left. `records`: whole records are protected, so that
    nothing may be audited, and nothing is kept.
    """
    budget = oracle.budget
    unspent = budget.cap_units - budget.spent_units - _planned(oracle)
    keeps = epsilon is None and not records and not oracle.terms.audits.number
    affordable = unspent - (_kept_for_audits(oracle) if keeps else 0)
    if affordable <= SPENT * budget.cap_units:
        rest = "" if affordable == unspent else ", but for what is kept for audits"
        raise BudgetExceeded(
            f"the plan's ε = {budget.cap_epsilon:.4g} is spent{rest}. Nothing was asked. {way_out}"
        )
    if epsilon is None:
        return affordable
    units = units_for(epsilon, budget.delta)
    if units > unspent:
        raise BudgetExceeded(
            f"epsilon = {epsilon:g} is more than the plan has left: ε = "
            f"{epsilon_of(unspent, budget.delta):.4g} of {budget.cap_epsilon:.4g}. "
            "Nothing was asked. Leave epsilon out to take what is left."
        )
    return units


def _planned(oracle: GroupOracle) -> int:
    """Units that the plan keeps for audits which this oracle has not asked for yet."""
    planned = oracle.terms.audits
    return max(planned.kept(0) - oracle.budget.audit_units, 0)


def _kept_for_audits(oracle: GroupOracle) -> int:
    """Units of the reserve that no audit has spent yet.

    Where whole records are protected audits are refused, and an individual filter has a reserve of
    its own: nothing is kept there.
    """
    capabilities, budget = oracle.capabilities, oracle.budget
    if capabilities.record_private or capabilities.filtered:
        return 0
    return max(math.ceil(RESERVE * budget.cap_units) - budget.audit_units, 0)


def check_useful(
    oracle: GroupOracle, attributes: Sequence[str], persons: int, units: int, audits: int
) -> Prices:
    """Refuse, before spending, a budget whose audits could tell nothing, or that measures no group.

    An audit's noise has deviation √moves/μ, so with k groups of equal size (the best case) the gap
    of two rates is known to √(moves)·c·k/(n·μ), c = 2 for two groups (they mirror each other), √2
    for more. Two groups can be measured if both have MEASURED noise deviations of people.
    """
    prices = Prices.of(oracle, units, audits)
    mu = float(np.sqrt(prices.audit * oracle.budget.cap_units / UNITS_PER_MU2))
    sizes = [len(oracle.labels(attribute)) for attribute in attributes]
    moves = sum(1 if size == 2 else 2 for size in sizes)
    deviation = max(
        np.sqrt(moves) * (2.0 if size == 2 else np.sqrt(2.0)) * size / (persons * mu)
        if mu > 0
        else np.inf
        for size in sizes
    )
    least = 2 * MEASURED * _count_deviation(oracle, attributes, prices)
    lacking = max(deviation / USELESS, least / persons)  # both fall with 1/μ
    if not lacking <= 1:
        why = f"an audit would know a difference of rates to ±{deviation:.2g} at best"
        if least / persons > deviation / USELESS:
            why = f"of fewer than {least:,.0f} people no two groups could be measured"
        raise ConfigError(
            f"ε = {epsilon_of(units, oracle.budget.delta):.3g} with {persons} people is too small "
            f"to release anything useful: {why}. Nothing was spent. "
            f"{_needed(oracle, units, lacking)}"
        )
    return prices


def _needed(oracle: GroupOracle, units: int, lacking: float) -> str:
    """What to do where the noise is `lacking` times what it may be: μ² has to grow by its square.

    ε does not grow as μ does, so it is computed anew; rounded up, with a reserve for whole units.
    """
    if not math.isfinite(lacking):
        return "The budget is too small even for one unit of noise."
    budget, more = oracle.budget, 1.001 * lacking**2 * units
    kept = _planned(oracle) or _kept_for_audits(oracle)
    plan = more * budget.cap_units / (budget.cap_units - kept)
    least = f"Needed are at least ε = {_at_least(more, budget.delta)} for this model"
    if plan > budget.cap_units:
        least += f", as a plan of ε = {_at_least(plan, budget.delta)} leaves it"
    return f"{least}; or {lacking:.1f} times the people."


def _at_least(units: float, delta: float) -> str:
    """ε of these units, rounded up to three digits."""
    epsilon = epsilon_of(math.ceil(units), delta)
    digits = 2 - math.floor(math.log10(epsilon))
    return f"{math.ceil(epsilon * 10**digits) / 10**digits:.3g}"


def _count_deviation(oracle: GroupOracle, attributes: Sequence[str], prices: Prices) -> float:
    """The noise of a group's count, in people."""
    sizes = tuple(len(oracle.labels(attribute)) for attribute in attributes)
    units = int(prices.counts * oracle.budget.cap_units)
    if not units:
        return math.inf
    return cost_of("groups", sizes, oracle.params).sigma_for(units) / oracle.params.row_bound


def check_labels(
    oracle: GroupOracle,
    attributes: Sequence[str],
    prices: Prices,
    events: Sequence[Event],
    labels: Ints,
    weight: Floats,
) -> None:
    """Refuse, before spending, a label that too few people have to compare any two groups.

    How many have it is the company's own number; each group needs MEASURED noise deviations.
    """
    deviation = _count_deviation(oracle, attributes, prices)
    for event in events:
        people = float(weight @ event.members(labels))
        needed = 2 * MEASURED * deviation * np.sqrt(max(1, len(event.labels)))
        if event.labels and people < needed:
            raise DataError(
                f"{people:.0f} people are too few to compare two groups by {event.name!r}. "
                f"At this budget about {np.ceil(needed):.0f} are needed. Nothing was spent. Merge "
                "small classes, or leave their rows out."
            )


@dataclass(frozen=True)
class Classes:
    """Classes as scikit-learn lists them, and as rules number them: the favourable one last."""

    listed: NDArray[Any]  # sorted
    order: Ints  # listed[order] is in the order of the numbers
    numbers: Ints  # (rows,)

    @property
    def by_number(self) -> list[Any]:
        return list(self.listed[self.order])

    @property
    def pos_label(self) -> Any:
        return self.by_number[-1]


def in_listed_order(proba: Floats, order: Ints) -> Floats:
    """(n, classes) by number -> as scikit-learn lists the classes."""
    listed = np.empty_like(proba)
    listed[:, order] = proba
    return listed


def class_numbers(y: Any, rows: int, pos_label: Any) -> Classes:
    """Classes and each row's class number; refuses classes of which none is known to be good."""
    target = np.asarray(y)
    if target.ndim != 1 or len(target) != rows:
        raise DataError(f"y must be one label per row of X ({rows}); got shape {target.shape}")
    missing = int(pd.isna(target).sum())
    if missing:
        raise DataError(f"{missing} rows have no label (NaN or None); leave them out")
    try:
        classes, numbers = np.unique(target, return_inverse=True)
    except TypeError:
        raise DataError("labels of different kinds cannot be put in order; use one kind") from None
    if len(classes) < 2:
        raise DataError("y holds one class only; there is nothing to decide")
    good = favourable(classes.tolist(), pos_label)
    chosen = int(np.flatnonzero([each == good for each in classes.tolist()])[0])
    order = np.append(np.delete(np.arange(len(classes)), chosen), chosen)
    return Classes(classes, order, np.argsort(order)[numbers].astype(np.int64))


def check_confidence(confidence: object) -> None:
    """Refuse what is no chance above one half."""
    if confidence is None:
        return
    number = isinstance(confidence, int | float) and not isinstance(confidence, bool)
    if not (number and 0.5 <= float(confidence) < 1):  # type: ignore[arg-type]
        raise ConfigError(
            f"confidence is a chance of at least 0.5 and below 1 (0.9 is usual), or None; "
            f"got {confidence!r}"
        )
