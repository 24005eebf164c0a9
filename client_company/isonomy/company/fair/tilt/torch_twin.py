"""`tilt`'s in-training twin: the Lagrangian with the proxy's memberships in place of attributes.

    L(θ, λ) = cross-entropy(θ) + Σ_ae λ_ae · r_ae(θ)
    r_ae(θ) = Σ_i ĝ_a(i) M_e(i) (s_e(i; θ) − pooled) / n_ae        soft rate of event e in group a
    λ ← λ + step/√epoch · (gap beyond the tolerance of the *hard* decisions), Σ_a λ_ae = 0

s_e is the model's probability that the event happens (class chosen, or wrong). ĝ comes from
releases already paid for, so training costs no privacy. The tilt then corrects what is left, with
the audits that remain.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import StratifiedKFold

from isonomy.common.base.errors import ConfigError
from isonomy.company.fair.tilt.analysis import View
from isonomy.company.fair.tilt.rule import base_margins, decide
from isonomy.company.fair.tilt.search import Landscape
from isonomy.company.fair.torch_adapter import TorchClassifier

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STEP = 2.0  # λ moves by this times the gap, per epoch


class Lagrangian:
    """Multipliers and penalty for some rows of a landscape."""

    def __init__(self, land: Landscape, rows: Ints, order: Ints) -> None:
        self.events, self.blocks, self.order = land.events, land.blocks, order
        self.tolerance = land.tolerance
        self.y = land.y[rows]
        self.lam = np.zeros(land.shape)
        share = len(rows) / len(land.y)
        # (rows, groups, events) ĝ M / n, scaled so that a batch's mean estimates the rate
        members = np.column_stack([event.members(self.y) for event in land.events])
        scale = len(rows) / (land.counts * share)  # (groups, events)
        self.rates = land.member[rows][:, :, None] * members[:, None, :] * scale
        self._rates = torch.tensor(self.rates, dtype=torch.float32)
        self._y = torch.tensor(self.y)

    def penalty(self, logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Σ λ_ae · (batch estimate of the soft rate r_ae)."""
        chances = torch.softmax(logits, dim=1)[:, self.order]
        lam = torch.tensor(self.lam, dtype=torch.float32)
        total = torch.zeros(())
        for e, event in enumerate(self.events):
            if event.statistic == "wrong":
                soft = 1 - chances[torch.arange(len(rows)), self._y[rows]]
            else:
                soft = chances[:, event.choice]
            centred = soft - soft.detach().mean()
            total = total + ((self._rates[rows, :, e] @ lam[:, e]) * centred).mean()
        return total

    def ascend(self, decided: Ints, epoch: int) -> None:
        """λ ← λ + step/√epoch·(rate − middle), clipped to the part beyond the tolerance."""
        for e, event in enumerate(self.events):
            z, members = event.happened(decided, self.y), event.members(self.y)
            z = np.where(members, z - z[members].mean(), 0.0)
            rates = np.mean(self.rates[:, :, e] * z[:, None], axis=0)  # (groups,)
            for block, tolerance in zip(self.blocks, self.tolerance[:, e], strict=True):
                middle = (rates[block].max() + rates[block].min()) / 2
                distance = rates[block] - middle
                beyond = np.sign(distance) * np.maximum(0.0, np.abs(distance) - tolerance / 2)
                self.lam[block, e] += STEP / np.sqrt(epoch) * (beyond - beyond.mean())


def train_fairly(
    model: TorchClassifier,
    X: Any,
    y: Any,
    land: Landscape,
    order: Ints,
    rows: Ints | None = None,
    path: list[Floats] | None = None,
) -> tuple[TorchClassifier, list[Floats]]:
    """A fresh copy of `model`, trained with the Lagrangian, and λ after each epoch.

    order: the module's outputs in the order in which `land` numbers the classes. rows: which rows
    of `land` X is. path: follow these multipliers instead of ascending, so that the folds of one
    training are models of the same kind as the whole.
    """
    lagrangian = Lagrangian(land, np.arange(len(land.y)) if rows is None else rows, order)
    fresh: TorchClassifier = clone(model)
    multipliers: list[Floats] = []

    def after_epoch(current: TorchClassifier) -> None:
        if path is not None:
            lagrangian.lam = path[len(multipliers)]
        else:
            proba = current.predict_proba(X)[:, order]
            lagrangian.ascend(decide(base_margins(proba, land.cut)), len(multipliers) + 1)
        multipliers.append(lagrangian.lam.copy())

    return fresh.fit(X, y, penalty=lagrangian.penalty, after_epoch=after_epoch), multipliers


def check_trainable(base: object) -> None:
    """Only a TorchClassifier can be trained fairly: its loss can be changed from here."""
    if not isinstance(base, TorchClassifier):
        raise ConfigError(
            "in_training=True trains with the fairness term in the loss and needs a "
            f"TorchClassifier; got {type(base).__name__}"
        )


def retrain(
    base: Any, X: Any, y: Any, view: View, cv: int, order: Ints
) -> tuple[TorchClassifier, Floats]:
    """The fairly trained model and its out-of-fold probabilities."""
    land, target = view.land, np.asarray(y)
    whole, path = train_fairly(base, X, target, land, order)
    proba = np.empty((len(target), land.proba.shape[1]))
    folds = StratifiedKFold(cv, shuffle=True, random_state=0)
    for train, test in folds.split(np.zeros(len(target)), target):
        fold, _ = train_fairly(base, _take(X, train), target[train], land, order, train, path)
        proba[test] = fold.predict_proba(_take(X, test))[:, order]
    return whole, proba


def _take(X: Any, rows: Ints) -> Any:
    return X.iloc[rows] if hasattr(X, "iloc") else np.asarray(X)[rows]
