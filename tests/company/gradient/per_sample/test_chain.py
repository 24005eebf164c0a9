"""Short ways of the private step, each against the long one that it replaces."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from isonomy.company.gradient.per_sample._chain import Chain
from isonomy.company.gradient.per_sample.ghost import ChunkGradients, along_line
from isonomy.company.gradient.run.notions import BuiltIn
from isonomy.company.gradient.sums.deferred import Deferred
from isonomy.company.gradient.sums.primal import CentredGradients

PEOPLE = 30


def stack(*activations: nn.Module, outputs: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [part for own in activations for part in (nn.LazyLinear(9), own)]
    model = nn.Sequential(*layers, nn.LazyLinear(outputs)).double()
    model(torch.zeros(1, 5).double())
    return model


def people(seed: int = 1) -> Tensor:
    return torch.randn(PEOPLE, 5, generator=torch.Generator().manual_seed(seed)).double()


# --- Forward and back by hand -------------------------------------------------------------------


@pytest.mark.parametrize("activations", [(nn.ReLU(), nn.Tanh()), (nn.Sigmoid(),), ()])
def test_a_chain_gives_what_autograd_gives(activations: tuple[nn.Module, ...]) -> None:
    model, inputs = stack(*activations), people()
    chain = Chain.run(model, inputs)
    assert chain is not None
    torch.testing.assert_close(chain.outputs, model(inputs).detach())
    upstream = torch.randn(PEOPLE, 2).double()
    made = chain.signals(upstream)
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    biases = torch.autograd.grad((model(inputs) * upstream).sum(), [own.bias for own in layers])
    for layer, truth in zip(layers, biases, strict=True):
        torch.testing.assert_close(made[layer].sum(dim=0), truth)


class _Doubled(nn.Sequential):
    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * super().forward(inputs)


def test_other_models_are_not_run_by_hand() -> None:
    inputs, plain = people(), stack(nn.ReLU())
    twice = nn.Linear(5, 5).double()
    hooked = stack(nn.ReLU())
    hooked[0].register_forward_hook(lambda *_: None)
    others: list[nn.Module] = [
        _Doubled(*plain),
        stack(nn.ReLU(), outputs=3),
        stack(nn.ELU()),
        nn.Sequential(twice, twice, nn.Linear(5, 2).double()),
        hooked,
        plain[0],
    ]
    assert Chain.run(plain, inputs) is not None
    assert Chain.run(plain, inputs[:, None]) is None
    assert all(Chain.run(model, inputs) is None for model in others)


# --- One line for two outputs -------------------------------------------------------------------


def score(outputs: Tensor) -> Tensor:
    return torch.softmax(outputs, dim=1)[:, 1]


def test_what_lies_on_the_line() -> None:
    c = torch.randn(4)
    found = along_line(torch.stack([-c, c], dim=1))
    assert found is not None
    assert torch.equal(found, c)
    assert along_line(torch.stack([-c, 1.001 * c], dim=1)) is None
    assert along_line(torch.randn(4, 3)) is None
    alone = along_line(c[:, None])
    assert alone is not None
    assert torch.equal(alone, c)


def _penalised(model: nn.Module, kind: str) -> nn.Module:
    """A loss with more than the outputs' line in it."""

    class Loss(nn.Module):
        def forward(self, logits: Tensor, target: Tensor) -> Tensor:
            loss = nn.functional.cross_entropy(logits, target)
            if kind == "weights":
                return loss + sum((p.square().sum() for p in model.parameters()), torch.zeros(()))
            return loss + (logits.square().mean() if kind == "logits" else 0.0)

    return Loss()


@pytest.mark.parametrize("kind", ["plain", "weights", "logits"])
@pytest.mark.parametrize("own_forward", [False, True])
def test_any_loss_gets_all_of_its_gradient(kind: str, own_forward: bool) -> None:
    """Losses that leave the line, or that look at the weights too, and models with a graph."""
    chain = stack(nn.ReLU())
    model: nn.Module = _Doubled(*chain) if own_forward else chain
    inputs, target = people(), torch.arange(PEOPLE) % 2
    loss = _penalised(model, kind)
    weights = torch.randn(PEOPLE, generator=torch.Generator().manual_seed(3)).double()
    centred = weights - weights.mean()
    whole = loss(model(inputs), target) + (score(model(inputs)) * centred).sum()
    truth = torch.autograd.grad(whole, list(model.parameters()))

    inner = ChunkGradients.of(model, score, inputs, np.arange(PEOPLE))
    assert inner.scale is not None
    assert inner.outputs.requires_grad is own_forward
    rows = torch.arange(PEOPLE)
    grads = CentredGradients(inner, torch.ones(PEOPLE).double())
    shared = Deferred(grads, weights.numpy(), rows).take_pass(rows)
    assert shared is not None
    shared.back_propagate(loss(shared.outputs, target))
    for parameter, own in zip(model.parameters(), truth, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, own)


def test_a_parameter_that_somebody_watches_gets_its_backward_pass() -> None:
    model, inputs, rows = stack(nn.ReLU()), people(), torch.arange(PEOPLE)
    seen: list[Tensor] = []
    inner = ChunkGradients.of(model, score, inputs, np.arange(PEOPLE))
    next(model.parameters()).register_hook(seen.append)
    grads = CentredGradients(inner, torch.ones(PEOPLE).double())
    shared = Deferred(grads, np.ones(PEOPLE), rows).take_pass(rows)
    assert shared is not None
    shared.back_propagate(nn.functional.cross_entropy(shared.outputs, rows % 2))
    assert len(seen) == 1


# --- Slopes in closed form ----------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("name", ["demographic_parity", "equalized_odds", "accuracy_parity"])
def test_slopes_are_the_derivatives(name: str, classes: int) -> None:
    logits = torch.randn(PEOPLE, classes).double().requires_grad_()
    target = torch.arange(PEOPLE) % classes
    for event in BuiltIn(name, sharpness=1.7).events(classes):
        assert event.slope is not None
        value, gradient = event.slope(logits.detach(), target)
        truth = event.h(logits, target)
        torch.testing.assert_close(value, truth.detach())
        if gradient.ndim == 1:
            gradient = torch.stack([-gradient, gradient], dim=1)
        torch.testing.assert_close(gradient, torch.autograd.grad(truth.sum(), logits)[0])
