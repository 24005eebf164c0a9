"""What the trainer takes, and what it refuses while nothing is spent yet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gradient_kit import linear, regulator, toy, trainer
from torch import Tensor, nn

from isonomy.common.base.errors import ConfigError, DataError, StorageError
from isonomy.common.privacy.accounting import epsilon_of
from isonomy.company.gradient.fermi.fermi import DpFermi
from isonomy.company.gradient.pf_ld.f_ld import FLD
from isonomy.company.gradient.pf_ld.pf_ld import PFLD
from isonomy.company.gradient.run.notions import Event

# --- Models that must train --------------------------------------------------------------------


class Tied(nn.Module):
    """One weight in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))
        return made


class Own(nn.Module):
    """Parameters outside of layers, one that nothing uses, and one number per row."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.unused = nn.Parameter(0.1 * torch.ones(4, 3)), nn.Parameter(torch.zeros(2))
        self.last = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(torch.sin(x @ self.w)).squeeze(1)
        return made


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(8, 5), nn.Linear(20, 2)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(self.words(x).flatten(1))
        return made


def _wide(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), *between, nn.Linear(6, 1))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "two outputs": lambda: nn.Linear(4, 2),
    "double precision": lambda: nn.Linear(4, 1).double(),
    "dropout": lambda: _wide(nn.ReLU(), nn.Dropout(0.5)),
    "normalised": lambda: _wide(nn.LayerNorm(6), nn.GELU()),
    "in place": lambda: _wide(nn.ReLU(inplace=True)),
    "weights tied": Tied,
    "own parameters": Own,
    "embedding": Words,
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(9, 2)
    ),
}


@pytest.mark.parametrize("strategy", [PFLD, DpFermi, FLD])
@pytest.mark.parametrize("kind", MODELS)
def test_any_classifier_trains(tmp_path: Path, kind: str, strategy: Any) -> None:
    data = toy(160)
    torch.manual_seed(0)
    model = MODELS[kind]()
    x = np.clip(np.rint(data.x + 3), 0, 7).astype(np.int64) if kind == "embedding" else data.x
    before = [p.detach().clone() for p in model.parameters()]
    oracle = regulator(tmp_path, data.group, epsilon=9.0).local()
    own = trainer(model, strategy(), oracle, rounds=2, chunk_size=50, warmup_steps=2)
    result = own.fit(x, data.y)
    moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert all(moved) or (kind == "own parameters" and moved.count(False) == 1)
    budget = oracle.budget  # of which a tenth is for audits
    spent = 0.0 if strategy is FLD else epsilon_of(int(0.9 * budget.cap_units), budget.delta)
    assert result.epsilons.spent == pytest.approx(spent, abs=1e-3)


# --- Refused, and nothing spent ----------------------------------------------------------------


class _Outputs(nn.Module):
    """A linear layer whose outputs go through a function."""

    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.change = nn.Linear(4, 2), change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.inner(x))


def _not_an_optimiser(parameters: Any) -> Any:
    return "sgd"


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"optimiser": torch.optim.LBFGS}, ConfigError, "closure"),
        ({"optimiser": torch.optim.SparseAdam}, ConfigError, "cannot take a step"),
        ({"optimiser": _not_an_optimiser}, ConfigError, "torch Optimizer"),
        ({"optimiser": "sgd"}, ConfigError, "a function that makes one"),
        ({"loss": nn.CrossEntropyLoss(reduction="none")}, ConfigError, "one differentiable number"),
        ({"loss": nn.BCEWithLogitsLoss()}, ConfigError, "the loss must take"),
        ({"loss": lambda logits, target: torch.tensor(1.0)}, ConfigError, "differentiable"),
        ({"model": _Outputs(lambda o: (o, o))}, ConfigError, "one tensor of logits, it gave tuple"),
        ({"model": _Outputs(lambda o: {"logits": o})}, ConfigError, "it gave dict"),
        ({"model": _Outputs(lambda o: o[:, :1, None])}, DataError, "one logit per class"),
        ({"model": _Outputs(lambda o: o[:1])}, DataError, "1 outputs for 2 rows"),
        ({"model": _Outputs(lambda o: o.to(torch.complex64))}, ConfigError, "complex64"),
        ({"model": _Outputs(lambda o: o - o.mean(dim=0))}, ConfigError, "depends on the other"),
        ({"model": nn.LazyLinear(2)}, ConfigError, "lazy"),
        ({"model": nn.Linear(4, 1).half()}, ConfigError, r"model\.float"),
        ({"model": nn.Linear(4, 1).bfloat16()}, ConfigError, r"model\.float"),
        ({"x": np.array([["a"] * 4] * 400)}, DataError, "GradientFairClassifier"),
        ({"y": np.array(["yes", "no"] * 200)}, DataError, "takes any labels"),
        ({"y": np.arange(400) % 2 > 0}, DataError, "class number"),
        ({"chunk_size": 2.5}, ConfigError, "chunk_size must be an integer"),
        ({"loss_batch": 2.5}, ConfigError, "loss_batch must be an integer"),
        ({"average": "half"}, ConfigError, "average"),
        ({"callbacks": [3]}, ConfigError, "callbacks"),
        ({"callbacks": print}, ConfigError, "callbacks"),
        ({"device": "no such device"}, ConfigError, "cannot go to device"),
        ({"checkpoint": "/proc/none/here"}, StorageError, "cannot write"),
    ],
)
@pytest.mark.parametrize("kind", ["pf_ld", "dp_fermi"])
def test_refused_while_nothing_is_spent(
    tmp_path: Path, kind: str, change: dict[str, Any], error: type[Exception], text: str
) -> None:
    data, own = toy(), dict(change)
    oracle = regulator(tmp_path, data.group).local()
    strategy = PFLD() if kind == "pf_ld" else DpFermi(clip=0.5)
    model, x, y = own.pop("model", linear()), own.pop("x", data.x), own.pop("y", data.y)

    def run() -> None:
        trainer(model, strategy, oracle, **{"warmup_steps": 0, **own}).fit(x, y)

    with pytest.raises(error, match=text):
        run()
    assert oracle.budget.spent_units == 0


class _Notion:
    """One event with this h."""

    name = "own"

    def __init__(self, h: Callable[[Tensor, Tensor], Any]) -> None:
        self.h = h

    def events(self, classes: int) -> tuple[Event, ...]:
        return (Event("own", self.h),)


@pytest.mark.parametrize(
    "h",
    [
        lambda logits, target: logits[:, 1:2],
        lambda logits, target: logits[:, 1].mean(),
        lambda logits, target: logits[:, 1] * float("nan"),
        lambda logits, target: (logits[:, 1] > 0).float(),
        lambda logits, target: logits[:, 1].tolist(),
        lambda logits, target: logits[:, 1] - logits[:, 1].mean(),
        lambda logits, target: logits[:, 7],
    ],
    ids=["column", "one number", "nan", "no gradient", "list", "mixes rows", "error"],
)
def test_a_notion_that_makes_no_sense_costs_nothing(tmp_path: Path, h: Any) -> None:
    data = toy()
    oracle = regulator(tmp_path, data.group).local()
    with pytest.raises(ConfigError):
        trainer(linear(), PFLD(_Notion(h)), oracle).fit(data.x, data.y)
    assert oracle.budget.spent_units == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"primal_multiplier": 1e-9},
        {"dual_multiplier": 1e9},
        {"primal_norm": "best"},
        {"dual_norm": "bound"},
        {"split": (0.1, 0.2, 0.7)},
        {"epsilon": "1"},
    ],
)
def test_options_of_pf_ld_are_checked_before_anything_is_asked(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    data = toy()
    oracle = regulator(tmp_path, data.group).local()
    with pytest.raises(ConfigError):
        trainer(linear(), PFLD(**settings), oracle, chunk_size=3).fit(data.x, data.y)
    assert oracle.budget.spent_units == 0


class _NotByRow(nn.Module):
    """Right outputs for a batch, an error for a row by itself: torch.func cannot map over it."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        if torch._C._functorch.maybe_current_level() is not None:
            raise RuntimeError("no batching rule for this operation")
        return x @ self.w


@pytest.mark.parametrize("strategy", [PFLD, lambda: DpFermi(clip=0.5)])
def test_a_model_without_gradients_by_row_costs_nothing(tmp_path: Path, strategy: Any) -> None:
    data = toy()
    oracle = regulator(tmp_path, data.group).local()
    own = trainer(_NotByRow(), strategy(), oracle, chunk_size=50, warmup_steps=0)
    with pytest.raises(ConfigError, match="no batching rule"):
        own.fit(data.x, data.y)
    assert oracle.budget.spent_units == 0


def test_more_groups_than_can_be_measured(tmp_path: Path) -> None:
    """Forty groups of ten people each: public numbers say that the counts will drown."""
    data = toy(400, groups=40)
    oracle = regulator(tmp_path, data.group, epsilon=4.0).local()
    with pytest.raises(DataError, match="40 groups among 400 people"):
        trainer(linear(), PFLD(), oracle).fit(data.x, data.y)
    assert oracle.budget.spent_units == 0


def test_dropping_all_groups_but_one_is_an_error(tmp_path: Path) -> None:
    """A run without anything to compare must not report a violation of 0."""
    data = toy(400, groups=40)
    oracle = regulator(tmp_path, data.group, epsilon=4.0).local()
    own = trainer(linear(), PFLD(small_groups="drop"), oracle)
    with pytest.raises(DataError, match=r"and \d+ more: .* Fewer than two groups"):
        own.fit(data.x, data.y)
    assert oracle.position[0] == 1  # the counts alone


def test_a_group_not_stated_that_holds_nobody_takes_no_part(tmp_path: Path) -> None:
    """It is declared whether or not anybody is in it, so an empty one ends no run."""
    from federation import federation, labels

    from isonomy.company.gradient.pf_ld.pf_ld import SmallGroupWarning

    data, names = toy(600), ["g0", "g1", "not stated"]
    home = federation(tmp_path, {"sex": labels(data.group, names)}, {"sex": names}, epsilon=20.0)
    with pytest.warns(SmallGroupWarning, match="not stated: empty, or too small"):
        result = trainer(linear(), PFLD(), home.local()).fit(data.x, data.y)
    assert result.stopped == "rounds"


# --- Names in tables ---------------------------------------------------------------------------


def test_groups_of_two_attributes_may_be_called_alike(tmp_path: Path) -> None:
    from federation import federation, labels

    data = toy()
    codes = {"married": data.group, "member": np.arange(400) % 2}
    names = ["no", "yes"]
    home = federation(
        tmp_path,
        {name: labels(own, names) for name, own in codes.items()},
        dict.fromkeys(codes, names),
        epsilon=9.0,
    )
    own = trainer(linear(), PFLD(), home.local(), attribute=["married", "member"])
    table = own.fit(data.x, data.y).history.table()
    wanted = [f"λ[{a}: {g}, selected]" for a in codes for g in names]
    assert [name for name in table.columns if name.startswith("λ")] == wanted


def test_the_table_of_dp_fermi_calls_w_by_its_name(tmp_path: Path) -> None:
    data = toy()
    oracle = regulator(tmp_path, data.group, epsilon=9.0).local()
    result = trainer(linear(), DpFermi("equal_opportunity"), oracle).fit(data.x, data.y)
    table = result.history.table()
    wanted = [f"W[{g}, class {c} chosen | y = 1]" for g in ("g0", "g1") for c in (0, 1)]
    assert [name for name in table.columns if "[" in name] == wanted


def test_a_chunk_without_the_label_that_a_notion_looks_at(tmp_path: Path) -> None:
    """W steps chunk by chunk, chunks of three people: some hold nobody with y = 1."""
    data = toy(60)
    oracle = regulator(tmp_path, data.group, epsilon=60.0).local()
    fermi = DpFermi("equal_opportunity", w_update="chunk")
    result = trainer(linear(), fermi, oracle, chunk_size=3, rounds=2).fit(data.x, data.y)
    assert result.stopped == "rounds"
    assert np.isfinite(result.history[-1].violation)
