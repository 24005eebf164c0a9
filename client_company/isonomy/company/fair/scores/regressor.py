"""`FairRegressor`: a score that is distributed alike in groups whose members it never sees.

    reg = FairRegressor(HistGradientBoostingRegressor(), oracle=oracle, tolerance=0.05)
    reg.fit(X, y, ids=ids)              # spends the plan's privacy budget, once
    print(reg.report_)
    reg.predict(X_new)                  # one of a few levels; no attribute, no target
    reg.at(tolerance=0.1)               # free: the same releases

The notion is `score_parity`: P(score > t) differs by at most the tolerance between any two groups,
for every t. So whoever cuts the score later, wherever, selects all groups at about equal rates.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, RegressorMixin
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.utils import check_random_state
from sklearn.utils.validation import _num_samples, check_is_fitted, validate_data

from isonomy.common.base.errors import ConfigError
from isonomy.common.figures.figure import Figure
from isonomy.common.sums.channel import Needs
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.fair.inputs import checks
from isonomy.company.fair.inputs.copies import WithoutOracle
from isonomy.company.fair.inputs.features import fit_features
from isonomy.company.fair.inputs.people import People
from isonomy.company.fair.scores.base import checked_target, fit_scores, score_of
from isonomy.company.fair.scores.levels import Levels
from isonomy.company.fair.scores.score_figure import scores_figure
from isonomy.company.fair.scores.score_report import score_report
from isonomy.company.fair.tilt.analysis import Problem
from isonomy.company.fair.tilt.fit_report import Seconds
from isonomy.company.fair.tilt.model import TiltedModel
from isonomy.company.fair.tilt.newcomers import rows_of_people
from isonomy.company.fair.tilt.notions import checked_tolerance
from isonomy.company.fair.tilt.releases import AUDITS, Releases
from isonomy.company.fair.tilt.rule import HALF
from isonomy.company.fair.tilt.strategy import Outcome, conclude, run

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NEEDS = Needs("FairRegressor", pooled=False, filtered=False)
NOTION = "score_parity"
GROUP_LOSS = (
    "a model would learn it by giving the worst-off group more weight. Even weights that knew "
    "everybody's group changed its loss by about 1 % or less on three of four real sets, and on "
    "the fourth they cost everybody as much as it gained (docs/lab/scores.md)"
)
LEVELS = 8


@dataclass(frozen=True)
class _Fitted:
    """What `at` needs besides the outcome: the company's own rows."""

    outcome: Outcome
    score: Floats  # (rows,) out of fold
    y: Floats
    seconds: Seconds


class FairRegressor(WithoutOracle, RegressorMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Any regressor, or classifier with `predict_proba`, with scores distributed alike by group.

    | parameter | meaning |
    |---|---|
    | estimator | the base model; None: HistGradientBoostingRegressor() |
    | notion | score_parity; there is no other |
    | tolerance | largest accepted difference of two groups' shares above any level |
    | oracle | the handle to the regulator's attributes; copies and pickles have none |
    | epsilon | how much of the plan to spend; None: the rest, but a tenth is kept for audits |
    | attribute | an attribute, an intersection "sex*race", or several; None: the only one |
    | levels | most values that the score takes |
    | cv | folds of the out-of-fold scores |
    | audits | number of audits that share 40 % of the budget |

    After `fit`: `base_estimator_`, `report_`, `levels_` (the values), `releases_`.
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        notion: str = NOTION,
        tolerance: float = 0.05,
        oracle: GroupOracle | None = None,
        epsilon: float | None = None,
        attribute: str | Sequence[str] | None = None,
        levels: int = LEVELS,
        cv: int = 5,
        audits: int = AUDITS,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.notion = notion
        self.tolerance = tolerance
        self.oracle = oracle
        self.epsilon = epsilon
        self.attribute = attribute
        self.levels = levels
        self.cv = cv
        self.audits = audits
        self.random_state = random_state

    def fit(self, X: Any, y: Any, *, ids: Sequence[object] | None = None) -> FairRegressor:
        """Train the base model, buy the releases, find the levels' tilt; returns this regressor.

        `ids` says whose row it is. Only a rehearsal may leave it out: row i is then person i of the
        oracle's cohort. Wrong input is refused before anything is spent.
        """
        if self.notion != NOTION:
            refusal = GROUP_LOSS if self.notion == "bounded_group_loss" else "there is no other"
            raise ConfigError(f"notion must be {NOTION!r}, got {self.notion!r}: {refusal}")
        oracle = checks.checked_oracle(self.oracle, NEEDS)
        attributes = checks.checked_attributes(oracle, self.attribute)
        tables = (X, y)
        X, y = validate_data(self, X, y, skip_check_array=True)
        base = HistGradientBoostingRegressor() if self.estimator is None else self.estimator
        target = checked_target(base, y, _num_samples(X), self.cv)
        tolerance = checked_tolerance(self.tolerance)
        for name, least in (("audits", 1), ("levels", 2)):
            if not (isinstance(getattr(self, name), int) and getattr(self, name) >= least):
                raise ConfigError(f"{name} must be at least {least}")
        nobody = np.zeros(len(target), dtype=np.int64)  # no label matters
        whose = rows_of_people(oracle, ids, nobody, None, None, *tables)
        checks.warn_of_attributes(oracle, getattr(self, "feature_names_in_", ()))
        people = People.of(whose.positions, nobody)
        units = checks.affordable_units(oracle, self.epsilon)
        persons = len(np.unique(whose.positions))
        prices = checks.check_useful(oracle, attributes, persons, units, self.audits)
        self._budget = oracle.budget
        self.base_estimator_, score, seconds = fit_scores(
            base, X, target, people, self.cv, self.random_state
        )
        levels = Levels.of(score, target, people.weight, self.levels)
        problem = Problem(
            people,
            nobody,
            levels.utilities(score),
            levels.events,
            np.full((len(attributes), len(levels.events)), tolerance),
            identity=whose.identity,
            losses=levels.losses(target),
        )
        started = time.perf_counter()
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31 - 1))
        features = fit_features(X, score, rng)
        with oracle.declared("tilt", NOTION):
            outcome = run(
                oracle,
                problem,
                X,
                features,
                score,
                attributes=attributes,
                prices=prices,
                audits=self.audits,
            )
        seconds = replace(seconds, fairness=time.perf_counter() - started)
        self.releases_: Releases | None = outcome.releases
        return self._adopt(levels, _Fitted(outcome, score, target, seconds))

    def _adopt(self, levels: Levels, fitted: _Fitted) -> FairRegressor:
        """Take over an outcome as this regressor's rule, values and report."""
        outcome, y, weight = fitted.outcome, fitted.y, fitted.outcome.view.people.weight
        land = outcome.view.land
        plain, _ = land.decide(outcome.tilt.times(0.0))
        decided, _ = land.decide(outcome.tilt)
        self.level_model_ = levels.calibrated(decided, y, weight)
        self.levels_ = self.level_model_.values
        self.model_ = TiltedModel(
            outcome.features, outcome.proxy, outcome.tilt, levels.events, retrained=False, cut=HALF
        )
        base = levels.calibrated(plain, y, weight).values[plain]
        losses = [
            float(weight @ (y - each) ** 2 / weight.sum())
            for each in (fitted.score, base, self.levels_[decided])
        ]
        self.report_ = score_report(
            outcome,
            self.level_model_,
            (losses[0], losses[1], losses[2]),
            float(self.tolerance),
            self._budget,
            fitted.seconds,
        )
        self.report_.warn()
        self._fitted: _Fitted | None = fitted
        return self

    def predict(self, X: Any) -> Floats:
        """(n,) fair scores, each one of `levels_`."""
        check_is_fitted(self, "model_")
        validate_data(self, X, skip_check_array=True, reset=False)
        score = score_of(self.base_estimator_, X)
        chosen = self.model_.decide(X, self.level_model_.utilities(score), score)
        return np.asarray(self.levels_[chosen])

    def at(self, *, tolerance: float) -> FairRegressor:
        """The regressor for another tolerance; spends nothing and leaves this one as it is."""
        check_is_fitted(self, "model_")
        fitted = getattr(self, "_fitted", None)
        if fitted is None:
            raise ConfigError("this model was loaded without its training rows; fit it again")
        other = copy.copy(self)
        other.tolerance, other.oracle = checked_tolerance(tolerance), self.oracle
        outcome = fitted.outcome
        land = outcome.view.land
        land = replace(land, tolerance=np.full_like(land.tolerance, other.tolerance))
        view = replace(outcome.view, land=land)
        again = conclude(view, view, outcome.proxy, outcome.features)
        return other._adopt(self.level_model_, replace(fitted, outcome=again))

    def plot_groups(self) -> Figure:
        """A picture of each group's share above each level, before and after."""
        check_is_fitted(self, "report_")
        return scores_figure(self.report_)

    def __sklearn_tags__(self) -> Any:
        return checks.for_any_table(super().__sklearn_tags__())
