"""Adaptation to a task and the gradient of what comes out of it, where nothing is private.

    θ'  = θ − α Σ_steps ∇L_support(θ)                          inner loop
    MAML      ∇_θ  L_query(θ'(θ))                              exact: through the inner loop
    FOMAML    ∇_θ' L_query(θ')                                 θ' taken as a constant shift of θ
    Reptile   (θ − θ')/(α·steps)                               the mean gradient along the way

Finn et al. 2017 (MAML), Nichol et al. 2018 (first order, Reptile). With part="head" only the last
layer moves in the inner loop (ANIL, Raghu et al. 2020).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional

from isonomy.common.few_shot.learning.models import Network, Parameters


def adapt(
    network: Network,
    params: Mapping[str, Tensor],
    inputs: Tensor,  # (n, *shape)
    labels: Tensor,  # (n,)
    *,
    steps: int,
    rate: float,
    part: str = "head",
) -> Parameters:
    """Parameters after `steps` full-batch gradient steps; differentiable, so also second order."""
    moving = {name: params[name] for name in network.part(part)}
    features = network.features(params, inputs) if part == "head" else None

    def loss(part_params: Parameters) -> Tensor:
        merged = {**params, **part_params}
        logits = (
            network.logits(merged, inputs) if features is None else network.head(merged, features)
        )
        return functional.cross_entropy(logits, labels)

    for _ in range(steps):
        slope = grad(loss)(moving)
        moving = {name: moving[name] - rate * slope[name] for name in moving}
    return {**params, **moving}


def meta_gradient(
    network: Network,
    theta: Tensor,  # (d,)
    support: tuple[Tensor, Tensor],  # (t, n, *shape), (n,)
    query: tuple[Tensor, Tensor],  # (t, q, *shape), (q,)
    *,
    learner: str,
    steps: int,
    rate: float,
    part: str,
) -> Tensor:
    """(d,) the learner's meta-gradient, mean over the tasks."""
    (support_x, support_y), (query_x, query_y) = support, query

    def adapted(params: Parameters, x: Tensor) -> Parameters:
        return adapt(network, params, x, support_y, steps=steps, rate=rate, part=part)

    def task_loss(flat: Tensor, x: Tensor, x_query: Tensor) -> Tensor:
        params = network.unflatten(flat)
        if learner == "maml":
            moved = adapted(params, x)
        else:  # the shift is a constant: its derivative is left out
            start = network.unflatten(flat.detach())
            end = adapted(start, x)
            moved = {n: params[n] + (end[n] - start[n]).detach() for n in params}
        return functional.cross_entropy(network.logits(moved, x_query), query_y)

    if learner == "reptile":
        params = network.unflatten(theta)
        ends = [network.flatten(adapted(params, x)) for x in support_x]
        return (theta - torch.stack(ends).mean(0)) / (rate * steps)
    if part == "head":  # one pass for all tasks: 1.6 times as fast at width 8

        def loss(flat: Tensor) -> Tensor:
            return vmap(task_loss, (None, 0, 0))(flat, support_x, query_x).mean()

        slope: Tensor = grad(loss)(theta)
        return slope
    slopes = [grad(task_loss)(theta, x, q) for x, q in zip(support_x, query_x, strict=True)]
    return torch.stack(slopes).mean(0)
