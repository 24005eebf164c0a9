"""Runs in double precision, and a regulator without noise, for the tests of DP-FERMI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from federation import Federation
from gradient_kit import Toy, regulator
from numpy.typing import NDArray
from torch import Tensor, nn

from isonomy.common.privacy.noise import NoiseSource, SystemNoise, rounded_gaussian
from isonomy.common.sums import noise_and_budget
from isonomy.company.gradient.run.chunks import make_chunks
from isonomy.company.gradient.run.strategy import Run


class _Silence(SystemNoise):
    """A source from which no noise is drawn."""


def _noise(sigma: int, size: int, source: NoiseSource) -> NDArray[np.int64]:
    quiet = isinstance(source, _Silence)
    return np.zeros(size, np.int64) if quiet else rounded_gaussian(sigma, size, source)


noise_and_budget.rounded_gaussian = _noise


def silent(home: Federation) -> Federation:
    """The same regulator, adding no noise: for comparing with exact formulas only."""
    home.custodian.source = _Silence()
    return home


def double_run(
    home: Federation,
    data: Toy,
    *,
    classes: int = 2,
    rounds: int = 3,
    chunk_size: int | None = None,
    oracle: Any = None,
    people: NDArray[np.int64] | None = None,
) -> Run:
    """A run of a linear model in float64, so that gradients can be compared to many digits."""
    torch.manual_seed(1)
    model = nn.Linear(data.x.shape[1], 1 if classes == 2 else classes).double()
    generator = torch.Generator().manual_seed(0)
    whose = np.arange(len(data.y)) if people is None else people
    return Run(
        model=model,
        oracle=oracle or home.local(),
        attribute="sex",
        inputs=torch.from_numpy(data.x).double(),
        target=torch.from_numpy(data.y),
        classes=classes,
        people=whose,
        chunks=make_chunks(whose, chunk_size or len(whose), generator),
        rounds=rounds,
        generator=generator,
    )


def quiet_home(folder: Path, data: Toy, epsilon: float = 50.0) -> Federation:
    return silent(regulator(folder, data.group, epsilon=epsilon))


def ermi(chances: Tensor, group: NDArray[np.int64], groups: int) -> Tensor:
    """D_R(Ŷ; S) straight from its definition, differentiable in the chances (n, l)."""
    member = torch.nn.functional.one_hot(torch.from_numpy(group), groups).to(chances)  # (n, k)
    joint = member.T @ chances / len(chances)  # (k, l)
    product = member.mean(dim=0)[:, None] * chances.mean(dim=0)
    return (joint**2 / product).sum() - 1
