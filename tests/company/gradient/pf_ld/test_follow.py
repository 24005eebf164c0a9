"""The multipliers follow the violation while the model moves (gradient/follow.py)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gradient_kit import linear, regulator, toy, trainer
from torch import Tensor, nn

from isonomy.company.gradient.pf_ld._follow import POINTS, Follower
from isonomy.company.gradient.pf_ld.pf_ld import PFLD

CURVE = torch.tensor([[2.0, 0.3], [0.3, -1.0]])
SLOPE = torch.tensor([0.5, -0.2])


def _violation(theta: Tensor) -> Tensor:
    """A curved v_1 = −v_0 of two equal groups."""
    return SLOPE @ theta + 0.5 * theta @ CURVE @ theta


def _walk(
    follower: Follower, applied: tuple[float, float], steps: list[Tensor], chunks: int = 6
) -> list[float]:
    """τ at each place, from exact gradients of Σ_a ν_a v_a."""
    model = nn.Linear(2, 1, bias=False)
    run: Any = SimpleNamespace(model=model, round=0, chunks=[None] * chunks)
    factors = []
    for theta in steps:
        with torch.no_grad():
            model.weight.copy_(theta[None])
        if follower.arrive(run):
            slope = (applied[1] - applied[0]) * (SLOPE + CURVE @ theta)
            follower.look((0, 0), applied, [slope[None]])
        factors.append(follower.factor((0, 0)))
    return factors


def test_the_applied_multiplier_is_lambda_plus_rho_v_at_every_place() -> None:
    """Exact for a quadratic v: τ·ν₀ = ν₀ + ρ·(v(θ_c) − v(θ_0))."""
    torch.manual_seed(0)
    steps = [0.3 * torch.randn(2) for _ in range(6)]
    applied, rho = (-0.4, 0.4), 2.0
    factors = _walk(Follower(rho, 50.0), applied, steps)
    assert factors[0] == 1.0
    for factor, theta in zip(factors, steps, strict=True):
        moved = float(_violation(theta) - _violation(steps[0]))
        np.testing.assert_allclose(factor * 0.4, 0.4 + rho * moved, atol=1e-5)


def test_with_many_chunks_every_few_are_looked_at() -> None:
    torch.manual_seed(0)
    steps = [0.3 * torch.randn(2) for _ in range(9)]
    few = _walk(Follower(2.0, 50.0), (-0.4, 0.4), steps, chunks=3 * POINTS)
    assert few[:3] == [1.0, 1.0, 1.0]
    assert few[3] == few[4] == few[5] != few[6]
    every = _walk(Follower(2.0, 50.0), (-0.4, 0.4), steps)
    np.testing.assert_allclose([few[3], few[6]], [every[3], every[6]], atol=1e-5)


def test_never_beyond_the_multipliers_bound() -> None:
    factors = _walk(Follower(1.0, 0.5), (-0.4, 0.4), [torch.zeros(2), 50 * SLOPE, -50 * SLOPE])
    assert factors[1:] == [1.25, -1.25] or factors[1:] == [1.25, 1.25]


def test_a_round_and_a_run_start_anew() -> None:
    follower = Follower(1.0, 5.0)
    there = [torch.zeros(2), torch.ones(2)]
    first = _walk(follower, (-0.4, 0.4), there)
    assert first[1] != 1.0
    assert _walk(follower, (-0.4, 0.4), there) == first  # another run


@pytest.mark.parametrize("notion", ["demographic_parity", "equalized_odds"])
def test_nothing_more_is_asked(tmp_path: Path, notion: str) -> None:
    """Same number of queries and the same budget; the first answers get the same weights."""
    data = toy(300)
    asked: dict[bool, list[tuple[float, ...]]] = {}
    models = {}
    for follow in (True, False):
        oracle = regulator(tmp_path, data.group, epsilon=5.0, name=f"ledger-{follow}").local()
        own: list[tuple[float, ...]] = []
        weighted = oracle.weighted_sum

        def tapped(rows: Any, weights: Any, _own: Any = own, _ask: Any = weighted, **k: Any) -> Any:
            _own.append(tuple(weights))
            return _ask(rows, weights, **k)

        oracle.weighted_sum = tapped  # type: ignore[method-assign]
        models[follow] = linear()
        trainer(models[follow], PFLD(notion, follow=follow), oracle, chunk_size=100, rounds=2).fit(
            data.x, data.y
        )
        asked[follow] = own
        assert oracle.budget.spent_epsilon <= 5.0
    events = 1 if notion == "demographic_parity" else 2
    assert len(asked[True]) == len(asked[False]) == 2 * 3 * events
    assert asked[True][: 3 * events] == asked[False][: 3 * events]
    assert not torch.equal(*(next(m.parameters()) for m in models.values()))
