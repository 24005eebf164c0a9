"""A constraint gradient that rides on the loss's backward pass, against two passes of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gradient_kit import regulator, toy, trainer
from torch import Tensor, nn

from isonomy.company.gradient.per_sample.ghost import ChunkGradients
from isonomy.company.gradient.pf_ld.pf_ld import PFLD
from isonomy.company.gradient.sums.deferred import Deferred
from isonomy.company.gradient.sums.primal import CentredGradients
from isonomy.company.gradient.training.checks import prepare_run

PEOPLE = 24


def mlp(*extra: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 30), nn.Tanh(), *extra, nn.Linear(30, 2))


def score(outputs: Tensor) -> Tensor:
    return torch.softmax(outputs, dim=1)[:, 1]


def deferred(model: nn.Module, rows: Tensor, seed: int = 1) -> tuple[Deferred, Tensor, Tensor]:
    torch.manual_seed(seed)
    inputs, weights = torch.randn(PEOPLE, 5), torch.randn(PEOPLE).double()
    model.eval()
    inner = ChunkGradients.of(model, score, inputs, np.arange(PEOPLE))
    grads = CentredGradients(inner, torch.ones(PEOPLE).double())
    return Deferred(grads, weights.numpy(), rows), inputs, weights


def test_one_pass_gives_the_sum_of_two() -> None:
    model, rows = mlp(), torch.arange(PEOPLE)
    constraint, inputs, weights = deferred(model, rows)
    target = torch.arange(PEOPLE) % 2
    loss = nn.functional.cross_entropy(model(inputs), target)
    own = torch.autograd.grad(loss, list(model.parameters()))
    values = score(model(inputs))
    centred = weights - weights.mean()
    extra = torch.autograd.grad((values * centred).sum(), list(model.parameters()))
    shared = constraint.take_pass(rows)
    assert shared is not None
    shared.back_propagate(nn.functional.cross_entropy(shared.outputs, target))
    for parameter, first, second in zip(model.parameters(), own, extra, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, first + second, rtol=1e-4, atol=1e-6)
    for made, second in zip(constraint, extra, strict=True):  # later steps: as tensors
        torch.testing.assert_close(made, second, rtol=1e-4, atol=1e-6)


def test_a_pass_is_taken_once() -> None:
    model, rows = mlp(), torch.arange(PEOPLE)
    constraint, _, _ = deferred(model, rows)
    assert constraint.take_pass(rows) is not None
    assert constraint.take_pass(rows) is None


def test_other_rows_and_moved_parameters_need_a_pass_of_their_own() -> None:
    model, rows = mlp(), torch.arange(PEOPLE)
    constraint, _, _ = deferred(model, rows)
    assert constraint.take_pass(torch.arange(PEOPLE)) is None
    constraint, _, _ = deferred(model, rows)
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    assert constraint.take_pass(rows) is None


class _Own(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * 0.5 if self.training else inputs


@pytest.mark.parametrize(
    ("layer", "shared"), [(nn.Dropout(0.5), False), (_Own(), False), (nn.ReLU(), True)]
)
def test_models_that_differ_in_training_need_a_pass_of_their_own(
    tmp_path: Path, layer: nn.Module, shared: bool
) -> None:
    data = toy(PEOPLE)
    model, rows = mlp(layer), torch.arange(PEOPLE)
    constraint, inputs, _ = deferred(model, rows)
    own = trainer(model, PFLD(), regulator(tmp_path, data.group).local())
    run = prepare_run(own, inputs, data.y, None, torch.Generator())
    own._step(run, torch.optim.SGD(model.parameters(), lr=0.1), rows, constraint)
    assert run.modeless is shared
    assert (constraint._versions is None) is shared  # taken by the step
    assert len(list(constraint)) == len(list(model.parameters()))


def test_answers_about_the_same_gradients_add_up() -> None:
    model, rows = mlp(), torch.arange(PEOPLE)
    constraint, _, weights = deferred(model, rows)
    both = constraint.plus(Deferred(constraint._grads, 2 * weights.numpy(), rows))
    assert both is not None
    for made, once in zip(both, constraint, strict=True):
        torch.testing.assert_close(made, 3 * once, rtol=1e-5, atol=1e-6)
    other, _, _ = deferred(model, rows, seed=2)
    assert constraint.plus(other) is None
