"""`FairClassifier`: a scikit-learn classifier, fair to groups whose members it never sees.

    oracle = ...                                      # the handle to the regulator's attributes
    clf = FairClassifier(HistGradientBoostingClassifier(), oracle=oracle, tolerance=0.01)
    clf.fit(X, y, ids=ids)                            # spends the plan's privacy budget, once
    print(clf.report_)                                # what it did, in words
    clf.predict(X_new)                                # no attribute, no label
    clf.frontier(); clf.at(tolerance=0.05)            # free: post-processing of what was released
    clf.plot_frontier(); clf.plot_groups()            # pictures of the two, also free
    clf.monitor(X_today)                              # free: do people still look like then?

Sensitive attributes never reach the company's side: `oracle` answers with noised group sums only.
Retraining with another base model on the same people costs no privacy either:

    FairClassifier(other_model, oracle=oracle, releases=clf.releases_).fit(X, y, ids=ids)
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.utils import check_random_state
from sklearn.utils.validation import _num_samples, check_is_fitted, validate_data

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.figures.figure import Figure
from isonomy.common.sums.channel import Needs
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.fair.figures import frontier_figure, groups_figure
from isonomy.company.fair.inputs import checks
from isonomy.company.fair.inputs.base import check_base, check_threshold, cut_of, fit_base
from isonomy.company.fair.inputs.copies import WithoutOracle
from isonomy.company.fair.inputs.features import FeatureMap, fit_features
from isonomy.company.fair.inputs.people import People
from isonomy.company.fair.inputs.public_map import public_map
from isonomy.company.fair.monitor import Drift, Reference, compare
from isonomy.company.fair.onnx_export import Schema, export
from isonomy.company.fair.tilt.analysis import Problem, View
from isonomy.company.fair.tilt.fit_report import (
    Point,
    Seconds,
    Terms,
    extreme_selection,
    measure,
    report_of,
    report_of_exactly_fair,
)
from isonomy.company.fair.tilt.model import TiltedModel
from isonomy.company.fair.tilt.newcomers import check_features, rows_of_people
from isonomy.company.fair.tilt.notions import Event, centred, events_of, tolerances_of
from isonomy.company.fair.tilt.releases import AUDITS, Prices, Releases
from isonomy.company.fair.tilt.rule import Tilt, base_margins, decide
from isonomy.company.fair.tilt.strategy import Newcomers, Outcome, conclude, reuse, run

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_TOLERANCES = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3)

NEEDS = Needs("FairClassifier", pooled=True, filtered=False)


class ExtremeSelectionWarning(UserWarning):
    """Nearly everybody or nobody is selected after the tilt."""


@dataclass(frozen=True)
class _Task:
    """The input of one fit, checked. `terms`: what to pay, or releases that were bought before."""

    oracle: GroupOracle
    attributes: tuple[str, ...]
    X: Any
    y: NDArray[Any]
    labels: Ints  # (rows,) class numbers
    events: tuple[Event, ...]
    tolerance: Floats  # (attributes, events)
    people: People
    base: Any  # unfitted
    terms: Prices | Releases
    identity: bytes  # fingerprint of the rows
    newcomers: Newcomers | None


class FairClassifier(WithoutOracle, ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Any classifier with `predict_proba`, tilted until it meets a fairness notion (strategy.py).

    | parameter | meaning |
    |---|---|
    | estimator | the base model; None: HistGradientBoostingClassifier() |
    | notion | one or several of `isonomy.company.NOTIONS` |
    | tolerance | largest accepted difference of two groups' rates (else: GapWarning); or by name |
    | confidence | with which the tolerance must be shown to be kept, e.g. 0.9; None: estimates do |
    | oracle | the handle to the regulator's attributes; copies and pickles have none |
    | epsilon | how much of the plan to spend; None: the rest, but a tenth is kept for audits |
    | attribute | an attribute, an intersection "sex*race", or several; None: the only one |
    | pos_label | the favourable decision; None: 1, for classes 0/1, -1/1 and booleans |
    | threshold | select at this probability and above; None: as the base model itself decides |
    | keep_selection_rate | keep the base model's share of positives (two classes) |
    | in_training | also retrain a `TorchClassifier` with the proxy's weights in its loss |
    | releases | reuse these, spend nothing |
    | earlier | releases of the first rows' people: the plan is about the other rows' only |
    | cv | folds of the out-of-fold scores |
    | audits | number of audits that share 40 % of the budget |

    After `fit`: `base_estimator_` (fitted), `report_`, `releases_` (keep them), `classes_`,
    `pos_label_`,
    `cut_` (who is above it is selected, before the tilt).
    """

    _shared = ("releases", "earlier")

    def __init__(
        self,
        estimator: Any = None,
        *,
        notion: str | Sequence[str] = "demographic_parity",
        tolerance: float | Mapping[str, float] = 0.01,
        confidence: float | None = None,
        oracle: GroupOracle | None = None,
        epsilon: float | None = None,
        attribute: str | Sequence[str] | None = None,
        pos_label: Any = None,
        threshold: float | None = None,
        keep_selection_rate: bool = False,
        in_training: bool = False,
        releases: Releases | None = None,
        earlier: Releases | None = None,
        cv: int = 5,
        audits: int = AUDITS,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.notion = notion
        self.tolerance = tolerance
        self.confidence = confidence
        self.oracle = oracle
        self.epsilon = epsilon
        self.attribute = attribute
        self.pos_label = pos_label
        self.threshold = threshold
        self.keep_selection_rate = keep_selection_rate
        self.in_training = in_training
        self.releases = releases
        self.earlier = earlier
        self.cv = cv
        self.audits = audits
        self.random_state = random_state

    # --- Fit -----------------------------------------------------------------------------------

    def fit(
        self, X: Any, y: Any, *, ids: Sequence[object] | None = None, sample_weight: Any = None
    ) -> FairClassifier:
        """Train the base model, buy the releases, find the tilt; returns this classifier.

        `ids` says whose row it is. Only a rehearsal may leave it out: row i is then person i of the
        oracle's cohort. Wrong input is refused before anything is spent.
        """
        if sample_weight is not None:
            raise ConfigError(
                "sample_weight is not supported: fairness is measured per person, each counting "
                "once. Weight inside the base estimator, or resample the rows before fit."
            )
        task = self._checked(X, y, ids)
        self._budget = task.oracle.budget  # of the report: a copy without oracle has one too
        self.base_estimator_, proba, seconds = fit_base(
            task.base, task.X, task.y, task.labels, task.people, self.cv, self.random_state
        )
        self.fair_estimator_ = self.base_estimator_
        self.schema_ = Schema.of(task.X)
        proba = proba[:, self.class_order_]
        self.cut_ = cut_of(
            self.base_estimator_, self.threshold, task.X, self.pos_label_, self.class_order_
        )
        problem = Problem(
            task.people,
            task.labels,
            proba,
            task.events,
            task.tolerance,
            self.keep_selection_rate,
            self.cut_,
            self.confidence,
            task.identity,
        )

        started = time.perf_counter()
        if isinstance(task.terms, Releases):
            outcome = reuse(problem, task.X, task.terms, task.terms.features.without_bins())
        elif _never_differs(problem) and not task.oracle.capabilities.pooled:
            return self._keep_base(problem, task, seconds)
        else:
            outcome = self._buy(problem, task, task.terms)
        self.reference_ = Reference.of(outcome.features, task.X, task.people)
        return self._adopt(outcome, replace(seconds, fairness=time.perf_counter() - started))

    def _checked(self, X: Any, y: Any, ids: Sequence[object] | None) -> _Task:
        """The input of a fit, or an error that says what is wrong with it. Spends nothing."""
        oracle = checks.checked_oracle(self.oracle, NEEDS)
        attributes = checks.checked_attributes(oracle, self.attribute)
        tables = (X, y)
        X, y = validate_data(self, X, y, skip_check_array=True)
        rows = _num_samples(X)
        y = checks.one_column(y)
        classes = checks.class_numbers(y, rows, self.pos_label)
        self.classes_, labels = classes.listed, classes.numbers
        self.class_order_, self.pos_label_ = classes.order, classes.pos_label
        events = events_of(self.notion, classes.by_number)
        tolerance = tolerances_of(self.notion, self.tolerance, classes.by_number, attributes)
        base = self._checked_base(labels)
        for name in ("earlier", "releases"):
            if not isinstance(getattr(self, name), Releases | None):
                raise ConfigError(
                    f"{name} takes a model's releases_, or what load_releases gives. Nothing was "
                    "asked."
                )
        whose = rows_of_people(oracle, ids, labels, self.earlier, self.releases, *tables)
        positions = whose.positions
        checks.warn_of_attributes(oracle, getattr(self, "feature_names_in_", ()))
        if oracle.capabilities.pooled and self.releases is None:
            checks.check_pooled(oracle, X)
        if self.earlier is not None:
            self._check_earlier(oracle, self.earlier, attributes, events)
        # Releases by label must be read by label, also for a notion that would not need it.
        by_label = any(event.by_label for event in events) or (
            self.releases is not None and self.releases.strata > 1
        )
        strata = labels if by_label else np.zeros(rows, dtype=np.int64)
        if self.earlier is not None:
            check_features(self.earlier, X, positions, strata, oracle.params.row_bound)
        people = People.of(positions, strata)
        terms: Prices | Releases
        if self.releases is not None:
            terms = self.releases
        else:
            units = checks.affordable_units(oracle, self.epsilon)
            persons = len(np.unique(positions[whose.asked]))
            terms = checks.check_useful(oracle, attributes, persons, units, self.audits)
            checks.check_labels(
                oracle, attributes, terms, events, labels[whose.asked], people.weight[whose.asked]
            )
        return _Task(
            oracle,
            attributes,
            X,
            y,
            labels,
            events,
            tolerance,
            people,
            base,
            terms,
            whose.identity,
            whose.newcomers(strata, self.earlier),
        )

    def _check_earlier(
        self,
        oracle: GroupOracle,
        earlier: Releases,
        attributes: tuple[str, ...],
        events: tuple[Event, ...],
    ) -> None:
        """Refuse what does not go with people who join those of an earlier plan."""
        if self.releases is not None or self.in_training or oracle.capabilities.pooled:
            raise ConfigError(
                "earlier=… goes with one company's plan about its new people, and neither with "
                "releases=… nor with in_training. Nothing was asked."
            )
        earlier.check_newcomers(attributes, events)

    def _checked_base(self, labels: Ints) -> Any:
        """The unfitted base model; refuses settings that do not fit it or the labels."""
        checks.check_confidence(self.confidence)
        if self.keep_selection_rate and len(self.classes_) > 2:
            raise ConfigError("keep_selection_rate needs two classes")
        if not (isinstance(self.audits, int) and self.audits >= 1):
            raise ConfigError(f"audits must be at least 1, got {self.audits!r}")
        if self.in_training:
            from isonomy.company.fair.tilt.torch_twin import check_trainable

            check_trainable(self.estimator)
        base = HistGradientBoostingClassifier() if self.estimator is None else self.estimator
        check_base(base, labels, self.cv)
        check_threshold(base, self.threshold, len(self.classes_))
        return base

    def _buy(self, problem: Problem, task: _Task, prices: Prices) -> Outcome:
        """Ask the regulator: counts, moments, audits (strategy.py)."""
        score = _score(problem.proba)
        features = self._features(task, score)
        with task.oracle.declared("tilt", self.notion):
            return run(
                task.oracle,
                problem,
                task.X,
                features,
                score,
                attributes=task.attributes,
                prices=prices,
                audits=self.audits,
                newcomers=task.newcomers,
                retrain=self._retrainer(task.X, task.y, problem) if self.in_training else None,
            )

    def _features(self, task: _Task, score: Floats) -> FeatureMap:
        """φ: fitted to X, or the plan's own where several lenders learn together."""
        if self.earlier is not None:  # sums add up only under one φ; the score is another one now
            return self.earlier.features.without_bins()
        agreed = task.oracle.terms.feature_map
        if agreed is not None:
            return public_map(agreed, score)
        many = any(len(task.oracle.labels(attribute)) > 2 for attribute in task.attributes)
        return fit_features(task.X, score, _generator(self.random_state), many=many)

    def _retrainer(self, X: Any, y: Any, problem: Problem) -> Any:
        from isonomy.company.fair.tilt.torch_twin import retrain

        def retrained(view: View) -> Problem:
            self.fair_estimator_, proba = retrain(
                self.base_estimator_, X, y, view, self.cv, self.class_order_
            )
            return replace(problem, proba=proba)

        return retrained

    def _adopt(self, outcome: Outcome, seconds: Seconds) -> FairClassifier:
        """Take over an outcome as this classifier's rule and report."""
        events = outcome.view.land.events
        self.model_ = TiltedModel(
            outcome.features, outcome.proxy, outcome.tilt, events, outcome.retrained, self.cut_
        )
        self.report_ = report_of(outcome, self._terms(), self._budget, seconds)
        extreme = extreme_selection(
            self.report_.selection_rate, keeps_rate=self.keep_selection_rate
        )
        if extreme and outcome.returned != "base":
            warnings.warn(extreme, ExtremeSelectionWarning, stacklevel=3)
        self.report_.warn()
        self._outcome: Outcome | None = outcome
        self._seconds = seconds
        self.releases_: Releases | None = outcome.releases
        return self

    def _terms(self) -> Terms:
        names = (self.notion,) if isinstance(self.notion, str) else tuple(self.notion)
        threshold = round(self.cut_, 15) if len(self.classes_) == 2 else None
        reused = self.releases is not None
        return Terms(" + ".join(names), str(self.pos_label_), threshold, reused, self.confidence)

    def _keep_base(self, problem: Problem, task: _Task, seconds: Seconds) -> FairClassifier:
        """Decisions that never differ within an event are exactly fair: nothing to buy."""
        groups = tuple(label for name in task.attributes for label in task.oracle.labels(name))
        none = Tilt.none(len(groups), len(problem.events))
        self.model_ = TiltedModel(None, None, none, problem.events, retrained=False, cut=self.cut_)
        self.report_ = report_of_exactly_fair(
            problem, self._terms(), task.attributes, groups, task.oracle.budget, seconds
        )
        self.releases_, self._outcome = None, None  # `frontier` and `at` have nothing to go by
        return self

    # --- Predict -------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> Floats:
        """(n, classes) tilted scores; the largest, or one above the cut-off, is what is decided."""
        check_is_fitted(self, "model_")
        validate_data(self, X, skip_check_array=True, reset=False)
        fair, base = self._scores(X)
        return checks.in_listed_order(self.model_.probabilities(X, fair, base), self.class_order_)

    def predict(self, X: Any) -> NDArray[Any]:
        check_is_fitted(self, "model_")
        validate_data(self, X, skip_check_array=True, reset=False)
        fair, base = self._scores(X)
        return np.asarray(self.classes_[self.class_order_[self.model_.decide(X, fair, base)]])

    def _scores(self, X: Any) -> tuple[Floats, Floats]:
        """(n, classes) of the model that decides, and (n,) base score that φ knows."""
        base = self._proba(self.base_estimator_, X)
        if not self.model_.retrained:
            return base, _score(base)
        return self._proba(self.fair_estimator_, X), _score(base)

    def _proba(self, model: Any, X: Any) -> Floats:
        """(n, classes) in the order of the class numbers."""
        return np.asarray(model.predict_proba(X), dtype=np.float64)[:, self.class_order_]

    def to_onnx(self, path: str | Path, X: Any = None) -> Path:
        """Write the whole decision as one ONNX file (onnx_export); X: rows to check it on.

        Needs the extra `isonomy[onnx]`. Nothing is written unless the file decides as this model.
        """
        return export(self, path, X)

    # --- Free afterwards -----------------------------------------------------------------------

    def frontier(self, tolerances: Sequence[float] = _TOLERANCES) -> list[Point]:
        """Error against violation for other tolerances, from the releases already paid for."""
        points = []
        for tolerance in tolerances:
            outcome = self._outcome_at(tolerance)
            point = measure(outcome.view, outcome.tilt)
            points.append(Point(**vars(point), tolerance=tolerance, returned=outcome.returned))
        return points

    def monitor(self, X: Any, *, ids: Sequence[object] | None = None) -> Drift:
        """Say by public features alone whether people still look like those of the training.

        `ids` says whose row it is; None: each row is a person. Costs nothing (monitor.py).
        """
        check_is_fitted(self, "model_")
        if self.model_.features is None or not hasattr(self, "reference_"):
            raise ConfigError(
                "there is nothing to compare with: the base model was exactly fair, so that no "
                "proxy was learnt, or an earlier version fitted this model"
            )
        rows = _num_samples(X)
        if not rows or (ids is not None and len(ids) != rows):
            raise DataError(
                f"monitor compares at least one row, with an id for each if there are ids; got "
                f"{rows} rows" + ("" if ids is None else f" and {len(ids)} ids")
            )
        whose = (
            np.arange(rows)
            if ids is None
            else np.unique(list(map(str, ids)), return_inverse=True)[1]
        )
        people = People.of(whose, np.zeros(rows, dtype=np.int64))
        selected = self.predict(X) == self.pos_label_
        before = self.report_.selection_rate
        return compare(self.reference_, self.model_.features, X, people, selected, before)

    def plot_frontier(self, tolerances: Sequence[float] = _TOLERANCES) -> Figure:
        """A picture of `frontier`, with the tolerance, this model and the base model."""
        points = self.frontier(tolerances)
        return frontier_figure(self.report_, points)

    def plot_groups(self) -> Figure:
        """A picture of each group's rates before and after, as `report_` has them."""
        check_is_fitted(self, "report_")
        return groups_figure(self.report_)

    def at(self, *, tolerance: float | Mapping[str, float]) -> FairClassifier:
        """The classifier for another tolerance; spends nothing and leaves this one as it is."""
        other = copy.copy(self)
        other.tolerance, other.oracle = tolerance, self.oracle
        return other._adopt(self._outcome_at(tolerance), self._seconds)

    def _outcome_at(self, tolerance: float | Mapping[str, float]) -> Outcome:
        """What the same releases give for another tolerance. Spends nothing."""
        check_is_fitted(self, "model_")
        outcome: Outcome | None = getattr(self, "_outcome", None)
        if outcome is None:
            raise ConfigError(
                "there is nothing to choose from: the base model was exactly fair, or this model "
                "was loaded without its training rows (fit again with releases=…, it is free)"
            )
        land, attributes = outcome.view.land, outcome.releases.attributes
        classes = list(self.classes_[self.class_order_])
        values = tolerances_of(self.notion, tolerance, classes, attributes)
        view = replace(outcome.view, land=replace(land, tolerance=values))
        # Without retraining, the base model is judged by the same view.
        base_view = view if outcome.base_view is outcome.view else outcome.base_view
        return conclude(view, base_view, outcome.proxy, outcome.features)

    def __sklearn_tags__(self) -> Any:
        return checks.for_any_table(super().__sklearn_tags__())


def _score(proba: Floats) -> Floats:
    """(n,) what φ's bins see of the base model: the favourable class's probability."""
    return np.asarray(proba[:, -1])


def _never_differs(problem: Problem) -> bool:
    decided = decide(base_margins(problem.proba, problem.cut))
    return not centred(problem.events, decided, problem.y, problem.people.weight)[0].any()


def _generator(random_state: Any) -> np.random.Generator:
    return np.random.default_rng(check_random_state(random_state).randint(2**31 - 1))
