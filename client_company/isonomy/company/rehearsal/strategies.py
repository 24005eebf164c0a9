"""What a strategy gets in a rehearsal, what it returns, and the strategies there are.

A strategy is a function from `Rehearsal` to `Trained`. To add one, put it in `STRATEGIES`:

    def my_strategy(rehearsal: Rehearsal) -> Trained: ...
    STRATEGIES["my_strategy"] = my_strategy
"""

from __future__ import annotations

import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone

from isonomy.common.agreements.notions import SCORE_NOTIONS
from isonomy.common.agreements.plan import MILLION
from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import ConfigError
from isonomy.common.keys.identity import Identity
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.pads.company import PadRows
from isonomy.common.pads.key_store import KeyStore
from isonomy.common.pads.regulator import PadCarrier
from isonomy.common.people.cohort import AttributeTable, Cohort
from isonomy.common.privacy.accounting import laplace_units, units_for
from isonomy.common.sums.channel import Channel, Needs, check_needs
from isonomy.common.sums.company_half import ColumnProducts, EncryptedChannel
from isonomy.common.sums.local import LocalChannel, scratch_folder, true_groups
from isonomy.common.sums.noise_and_budget import Custodian
from isonomy.common.sums.oracle import FilteredOracle, GroupOracle
from isonomy.common.sums.question import Terms
from isonomy.common.sums.regulator_half import DirectPort, RegulatorHalf
from isonomy.company.fair.tilt.verdict import GapWarning

if TYPE_CHECKING:
    from isonomy.company.gradient.run.paper_epsilon import PaperEpsilon

TOLERANCE = 0.01  # the violation that tilt aims at if nobody says otherwise
SCORE_TOLERANCE = 0.05  # the same for the distance of scores
GRADIENT = ("pf_ld", "f_ld", "dp_fermi", "dp_sgda")
RECORD_PRIVATE = ("pf_ld", "dp_fermi")
FILTERED = (*RECORD_PRIVATE, "dp_sgda")
Decide = Callable[[pd.DataFrame], NDArray[Any]]  # decisions 0 or 1; for a notion of scores: scores
DecideByGroup = Callable[[pd.DataFrame, NDArray[np.int64]], NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """The company's side of one run. The attributes are behind the oracle."""

    estimator: Any  # unfitted, with predict_proba
    features: pd.DataFrame  # (rows, columns), training people only
    target: NDArray[Any]  # (rows,) 0 or 1; for a notion of scores it may be any number
    ids: Sequence[str]  # (rows,) whose row it is
    oracle: GroupOracle
    attribute: str
    notion: str
    tolerance: float
    seed: int
    keep_selection_rate: bool
    options: Mapping[str, Any] = field(default_factory=dict)  # of the strategy, by name
    stop_within: float | None = None  # an explicit tolerance: gradient runs end at it
    record_epsilon: float | None = None  # protect whole records, too
    others: pd.DataFrame | None = None  # features of people who are not in training

    def options_among(self, *names: str) -> dict[str, Any]:
        """The options, all of which must be among `names`."""
        unknown = sorted(set(self.options) - set(names))
        if unknown:
            raise ConfigError(
                f"no option {', '.join(unknown)}; this strategy has {', '.join(names) or 'none'}"
            )
        return dict(self.options)

    def true_groups(self, who: str) -> NDArray[np.int64]:
        """(rows,) true groups, for baselines that no regulator would answer."""
        codes = true_groups(self.oracle, who, self.attribute)
        return np.asarray(codes[self.oracle.cohort.positions(self.ids)])


@dataclass(frozen=True)
class Trained:
    """Decisions (or scores) of the result and of the base model; `returned` says which it is."""

    decide: Decide
    base_decide: Decide
    returned: str  # "base", "tilt" or "shrunk"; other strategies: their own name
    decide_by_group: DecideByGroup | None = None  # used instead: needs everybody's attribute
    epsilon_spent: float | None = None  # where the ledger's sum is not the figure to show
    accounting: str = ""  # what the guarantee is, where it is not the ledger's (ε, δ)
    papers: PaperEpsilon | None = None  # ε for records, where these are protected
    stopped: str = ""  # why training ended: "rounds", "budget" or "callback"; "": it has no rounds


Strategy = Callable[[Rehearsal], Trained]


def decider(model: Any) -> Decide:
    """Hard decisions of any fitted classifier."""

    def decide(features: pd.DataFrame) -> NDArray[np.int64]:
        return np.asarray(model.predict(features), dtype=np.int64)

    return decide


def not_private(
    decide: Decide, base_decide: Decide, name: str, by_group: DecideByGroup | None = None
) -> Trained:
    """The result of a method that sees the true attributes: a comparison without any ε."""
    accounting = "none: trained on the true attributes"
    return Trained(decide, base_decide, name, by_group, math.inf, accounting)


def tilt(rehearsal: Rehearsal) -> Trained:
    """The default: a private proxy tilts the base model's decision (docs/tilt.md)."""
    from isonomy.company.fair.estimator import FairClassifier

    rehearsal.options_among()
    if rehearsal.notion in SCORE_NOTIONS:
        return _tilted_score(rehearsal)
    model = FairClassifier(
        rehearsal.estimator,
        notion=rehearsal.notion,
        tolerance=rehearsal.tolerance,
        oracle=rehearsal.oracle,
        epsilon=rehearsal.oracle.budget.cap_epsilon,  # all: nobody audits a rehearsal
        attribute=rehearsal.attribute,
        random_state=rehearsal.seed,
        keep_selection_rate=rehearsal.keep_selection_rate,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GapWarning)  # a rehearsal shows the true gap itself
        model.fit(rehearsal.features, rehearsal.target, ids=rehearsal.ids)
    return Trained(decider(model), decider(model.base_estimator_), str(model.report_.returned))


def _tilted_score(rehearsal: Rehearsal) -> Trained:
    """The same for scores (docs/scores.md)."""
    from isonomy.company.fair.scores.base import score_of
    from isonomy.company.fair.scores.regressor import FairRegressor

    model = FairRegressor(
        rehearsal.estimator,
        tolerance=rehearsal.tolerance,
        oracle=rehearsal.oracle,
        epsilon=rehearsal.oracle.budget.cap_epsilon,
        attribute=rehearsal.attribute,
        random_state=rehearsal.seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GapWarning)  # a rehearsal shows the true gap itself
        model.fit(rehearsal.features, rehearsal.target, ids=rehearsal.ids)
    base = partial(score_of, model.base_estimator_)
    return Trained(model.predict, base, model.report_.returned)


def unconstrained(rehearsal: Rehearsal) -> Trained:
    """The base model as it is. Asks the oracle nothing."""
    rehearsal.options_among()
    model = clone(rehearsal.estimator).fit(rehearsal.features, rehearsal.target)
    return Trained(decider(model), decider(model), "base")


def _lazy(module: str, *arguments: str, needs: Needs | None = None) -> Strategy:
    """`train` of a module that is loaded when it runs. `needs`: of a rival, for comparison only.

    Torch takes seconds to load, and `compare` is the room above, which this one may not import.
    """

    def train(rehearsal: Rehearsal) -> Trained:
        if needs is not None:
            check_needs(needs, rehearsal.oracle.capabilities)
        room = import_module(f"isonomy.company.{module}")
        trained: Trained = room.train(*arguments, rehearsal)
        return trained

    return train


def _rival(name: str, module: str, *, private: bool = False) -> dict[str, Strategy]:
    """A method of `compare`; those that are not private read the true attributes."""
    return {name: _lazy(f"compare.{module}", needs=Needs(name, true_attributes=not private))}


STRATEGIES: dict[str, Strategy] = {
    "tilt": tilt,
    **{name: _lazy("rehearsal.gradient", name) for name in GRADIENT},
    **_rival("dp_postprocess", "jagielski.postprocess", private=True),
    **_rival("dp_oracle", "jagielski.oracle_learner", private=True),
    "unconstrained": unconstrained,
    **_rival("exponentiated_gradient", "baselines.fairlearn_reductions"),
    **_rival("linear_post", "baselines.linear_post"),
    **_rival("threshold_optimizer", "baselines.threshold_optimizer"),
    **_rival("zafar", "baselines.zafar"),
    **_rival("randomised_response", "baselines.randomised"),
    **_rival("dp_sgd_penalty", "baselines.dp_sgd"),
    **_rival("raco_dp", "baselines.raco_dp"),
}

_ODDS = ("equalized_odds", "equal_fpr", "equal_opportunity")
_USUAL = ("demographic_parity", "equalized_odds")
NOTIONS_OF: dict[str, tuple[str, ...]] = {  # strategies that are not listed check by themselves
    "dp_postprocess": _ODDS,
    "dp_oracle": _ODDS,
    "exponentiated_gradient": _USUAL,
    "threshold_optimizer": ("demographic_parity", *_ODDS),
    "zafar": _USUAL,
    "randomised_response": _USUAL,
    "dp_sgd_penalty": _USUAL,
    "raco_dp": _USUAL,
}


def check_notion(strategy: str, notion: str) -> None:
    """ConfigError for a notion that the strategy does not know, before anything is spent."""
    if notion in SCORE_NOTIONS and strategy != "tilt":
        raise ConfigError(f"{notion} is for tilt; got strategy {strategy!r}")
    notions = NOTIONS_OF.get(strategy)
    if notions is not None and notion not in notions:
        raise ConfigError(f"{strategy} is for {', '.join(notions)}; got notion {notion!r}")


PURE = ("dp_postprocess", "randomised_response")
"""Strategies that make one release of pure ε and nothing else.

A pure ε is stronger than (ε, δ). In the ledger's μ² it counts for several times its ε, because
there it must compose with anything; alone it must not be handicapped by that in a comparison.
"""


# --- Oracles over known attributes -----------------------------------------------------------


@contextmanager
def rehearsal_oracle(
    ids: Sequence[str],
    attributes: Mapping[str, Sequence[str | None]],
    groups: Mapping[str, Sequence[str]],
    *,
    epsilon: float,
    delta: float,
    encrypted: bool = False,
    pads: bool = False,
    pure: bool = False,
    stretch: float | None = None,
) -> Iterator[GroupOracle]:
    """An oracle over known attributes with a ledger of its own, gone when the block is left.

    `encrypted`: the real exchange, both halves in this process; otherwise the same noise and
    ledger without encryption. `pads`: the real exchange by pads. `pure`: the budget is that of one
    release of pure ε. `stretch`: under an individual filter (gradient.filters), everybody's cap
    reserved once.
    """
    millionths = max(1, int(epsilon * MILLION))
    cap_units = laplace_units(millionths, MILLION) if pure else units_for(epsilon, delta)
    table = AttributeTable(Cohort.of(ids), attributes, groups)
    plan = hash_bytes("isonomy/rehearsal/v1", os.urandom(32))
    with (
        tempfile.TemporaryDirectory(prefix="isonomy-rehearsal-", dir=scratch_folder()) as folder,
        Ledger.create(Path(folder) / "ledger.jsonl", cap_units=cap_units, delta=delta) as ledger,
    ):
        custodian = Custodian(table, ledger, plan=plan, member_key=os.urandom(32))
        individual = stretch is not None
        custodian.reserve(cap_units, individual=individual)
        channel: Channel
        if encrypted or pads:
            regulator, stores = Identity.generate(), partial(KeyStore, len(table.cohort))
            theirs = PadCarrier(custodian, stores(company=False)) if pads else None
            ours = partial(PadRows, store=stores(company=True)) if pads else ColumnProducts
            channel = EncryptedChannel(
                DirectPort(RegulatorHalf(custodian, regulator, carrier=theirs)),
                Terms(table.cohort, dict(table.groups), plan, cap_units, delta),
                regulator_key=regulator.public,
                individual=individual,
                carrier=ours,
            )
        else:
            channel = LocalChannel(
                table, custodian, plan=plan, cap_units=cap_units, delta=delta, individual=individual
            )
        oracle = GroupOracle(channel)
        if stretch is not None:
            oracle = FilteredOracle(oracle, stretch=stretch)
        yield oracle
