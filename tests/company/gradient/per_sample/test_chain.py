"""Short ways of the private step, each against the long one that it replaces."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from isonomy.company.gradient.per_sample import triangles
from isonomy.company.gradient.per_sample.chain import Chain, parameters_of, set_training
from isonomy.company.gradient.per_sample.ghost import ChunkGradients, along_line
from isonomy.company.gradient.run.notions import BuiltIn
from isonomy.company.gradient.sums.deferred import Deferred, back_propagate
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
    shared = Deferred(grads, weights, rows).take_pass(chain, rows)
    assert shared is not None
    back_propagate(loss(shared.outputs, target), shared)
    for parameter, own in zip(model.parameters(), truth, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, own)


def test_a_parameter_that_somebody_watches_gets_its_backward_pass() -> None:
    model, inputs, rows = stack(nn.ReLU()), people(), torch.arange(PEOPLE)
    seen: list[Tensor] = []
    inner = ChunkGradients.of(model, score, inputs, np.arange(PEOPLE))
    next(model.parameters()).register_hook(seen.append)
    grads = CentredGradients(inner, torch.ones(PEOPLE).double())
    shared = Deferred(grads, torch.ones(PEOPLE).double(), rows).take_pass(model, rows)
    assert shared is not None
    back_propagate(nn.functional.cross_entropy(shared.outputs, rows % 2), shared)
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


# --- Triangles ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [5, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_triangles_are_halves_of_the_whole(count: int, dtype: torch.dtype) -> None:
    rows = torch.randn(count, 20, generator=torch.Generator().manual_seed(0)).to(dtype)
    whole = (rows @ rows.T).double().numpy()
    lower = triangles.product(rows).double().numpy()
    lower[np.triu_indices(count, 1)] = np.nan  # means nothing
    tolerance = 1e-4 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(triangles.mirrored(lower), whole, atol=tolerance)
    np.testing.assert_allclose(triangles.row_sums(lower), whole.sum(axis=1), atol=count * tolerance)
    left, right = np.arange(count) / count, np.ones(count)
    made = triangles.mirrored(triangles.subtract_pair(lower, left, right))
    expected = whole - np.outer(left, right) - np.outer(right, left)
    np.testing.assert_allclose(made, expected, atol=tolerance)


class Scaled(nn.Module):
    """A layer that calls itself empty."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))

    def __len__(self) -> int:
        return 0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def test_parameters_are_all_of_the_models() -> None:
    owner = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    owner.register_parameter("scale", nn.Parameter(torch.ones(1)))
    shared = nn.Linear(2, 2)
    for model in (
        owner,
        nn.Sequential(Scaled(), nn.Linear(2, 2)),
        nn.Sequential(shared, nn.ReLU(), shared),
        nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 1, bias=False)),
    ):
        own, expected = parameters_of(model), list(model.parameters())
        assert len(own) == len(expected)
        assert all(a is b for a, b in zip(own, expected, strict=True))


def test_a_mode_that_its_owner_fixed_stays() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    fixed = model[1].eval()
    fixed.train = lambda mode=True: fixed  # type: ignore[method-assign]
    set_training(model, True)
    assert model[0].training
    assert not fixed.training
    seen: list[bool] = []
    model.train = lambda mode=True: seen.append(mode) or model  # type: ignore[method-assign]
    set_training(model, False)
    assert seen == [False]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_the_mode_reaches_a_compiled_layer() -> None:
    model = nn.Sequential(nn.Identity(), torch.jit.script(nn.Dropout()))
    set_training(model, False)
    assert torch.equal(model(torch.ones(64, 2)), torch.ones(64, 2))
    set_training(model, True)
    assert (model(torch.ones(64, 2)) == 0).any()
