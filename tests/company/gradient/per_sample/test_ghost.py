"""Ghost gradients against plain back-propagation, sample by sample."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.company.gradient.per_sample import tracing
from isonomy.company.gradient.per_sample.ghost import ChunkGradients
from isonomy.company.gradient.per_sample.tracing import plan_of

ROWS = 7


class Twice(nn.Module):
    """One layer used twice: no rule holds, torch.func must take over."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


class Tied(nn.Module):
    """A weight that is used again outside its own layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + torch.tanh(x @ self.inner.weight.T)


class OwnParameter(nn.Module):
    """A free parameter beside a layer with a rule, and a layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.rand(5) + 0.5), nn.Linear(5, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.scale)


class OneNumber(nn.Module):
    """A parameter without axes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(5, 3), nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * torch.as_tensor(self.linear(x))


class PlacesFirst(nn.Module):
    """Samples along the second axis inside: as many places as the chunk has rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:  # (b, 7, 5)
        return torch.tanh(self.layer(x.transpose(0, 1))).sum(dim=0)


def _twice_in_a_row() -> nn.Module:
    """One layer that stands in a model under two names."""
    layer = nn.Linear(5, 5)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(5, 3))


def _frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    model[0].weight.requires_grad_(False)
    model[2].requires_grad_(False)
    model[4].bias.requires_grad_(False)
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    # name: model, shape of a sample, parameters that go through torch.func
    "mlp": (lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)), (5,), 0),
    "in-place": (
        lambda: nn.Sequential(nn.Linear(5, 6, bias=False), nn.ReLU(inplace=True), nn.Linear(6, 3)),
        (5,),
        0,
    ),
    "frozen": (_frozen, (5,), 0),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1, dilation=2),
            nn.GroupNorm(2, 4),
            nn.ReLU(inplace=True),
            nn.Conv2d(4, 3, 2, bias=False),
            nn.Flatten(),
            nn.LazyLinear(3),
        ),
        (2, 9, 8),
        0,
    ),
    "conv1d": (
        lambda: nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.Flatten(), nn.LazyLinear(3)),
        (2, 6),
        0,
    ),
    "words": (
        lambda: nn.Sequential(
            nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.LayerNorm((6, 5)), nn.Flatten(),
            nn.LazyLinear(3),
        ),
        (6, 4),
        0,
    ),
    "grouped convolution": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.LazyLinear(3)),
        (2, 5, 5),
        2,
    ),
    "used twice": (Twice, (5,), 2),
    "twice in a row": (_twice_in_a_row, (5,), 2),
    "tied": (Tied, (5,), 2),
    "one number": (OneNumber, (5,), 1),
    "own parameter": (OwnParameter, (5,), 3),
    "places first": (PlacesFirst, (ROWS, 5), 2),
    "attention": (
        lambda: nn.Sequential(
            nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), nn.Flatten(),
            nn.LazyLinear(3),
        ),
        (3, 4),
        4,
    ),
}  # fmt: skip


def made(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(3)
    build, shape, _ = MODELS[name]
    model, inputs = build(), torch.randn(ROWS, *shape)
    model(inputs)  # lazy layers
    return model.to(dtype), inputs.to(dtype)


def scalar(outputs: Tensor) -> Tensor:
    return torch.softmax(outputs, dim=1)[:, 1] * torch.arange(1.0, len(outputs) + 1).to(outputs)


def slow_rows(model: nn.Module, inputs: Tensor) -> Tensor:
    """(b, d): the one slow oracle, a backward pass per sample."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for index in range(len(inputs)):
        value = torch.softmax(model(inputs[index : index + 1]), dim=1)[0, 1] * (index + 1)
        own = torch.autograd.grad(value, parameters, allow_unused=True)
        rows.append(
            torch.cat(
                [
                    (torch.zeros_like(p) if g is None else g).flatten()
                    for p, g in zip(parameters, own, strict=True)
                ]
            )
        )
    return torch.stack(rows)


def flat(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_gives_the_gradients_of_backpropagation(name: str) -> None:
    model, inputs = made(name)
    truth = slow_rows(model, inputs)
    grads = ChunkGradients.of(model, scalar, inputs)
    assert len(plan_of(model, list(model.parameters()), inputs).generic) == MODELS[name][2]
    assert (len(grads), grads.size) == tuple(truth.shape)
    torch.testing.assert_close(grads.rows(), truth)
    torch.testing.assert_close(grads.gram(), truth @ truth.T)
    np.testing.assert_allclose(grads.lengths, truth.norm(dim=1), rtol=1e-7)
    weights = torch.randn(ROWS, dtype=torch.float64)
    torch.testing.assert_close(flat(grads.combine(weights)), weights @ truth)
    torch.testing.assert_close(flat(grads.split(weights @ truth)), weights @ truth)


@pytest.mark.parametrize("name", ["mlp", "cnn", "words"])
def test_single_precision_is_right_to_a_millionth(name: str) -> None:
    model, inputs = made(name, torch.float32)
    grads = ChunkGradients.of(model, scalar, inputs)
    exact = slow_rows(model.double(), inputs.double())
    exact = exact @ exact.T
    gram = grads.gram(torch.float32)
    assert gram.dtype == torch.float32
    assert float((gram - exact).abs().max() / exact.abs().max()) < 2e-6


def test_rows_of_one_person_are_added() -> None:
    model, inputs = made("mlp")
    people = np.array([9, 4, 9, 4, 4, 2, 11])
    grads = ChunkGradients.of(model, scalar, inputs, people)
    truth = slow_rows(model, inputs)
    added = torch.stack([truth[torch.from_numpy(people == p)].sum(dim=0) for p in (2, 4, 9, 11)])
    assert grads.people is not None
    assert grads.people.tolist() == [2, 4, 9, 11]
    torch.testing.assert_close(grads.gram(), added @ added.T)
    np.testing.assert_allclose(grads.lengths, added.norm(dim=1), rtol=1e-7)
    torch.testing.assert_close(grads.rows(), added)
    weights = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=torch.float64)
    torch.testing.assert_close(flat(grads.combine(weights)), weights @ added)


def test_distinct_people_in_any_order_are_sorted() -> None:
    model, inputs = made("mlp")
    people = np.array([5, 1, 8, 2, 9, 0, 3])
    grads = ChunkGradients.of(model, scalar, inputs, people)
    torch.testing.assert_close(grads.rows(), slow_rows(model, inputs)[np.argsort(people)])


def test_outputs_keep_their_graph_for_a_loss() -> None:
    model, inputs = made("mlp")
    target = torch.randint(3, (ROWS,))
    grads = ChunkGradients.of(model, scalar, inputs)
    nn.functional.cross_entropy(grads.outputs, target).backward()
    shared = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    nn.functional.cross_entropy(model(inputs), target).backward()
    torch.testing.assert_close(shared, [p.grad for p in model.parameters()])


def test_dropout_is_one_draw_for_gram_and_combination() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 40), nn.Dropout(0.5), nn.Linear(40, 3)).double()
    inputs = torch.randn(ROWS, 5).double()
    grads = ChunkGradients.of(model, scalar, inputs)
    assert model.training
    rows = torch.stack([flat(grads.combine(one)) for one in torch.eye(ROWS).double()])
    torch.testing.assert_close(grads.gram(), rows @ rows.T)
    again = ChunkGradients.of(model, scalar, inputs)
    assert not torch.allclose(grads.gram(), again.gram())  # it was a draw


def test_looking_into_a_model_draws_nothing() -> None:
    model, inputs = made("mlp")
    state = torch.random.get_rng_state()
    ChunkGradients.of(model, scalar, inputs)
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_layer_thawed_later_is_seen() -> None:
    model, inputs = made("frozen")
    before = ChunkGradients.of(model, scalar, inputs).size
    model.requires_grad_(True)
    after = ChunkGradients.of(model, scalar, inputs)
    assert after.size > before
    torch.testing.assert_close(after.rows(), slow_rows(model, inputs))


def test_the_check_runs_once_per_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = made("mlp")
    ChunkGradients.of(model, scalar, inputs)

    def refuse(*_: object) -> None:
        raise AssertionError("checked again")

    monkeypatch.setattr(tracing, "_checked_plan", refuse)
    ChunkGradients.of(model, scalar, inputs)


def test_tiny_signals_do_not_slow_the_gram_matrix_down() -> None:
    model, inputs = made("mlp", torch.float32)
    grads = ChunkGradients.of(model, lambda outputs: outputs[:, 0] * 1e-22, inputs)
    assert (
        float(grads.gram(torch.float32).abs().max()) == 0.0
    )  # denormal squares are dropped, not carried
    assert float(grads.lengths.max()) > 0.0


class Mixing(nn.Module):
    """Subtracts the batch's mean."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x - x.mean(dim=0))


def test_batch_norm_is_refused_and_its_replacement_named() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(ConfigError, match=r"'1' is a BatchNorm.*nn.GroupNorm or nn.LayerNorm"):
        ChunkGradients.of(model, scalar, torch.randn(ROWS, 5))


def test_a_model_that_mixes_samples_is_refused() -> None:
    with pytest.raises(ConfigError, match="depends on the other samples"):
        ChunkGradients.of(Mixing(), scalar, torch.randn(ROWS, 5))


def test_dropout_beside_parameters_without_a_rule_needs_evaluation_mode() -> None:
    model = nn.Sequential(OwnParameter(), nn.Dropout(0.5))
    inputs = torch.randn(ROWS, 5)
    with pytest.raises(ConfigError, match=r"model.eval\(\)"):
        ChunkGradients.of(model, scalar, inputs)
    ChunkGradients.of(model.eval(), scalar, inputs)


def test_bad_input_is_refused() -> None:
    model, inputs = made("mlp")
    with pytest.raises(ConfigError, match="one number per row"):
        ChunkGradients.of(model, lambda outputs: outputs, inputs)
    with pytest.raises(ConfigError, match="must depend"):
        ChunkGradients.of(model, lambda outputs: outputs[:, 0].detach(), inputs)
    with pytest.raises(ConfigError, match="no trainable"):
        ChunkGradients.of(nn.Sequential(nn.ReLU()), scalar, inputs)
    with pytest.raises(ConfigError, match="samples along its first axis"):
        ChunkGradients.of(nn.Sequential(nn.Linear(5, 3), nn.Flatten(0)).double(), scalar, inputs)
    with pytest.raises(DataError, match="at least one row"):
        ChunkGradients.of(model, scalar, inputs[:0])
    with pytest.raises(DataError, match="people_of_row"):
        ChunkGradients.of(model, scalar, inputs, [1, 2])
    with pytest.raises(ConfigError, match="one weight per person"):
        ChunkGradients.of(model, scalar, inputs).combine(torch.ones(3))
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(DataError, match="diverged"):
        ChunkGradients.of(model, scalar, inputs)
