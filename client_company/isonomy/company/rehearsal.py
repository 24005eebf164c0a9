"""What a strategy gets in a rehearsal, what it gives back, and the strategies there are.

A strategy is a function from `Rehearsal` to `Trained`. To add one, put it in `STRATEGIES`:

    def my_strategy(rehearsal: Rehearsal) -> Trained: ...
    STRATEGIES["my_strategy"] = my_strategy
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone

from isonomy.common.accounting import units_for
from isonomy.common.canonical import hash_bytes
from isonomy.common.cohort import AttributeTable, Cohort
from isonomy.common.company_half import EncryptedOracle
from isonomy.common.custodian import Custodian
from isonomy.common.identity import Identity
from isonomy.common.ledger import Ledger
from isonomy.common.local import LocalOracle
from isonomy.common.oracle import GroupOracle
from isonomy.common.regulator_half import RegulatorHalf

Decide = Callable[[pd.DataFrame], NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """The company's side of one run. The attributes are behind the oracle."""

    estimator: Any  # unfitted, with predict_proba
    features: pd.DataFrame  # (rows, columns), training people only
    target: NDArray[np.int64]  # (rows,) 0 or 1
    ids: Sequence[str]  # (rows,) whose row it is
    oracle: GroupOracle
    attribute: str
    notion: str
    tolerance: float
    seed: int
    keep_selection_rate: bool


@dataclass(frozen=True)
class Trained:
    """Hard decisions of the result and of the base model; `returned` says which it is."""

    decide: Decide
    base_decide: Decide
    returned: str  # "base", "tilt" or "shrunk"; other strategies: their own name


def tilt(rehearsal: Rehearsal) -> Trained:
    """The default: a private proxy tilts the base model's decision (TILT.md)."""
    from isonomy.company.estimator import FairClassifier

    model = FairClassifier(
        rehearsal.estimator,
        notion=rehearsal.notion,
        tolerance=rehearsal.tolerance,
        oracle=rehearsal.oracle,
        attribute=rehearsal.attribute,
        random_state=rehearsal.seed,
        keep_selection_rate=rehearsal.keep_selection_rate,
    )
    model.fit(rehearsal.features, rehearsal.target, ids=rehearsal.ids)
    return Trained(_decider(model), _decider(model.base_estimator_), str(model.report_.returned))


def unconstrained(rehearsal: Rehearsal) -> Trained:
    """The base model as it is. Asks the oracle nothing."""
    model = clone(rehearsal.estimator).fit(rehearsal.features, rehearsal.target)
    return Trained(_decider(model), _decider(model), "base")


STRATEGIES: dict[str, Callable[[Rehearsal], Trained]] = {
    "tilt": tilt,
    "unconstrained": unconstrained,
}


def _decider(model: Any) -> Decide:
    def decide(features: pd.DataFrame) -> NDArray[np.int64]:
        return np.asarray(model.predict(features), dtype=np.int64)

    return decide


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
) -> Iterator[GroupOracle]:
    """An oracle over known attributes with a ledger of its own, gone when the block is left.

    `encrypted`: the real exchange, both halves in this process; otherwise the same noise and
    ledger without encryption.
    """
    cap_units = units_for(epsilon, delta)
    table = AttributeTable(Cohort.of(ids), attributes, groups)
    plan = hash_bytes("isonomy/rehearsal/v1", os.urandom(32))
    with (
        tempfile.TemporaryDirectory(prefix="isonomy-rehearsal-") as folder,
        Ledger.create(Path(folder) / "ledger.jsonl", cap_units=cap_units, delta=delta) as ledger,
    ):
        custodian = Custodian(table, ledger, plan=plan, member_key=os.urandom(32))
        custodian.reserve(cap_units)
        if not encrypted:
            yield LocalOracle(table, custodian, plan=plan, cap_units=cap_units, delta=delta)
            return
        regulator = Identity.generate()
        yield EncryptedOracle(
            RegulatorHalf(custodian, regulator),
            table.cohort,
            table.groups,
            plan=plan,
            cap_units=cap_units,
            delta=delta,
            regulator_key=regulator.public,
        )


__all__ = ["STRATEGIES", "Rehearsal", "Trained", "rehearsal_oracle"]
