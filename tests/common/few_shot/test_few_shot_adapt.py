"""Meta-gradients against an explicitly unrolled case, and the network's own promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from few_shot_kit import tiny_settings

from isonomy.common.agreements.few_shot_settings import FewShotSettings
from isonomy.common.few_shot.learning.adapt import adapt, meta_gradient
from isonomy.common.few_shot.learning.models import HEAD, Network

RATE, STEPS = 0.3, 3


def _case(part: str) -> tuple[Network, torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    network = Network("mlp", 5, (4,), 3)
    rng = torch.Generator().manual_seed(1)
    theta = torch.randn(network.size, generator=rng, dtype=torch.float64) * 0.5
    x = torch.randn(2, 6, 4, generator=rng, dtype=torch.float64)
    q = torch.randn(2, 6, 4, generator=rng, dtype=torch.float64)
    y = torch.arange(3).repeat_interleave(2)
    return network, theta, [x, y], [q, y]


def _unrolled(
    network: Network, theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor, part: str
) -> torch.Tensor:
    """θ' as plain autograd makes it, keeping the graph through every step."""
    mask = torch.cat(
        [
            torch.full((int(np.prod(shape)),), float(name in network.part(part)))
            for name, shape in network.shapes.items()
        ]
    ).double()
    moved = theta
    for _ in range(STEPS):
        logits = network.logits(network.unflatten(moved), x)
        loss = torch.nn.functional.cross_entropy(logits, y)
        (slope,) = torch.autograd.grad(loss, moved, create_graph=True)
        moved = moved - RATE * mask * slope
    return moved


@pytest.mark.parametrize("part", ["head", "all"])
def test_second_order_is_the_derivative_of_the_unrolled_loop(part: str) -> None:
    network, theta, (x, y), (q, _) = _case(part)
    leaf = theta.clone().requires_grad_()
    losses = [
        torch.nn.functional.cross_entropy(
            network.logits(network.unflatten(_unrolled(network, leaf, x[t], y, part)), q[t]), y
        )
        for t in range(2)
    ]
    (expected,) = torch.autograd.grad(torch.stack(losses).mean(), leaf)
    options = {"steps": STEPS, "rate": RATE, "part": part}
    exact = meta_gradient(network, theta, (x, y), (q, y), learner="maml", **options)
    assert torch.allclose(exact, expected, rtol=1e-10, atol=1e-12)
    first = meta_gradient(network, theta, (x, y), (q, y), learner="fomaml", **options)
    assert not torch.allclose(first, expected, rtol=1e-3)


@pytest.mark.parametrize("part", ["head", "all"])
def test_first_order_is_the_gradient_at_the_adapted_parameters(part: str) -> None:
    network, theta, (x, y), (q, _) = _case(part)
    expected = torch.zeros_like(theta)
    for t in range(2):
        leaf = theta.clone().requires_grad_()
        moved = _unrolled(network, leaf, x[t], y, part).detach().requires_grad_()
        loss = torch.nn.functional.cross_entropy(network.logits(network.unflatten(moved), q[t]), y)
        expected += torch.autograd.grad(loss, moved)[0] / 2
    options = {"steps": STEPS, "rate": RATE, "part": part}
    first = meta_gradient(network, theta, (x, y), (q, y), learner="fomaml", **options)
    assert torch.allclose(first, expected, rtol=1e-10, atol=1e-12)


def test_reptile_is_the_mean_gradient_along_the_way() -> None:
    network, theta, (x, y), query = _case("all")
    leaf = theta.clone().requires_grad_()
    ends = [_unrolled(network, leaf, x[t], y, "all").detach() for t in range(2)]
    expected = (theta - torch.stack(ends).mean(0)) / (RATE * STEPS)
    got = meta_gradient(
        network, theta, (x, y), query, learner="reptile", steps=STEPS, rate=RATE, part="all"
    )
    assert torch.allclose(got, expected, rtol=1e-10, atol=1e-12)


def test_a_head_loop_leaves_the_body_alone() -> None:
    network, theta, (x, y), _ = _case("head")
    params = network.unflatten(theta)
    moved = adapt(network, params, x[0], y, steps=2, rate=RATE, part="head")
    same = {name for name in params if torch.equal(moved[name], params[name])}
    assert same == set(params) - set(HEAD)


def test_conv4_has_about_110_thousand_parameters_and_no_statistics_across_samples() -> None:
    network = Network.of(FewShotSettings(method="none", width=64, input_shape=(3, 28, 28)))
    assert 105_000 < network.size < 120_000
    params = network.unflatten(torch.from_numpy(network.initial(0)))
    images = torch.randn(4, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    alone = network.features(params, images[:1])
    others = torch.cat([images[:1], 100 * images[1:]])
    assert torch.allclose(network.features(params, others)[:1], alone, atol=1e-5)


def test_theta_goes_to_names_and_back() -> None:
    network = Network.of(tiny_settings())
    theta = torch.from_numpy(network.initial(3))
    assert torch.equal(network.flatten(network.unflatten(theta)), theta)
    assert network.size == len(theta)
