"""Small data and oracles for the gradient strategies' tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from federation import Federation, federation, labels
from numpy.typing import NDArray
from torch import nn

from isonomy.company.gradient.training.trainer import Trainer

SEX = ("f", "m")


@dataclass(frozen=True)
class Toy:
    """A feature that goes with the group decides half of the label: unfair by construction."""

    x: NDArray[np.float32]  # (n, 4)
    y: NDArray[np.int64]
    group: NDArray[np.int64]


def toy(n: int = 400, *, seed: int = 0, classes: int = 2, groups: int = 2) -> Toy:
    rng = np.random.default_rng(seed)
    group = rng.integers(groups, size=n)
    x = rng.normal(size=(n, 4))
    x[:, 0] += 1.5 * group
    score = x[:, 0] + x[:, 1] + 0.5 * rng.normal(size=n)
    cuts = np.quantile(score, np.linspace(0, 1, classes + 1)[1:-1])
    return Toy(x.astype(np.float32), np.digitize(score, cuts).astype(np.int64), group)


def regulator(
    folder: Path,
    codes: NDArray[np.int64],
    *,
    epsilon: float = 2.0,
    seed: int | None = 0,
    **more: Any,
) -> Federation:
    """A federation over one attribute with as many groups as there are codes."""
    names = [f"g{i}" for i in range(int(codes.max()) + 1)]
    return federation(
        folder, {"sex": labels(codes, names)}, {"sex": names}, epsilon=epsilon, seed=seed, **more
    )


def linear(inputs: int = 4, outputs: int = 1, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs)


def trainer(model: nn.Module, strategy: Any, oracle: Any, **settings: Any) -> Trainer:
    """Short runs by default."""
    chosen = {"rounds": 4, "local_steps": 3, "warmup_steps": 20, **settings}
    return Trainer(model, strategy, oracle, **chosen)


def parameters(model: nn.Module) -> list[NDArray[np.float64]]:
    return [p.detach().double().numpy().copy() for p in model.parameters()]


def same(left: nn.Module, right: nn.Module) -> bool:
    pairs = zip(left.parameters(), right.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)
