"""The trainer: any module and optimiser, chunks, breaks, budgets, callbacks, history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gradient_kit import linear, parameters, regulator, same, toy, trainer
from torch import nn

from isonomy.common.base.errors import ConfigError, DataError, IsonomyError, VerificationError
from isonomy.common.privacy.accounting import epsilon_of
from isonomy.common.sums.oracle import RepeatedPeopleWarning
from isonomy.company.gradient.fermi.fermi import DpFermi
from isonomy.company.gradient.pf_ld.pf_ld import PFLD
from isonomy.company.gradient.record.privacy import RecordPrivacy
from isonomy.company.gradient.run.chunks import make_chunks
from isonomy.company.gradient.training.trainer import EarlyStopping, Trainer


class Break(Exception):  # noqa: N818
    """A run that is cut off."""


def _break_at(number: int) -> Any:
    def callback(own: Trainer, record: Any) -> None:
        if record.round == number:
            raise Break

    return callback


# --- Chunks ------------------------------------------------------------------------------------


def test_chunks_part_the_people_and_keep_each_persons_rows_together() -> None:
    people = np.array([5, 3, 5, 8, 1, 3, 9, 0])
    chunks = make_chunks(people, 2, torch.Generator().manual_seed(0))
    rows = torch.cat([chunk.rows for chunk in chunks])
    assert sorted(rows.tolist()) == list(range(8))
    homes = [set(chunk.people.tolist()) for chunk in chunks]
    assert [len(home) for home in homes] == [2, 2, 2]
    assert set.union(*homes) == {0, 1, 3, 5, 8, 9}
    for chunk in chunks:
        assert (people[chunk.rows.numpy()] == chunk.people).all()


def test_chunk_sizes_differ_by_one_at_most() -> None:
    chunks = make_chunks(np.arange(103), 10, torch.Generator().manual_seed(0))
    assert {len(chunk) for chunk in chunks} <= {9, 10}


# --- Breaks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_a_broken_run_ends_with_the_same_model(tmp_path: Path, optimiser: str) -> None:
    """Cut off after the third round's questions, before they were saved; new oracle, new process
    in all but name. Dropout and shuffled chunks, so that every generator matters."""
    data = toy(160)

    def model() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))

    def make(parameters: Any) -> Any:
        if optimiser == "adam":
            return torch.optim.Adam(parameters, lr=0.02, amsgrad=True)
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    settings: dict[str, Any] = {
        "rounds": 5,
        "chunk_size": 40,
        "average": 0.5,
        "optimiser": make,
    }
    whole = model()
    home = regulator(tmp_path, data.group, epsilon=20.0, name="whole")
    result = trainer(whole, PFLD(), home.local(), **settings).fit(data.x, data.y)

    folder, broken = tmp_path / "checkpoint", model()
    home = regulator(tmp_path, data.group, epsilon=20.0, name="broken")
    with pytest.raises(Break):
        trainer(
            broken,
            PFLD(),
            home.local(),
            checkpoint=folder,
            callbacks=[_break_at(3)],
            **settings,
        ).fit(data.x, data.y)
    assert json.loads((folder / "state.json").read_text())["round"] == 2
    fresh, oracle = model(), home.local()
    again = trainer(fresh, PFLD(), oracle, checkpoint=folder, **settings)
    resumed = again.fit(data.x, data.y, resume=folder)
    assert same(whole, fresh)
    assert not same(whole, broken)
    assert len(resumed.history) == 5
    kept = ["loss", "violation", "epsilon_spent", "epsilon_as_in_papers"]
    left, right = result.history.table()[kept], resumed.history.table()[kept]
    assert (left == right).all().all()
    assert list(resumed.history.table().columns) == list(result.history.table().columns)
    assert oracle.budget.spent_units <= oracle.budget.cap_units


def test_a_checkpoint_is_for_its_owner_and_its_run(tmp_path: Path) -> None:
    data = toy(100)
    home = regulator(tmp_path, data.group, epsilon=20.0)
    folder = tmp_path / "checkpoint"
    trainer(linear(), PFLD(), home.local(), checkpoint=folder, rounds=2).fit(data.x, data.y)
    modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert modes == {0o600}
    assert len(list(folder.iterdir())) == 2
    with pytest.raises(ConfigError, match="rounds"):
        trainer(linear(), PFLD(), home.local(), rounds=3).fit(data.x, data.y, resume=folder)
    with pytest.raises(ConfigError, match="strategy"):
        trainer(linear(), PFLD(step=0.3), home.local(), rounds=2).fit(data.x, data.y, resume=folder)
    for text, x, more in (
        ("data", data.x + 1, {}),
        ("optimiser", data.x, {"optimiser": lambda p: torch.optim.SGD(p, lr=0.1)}),
        ("loss", data.x, {"loss": nn.CrossEntropyLoss(label_smoothing=0.1)}),
    ):
        other = trainer(linear(), PFLD(), home.local(), rounds=2, **more)
        with pytest.raises(ConfigError, match=f"another run: {text} differ"):
            other.fit(x, data.y, resume=folder)
    tensors = next(folder.glob("*.safetensors"))
    whole = tensors.read_bytes()
    tensors.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(VerificationError):
        trainer(linear(), PFLD(), home.local(), rounds=2).fit(data.x, data.y, resume=folder)
    with pytest.raises(ConfigError, match="no checkpoint"):
        trainer(linear(), PFLD(), home.local()).fit(data.x, data.y, resume=tmp_path / "none")


def _network() -> nn.Module:
    torch.manual_seed(0)
    hidden = (nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh())
    return nn.Sequential(*hidden, nn.Linear(12, 2))  # larger than a chunk without a layer, too


def test_a_resumed_network_with_chunks_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    """Noisy weights, the kept Gram matrices and the shared pass: all of it again."""
    data, folder = toy(120), tmp_path / "checkpoint"
    home = regulator(tmp_path, data.group, epsilon=20.0)
    settings: dict[str, Any] = {"chunk_size": 40, "rounds": 3, "local_steps": 2}
    whole, again = _network(), _network()
    trainer(whole, PFLD(), home.local(), **settings).fit(data.x, data.y)
    settings["checkpoint"] = folder
    with pytest.raises(Break):
        trainer(_network(), PFLD(), home.local(), callbacks=[_break_at(2)], **settings).fit(
            data.x, data.y
        )
    trainer(again, PFLD(), home.local(), **settings).fit(data.x, data.y, resume=folder)
    assert same(whole, again)


def test_a_layer_that_a_callback_freezes_stays_where_it_is(tmp_path: Path) -> None:
    kept: list[torch.Tensor] = []

    def freeze(own: Trainer, record: Any) -> None:
        if record.round == 1:
            layer = own.model.get_submodule("0")
            kept.extend(p.requires_grad_(False).detach().clone() for p in layer.parameters())

    data, model = toy(120), _network()
    oracle = regulator(tmp_path, data.group, epsilon=20.0).local()
    settings: dict[str, Any] = {"chunk_size": 40, "rounds": 2, "local_steps": 1}
    trainer(model, PFLD(), oracle, callbacks=[freeze], **settings).fit(data.x, data.y)
    assert all(torch.equal(a, b) for a, b in zip(model[0].parameters(), kept, strict=True))


# --- Ends --------------------------------------------------------------------------------------


def test_a_spent_budget_ends_the_run_with_the_last_model(tmp_path: Path) -> None:
    """Multipliers as in the paper, too little noise for ten rounds: some rounds, then the end."""
    data = toy()
    home = regulator(tmp_path, data.group, epsilon=2.0)
    oracle, model = home.local(), linear()
    strategy = PFLD(primal_multiplier=4.0, dual_multiplier=6.0)
    result = trainer(model, strategy, oracle, rounds=10).fit(data.x, data.y)
    assert result.stopped == "budget"
    assert 0 < len(result.history) < 10
    assert oracle.budget.spent_units <= oracle.budget.cap_units
    assert all(np.isfinite(p).all() for p in parameters(model))


def test_nothing_left_is_an_error_not_an_end(tmp_path: Path) -> None:
    from isonomy.common.base.errors import BudgetExceeded

    data = toy()
    home = regulator(tmp_path, data.group)
    oracle = home.local()
    trainer(linear(), PFLD(), oracle, rounds=2).fit(data.x, data.y)
    with pytest.raises(BudgetExceeded, match=r"kept for audits.*resume=") as error:
        trainer(linear(), PFLD(), oracle, rounds=2).fit(data.x, data.y)
    assert "releases" not in str(error.value)  # which these strategies do not have


def test_epsilon_limits_what_a_run_spends(tmp_path: Path) -> None:
    data = toy()
    home = regulator(tmp_path, data.group, epsilon=4.0)
    oracle = home.local()
    trainer(linear(), PFLD(epsilon=1.0), oracle, rounds=3).fit(data.x, data.y)
    assert 0.999 < oracle.budget.spent_epsilon <= 1.0


def test_early_stopping_looks_at_released_violations(tmp_path: Path) -> None:
    data = toy(600)
    home = regulator(tmp_path, data.group, epsilon=200.0)
    stop = EarlyStopping(violation=10.0, patience=3)
    own = trainer(linear(), PFLD(), home.local(), rounds=8, callbacks=[stop])
    result = own.fit(data.x, data.y)
    assert result.stopped == "callback"
    assert len(result.history) == 3
    never = trainer(
        linear(),
        PFLD(),
        regulator(tmp_path, data.group, name="b").local(),
        callbacks=[EarlyStopping(violation=-1.0)],
    )
    assert never.fit(data.x, data.y).stopped == "rounds"


def test_every_callback_is_called_every_round(tmp_path: Path) -> None:
    data, heard = toy(100), []
    home = regulator(tmp_path, data.group, epsilon=20.0)
    calls = [
        lambda own, r: heard.append(("a", r.round)),
        lambda own, r: heard.append(("b", r.round)),
    ]
    trainer(linear(), PFLD(), home.local(), rounds=2, callbacks=calls).fit(data.x, data.y)
    assert heard == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]


# --- History -----------------------------------------------------------------------------------


def test_history_is_a_table_and_a_figure(tmp_path: Path) -> None:
    data = toy()
    home = regulator(tmp_path, data.group)
    oracle = home.local()
    history = trainer(linear(), PFLD("equalized_odds"), oracle).fit(data.x, data.y).history
    table = history.table()
    assert len(table) == 4
    assert table["epsilon_spent"].is_monotonic_increasing
    whole = epsilon_of(int(0.9 * oracle.budget.cap_units), oracle.budget.delta)
    assert table["epsilon_spent"].iloc[-1] == pytest.approx(whole, abs=1e-3)
    assert "λ[g0, selected | y = 1]" in table.columns
    figure = history.plot(cap_epsilon=oracle.budget.cap_epsilon, tolerance=0.02)
    names = set(figure.legend())
    assert {"ε spent", "λ[g1, selected | y = 0]"} <= names
    assert {"ε as in the papers, not a guarantee", "ε certified: 2", "tolerance 0.02"} <= names
    (violation,) = figure.panels[1].series
    assert [y for _, y in violation.points] == list(table["violation"])
    assert len(violation.y_limits) == len(history)


# --- Models ------------------------------------------------------------------------------------


def test_several_classes_and_groups_with_two_hidden_layers(tmp_path: Path) -> None:
    data = toy(240, classes=3, groups=3)
    home = regulator(tmp_path, data.group, epsilon=60.0)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 16),
        nn.ReLU(),
        nn.Linear(16, 16),
        nn.LayerNorm(16),
        nn.ReLU(),
        nn.Linear(16, 3),
    )
    own = trainer(model, PFLD(), home.local(), chunk_size=80, rounds=3, warmup_steps=60)
    result = own.fit(data.x, data.y)
    assert result.history[-1].multipliers.shape == (3, 2)
    with torch.no_grad():
        right = (model(torch.from_numpy(data.x)).argmax(dim=1).numpy() == data.y).mean()
    assert right > 0.5


def test_several_attributes_and_an_intersection(tmp_path: Path) -> None:
    from federation import federation, labels

    data = toy(600)
    age = np.random.default_rng(3).integers(3, size=600)
    home = federation(
        tmp_path,
        {"sex": labels(data.group, ["f", "m"]), "age": labels(age, ["a", "b", "c"])},
        {"sex": ["f", "m"], "age": ["a", "b", "c"]},
        epsilon=30.0,
    )
    oracle = home.local()
    own = trainer(linear(), PFLD(), oracle, attribute=["sex", "age"], rounds=2)
    result = own.fit(data.x, data.y)
    assert result.history[-1].multipliers.shape == (5, 1)
    assert 0.999 < oracle.budget.spent_units / (0.9 * oracle.budget.cap_units) <= 1
    home = federation(
        tmp_path,
        {"sex": labels(data.group, ["f", "m"]), "age": labels(age, ["a", "b", "c"])},
        {"sex": ["f", "m"], "age": ["a", "b", "c"]},
        epsilon=30.0,
        name="crossed",
    )
    own = trainer(linear(), PFLD(), home.local(), attribute="sex*age", rounds=2)
    assert own.fit(data.x, data.y).history[-1].multipliers.shape == (6, 1)


def test_a_persons_rows_count_as_one_person(tmp_path: Path) -> None:
    """Everybody's row three times is everybody once: same counts, same λ up to noise."""
    data = toy(200)
    home = regulator(tmp_path, data.group, epsilon=2000.0)
    once = trainer(linear(), PFLD(), home.local(), rounds=2).fit(data.x, data.y)
    home = regulator(tmp_path, data.group, epsilon=2000.0, name="thrice")
    ids = [f"person-{i}" for i in range(200)] * 3
    with pytest.warns(RepeatedPeopleWarning, match="600 rows belong to 200 people"):
        thrice = trainer(linear(), PFLD(), home.local(), rounds=2).fit(
            np.tile(data.x, (3, 1)), np.tile(data.y, 3), ids=ids
        )
    left, right = once.history[-1].multipliers, thrice.history[-1].multipliers
    assert np.abs(left - right).max() < 0.02


def test_frozen_parameters_stay_as_they_are(tmp_path: Path) -> None:
    data = toy(100)
    home = regulator(tmp_path, data.group, epsilon=20.0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    before = parameters(model)
    trainer(model, PFLD(), home.local(), rounds=2).fit(data.x, data.y)
    after = parameters(model)
    assert (before[0] == after[0]).all()
    assert (before[2] != after[2]).any()


def test_local_steps_cost_nothing(tmp_path: Path) -> None:
    """More work on the company's own data between two questions: same number of questions."""
    data = toy(120)
    asked = []
    for number, settings in enumerate(({}, {"local_steps": 7}, {"loss_batch": 16})):
        home = regulator(tmp_path, data.group, epsilon=20.0, name=str(number))
        oracle = home.local()
        own = trainer(linear(), PFLD(), oracle, chunk_size=30, **settings)
        own.fit(data.x, data.y)
        asked.append((oracle.position[0], oracle.budget.spent_units))
    assert len(set(asked)) == 1


def test_the_same_seed_and_noise_give_the_same_model(tmp_path: Path) -> None:
    data, models = toy(100), []
    for number, seed in enumerate((4, 4, 5)):
        home = regulator(tmp_path, data.group, epsilon=20.0, name=str(number))
        models.append(linear())
        own = trainer(models[-1], PFLD(), home.local(), chunk_size=25, seed=seed)
        torch.manual_seed(number)  # the caller's own generator plays no part
        own.fit(data.x, data.y)
    assert same(models[0], models[1])
    assert not same(models[0], models[2])


# --- Bad input, found before anything is spent -------------------------------------------------


def _batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))


def _broken() -> nn.Module:
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.fill_(float("nan"))
    return model


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"model": _batch_norm}, ConfigError, "GroupNorm or nn.LayerNorm"),
        ({"model": _broken}, ConfigError, "NaN or infinite"),
        ({"model": lambda: nn.Linear(7, 1)}, ConfigError, "does not take these inputs"),
        ({"model": lambda: nn.Linear(4, 3)}, DataError, "one logit per class"),
        ({"model": lambda: "net"}, ConfigError, "nn.Module"),
        ({"y": np.zeros(400, dtype=np.int64)}, DataError, "one class only"),
        ({"y": np.zeros(400)}, DataError, "class number"),
        ({"y": np.arange(399) % 2}, DataError, "400 rows"),
        ({"y": np.where(np.arange(400) % 2, 2, 0)}, DataError, "without gaps"),
        ({"x": np.full((400, 4), np.nan)}, DataError, "400 rows of the inputs"),
        ({"ids": [f"stranger-{i}" for i in range(400)]}, DataError, "not in the agreed cohort"),
        ({"ids": ["person-0"]}, DataError, "1 ids for 400 rows"),
        ({"attribute": "height"}, ConfigError, "height"),
        ({"rounds": 0}, ConfigError, "rounds"),
        ({"chunk_size": 0}, ConfigError, "chunk_size"),
        ({"average": 1.0}, ConfigError, "average"),
    ],
)
@pytest.mark.parametrize("kind", ["pf_ld", "dp_fermi", "records"])
def test_bad_input_is_refused_before_anything_is_spent(
    tmp_path: Path, kind: str, change: dict[str, Any], error: type[Exception], text: str
) -> None:
    data, own = toy(), dict(change)
    oracle = regulator(tmp_path, data.group).local()
    strategy = DpFermi() if kind == "dp_fermi" else PFLD(primal_norm=0.5)
    records = RecordPrivacy(epsilon=20.0) if kind == "records" else None
    model = own.pop("model", linear)
    x, y, ids = own.pop("x", data.x), own.pop("y", data.y), own.pop("ids", None)

    def run() -> None:
        settings = {"warmup_steps": 0, "record_privacy": records, **own}
        trainer(model(), strategy, oracle, **settings).fit(x, y, ids=ids)

    with pytest.raises(error, match=text):
        run()
    assert oracle.budget.spent_units == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"primal_multiplier": 0.0},
        {"dual_multiplier": -1.0},
        {"notion": "justice"},
        {"step": 0.0},
        {"clip_quantile": 0.0},
        {"primal_norm": 0.0},
        {"noise_shape": -1.0},
        {"small_groups": "ignore"},
    ],
)
def test_a_private_run_needs_noise_and_sense(tmp_path: Path, settings: dict[str, Any]) -> None:
    data = toy()
    oracle = regulator(tmp_path, data.group).local()
    with pytest.raises(ConfigError):
        trainer(linear(), PFLD(**settings), oracle).fit(data.x, data.y)
    assert oracle.budget.spent_units == 0


def test_more_groups_than_people(tmp_path: Path) -> None:
    from federation import federation

    names = [f"g{i}" for i in range(30)]
    home = federation(tmp_path, {"sex": names[:20]}, {"sex": names})
    data = toy(20)
    for strategy in (PFLD(), DpFermi()):
        oracle = home.local()
        with pytest.raises(DataError, match="30 groups, but there are 20 people"):
            trainer(linear(), strategy, oracle).fit(data.x, data.y)
        assert oracle.budget.spent_units == 0


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("name", ["pf_ld", "dp_fermi"])
def test_an_empty_cell_of_group_and_label(tmp_path: Path, name: str, records: bool) -> None:
    """Nobody of one group has one label: known to the regulator only, so it shows in the counts,
    and the run ends with that one release."""
    data = toy(600)
    data.y[data.group == 0] = 0
    oracle = regulator(tmp_path, data.group, epsilon=4.0).local()
    strategy: Any = (
        PFLD("equalized_odds", primal_norm=0.5)
        if name == "pf_ld"
        else DpFermi("equalized_odds", clip=0.5)
    )
    own = trainer(
        linear(), strategy, oracle, record_privacy=RecordPrivacy(epsilon=20.0) if records else None
    )
    with pytest.raises(DataError, match=r"within the noise for g0|large enough to be measured"):
        own.fit(data.x, data.y)
    assert 0 < oracle.budget.spent_units < 0.05 * oracle.budget.cap_units


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan"), 100.0])
@pytest.mark.parametrize("strategy", [PFLD, DpFermi])
def test_an_epsilon_that_makes_no_sense(tmp_path: Path, strategy: Any, epsilon: float) -> None:
    data = toy()
    oracle = regulator(tmp_path, data.group).local()
    with pytest.raises(IsonomyError, match=r"epsilon|ε"):
        trainer(linear(), strategy(epsilon=epsilon), oracle).fit(data.x, data.y)
    assert oracle.budget.spent_units == 0


def test_an_empty_group_is_refused_or_dropped_by_its_released_count(tmp_path: Path) -> None:
    from federation import federation, labels

    data = toy()
    values = {"sex": labels(data.group, ["f", "m"])}
    home = federation(tmp_path, values, {"sex": ["f", "m", "x"]}, epsilon=5.0)
    with pytest.raises(DataError, match="within the noise for x"):
        trainer(linear(), PFLD(), home.local()).fit(data.x, data.y)
    home = federation(tmp_path, values, {"sex": ["f", "m", "x"]}, epsilon=5.0, name="again")
    own = trainer(linear(), PFLD(small_groups="drop"), home.local())
    with pytest.warns(UserWarning, match="takes no part"):
        result = own.fit(data.x, data.y)
    assert result.stopped == "rounds"
    assert (result.history[-1].multipliers[2] == 0).all()


def test_a_label_that_nobody_has(tmp_path: Path) -> None:
    from isonomy.company.gradient.run.notions import Event

    class Third:
        name = "third"

        def events(self, classes: int) -> tuple[Event, ...]:
            return (Event("third", lambda logits, target: logits[:, 0], label=7),)

    data = toy()
    oracle = regulator(tmp_path, data.group).local()
    with pytest.raises(DataError, match="nobody belongs to the event 'third'"):
        trainer(linear(), PFLD(Third()), oracle).fit(data.x, data.y)
    assert oracle.budget.spent_units == 0


def test_a_loss_that_runs_away_leaves_the_last_finite_model(tmp_path: Path) -> None:
    data = toy()
    oracle, model = regulator(tmp_path, data.group).local(), linear()

    def wild(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        wild.calls += 1  # type: ignore[attr-defined]
        scale = float("inf") if wild.calls > 30 else 1.0  # type: ignore[attr-defined]
        return nn.functional.cross_entropy(logits, target) * scale

    wild.calls = 0  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="NaN or infinite"):
        trainer(model, PFLD(), oracle, loss=wild).fit(data.x, data.y)
    assert all(np.isfinite(p).all() for p in parameters(model))
