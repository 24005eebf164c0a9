"""`GradientFairClassifier`, the notions, F-LD's refusals, and the strategies in a rehearsal."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from gradient_kit import linear, regulator, toy, trainer
from sklearn.base import clone
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.company import ColumnCoder, GradientFairClassifier, RecordPrivacy
from isonomy.company.fair.inputs.checks import AttributeAmongFeaturesWarning
from isonomy.company.gradient.fermi.fermi import DpFermi
from isonomy.company.gradient.pf_ld.f_ld import FLD
from isonomy.company.gradient.pf_ld.pf_ld import PFLD
from isonomy.company.gradient.run.notions import NAMES, BuiltIn, Event, notion_of
from isonomy.company.gradient.run.paper_epsilon import GUARANTEE, NOT_A_GUARANTEE
from isonomy.company.gradient.sdk.classifier import WeightedLoss
from isonomy.company.rehearsal.datasets import lending
from isonomy.company.rehearsal.settings import Settings
from isonomy.company.rehearsal.simulate import simulate

SHORT = {"rounds": 3, "warmup_steps": 40, "local_steps": 4}


def test_a_table_with_text_goes_in_and_labels_come_out(tmp_path: Path) -> None:
    data = toy(300)
    frame = pd.DataFrame(data.x, columns=list("abcd")).assign(
        town=np.where(data.x[:, 2] > 0, "x", "y")
    )
    y = np.where(data.y == 1, "yes", "no")
    home = regulator(tmp_path, data.group, epsilon=20.0)
    model = GradientFairClassifier(oracle=home.local(), pos_label="yes", trainer_options=SHORT)
    model.fit(frame, y, ids=[f"person-{i}" for i in range(300)])
    assert set(model.predict(frame)) <= {"no", "yes"}
    proba = model.predict_proba(frame)
    assert proba.shape == (300, 2)
    assert np.allclose(proba.sum(axis=1), 1)
    assert (model.predict(frame) == y).mean() > 0.7
    assert model.stopped_ == "rounds"
    assert len(model.history_) == 3


def test_a_clone_has_the_settings_without_the_oracle(tmp_path: Path) -> None:
    data = toy(300)
    oracle = regulator(tmp_path, data.group, epsilon=20.0).local()
    model = GradientFairClassifier(
        oracle=oracle,
        strategy="dp_fermi",
        strategy_options={"epsilon": 5.0},
        trainer_options=SHORT,
    )
    model.fit(data.x, data.y)
    other = clone(model)
    assert not hasattr(other, "module_")
    spent = oracle.budget.spent_units
    with pytest.raises(ConfigError, match="Copies have no oracle"):
        other.fit(data.x, data.y)
    other.set_params(oracle=oracle).fit(data.x, data.y)
    assert oracle.budget.spent_units > spent


def test_an_nn_module_is_copied_and_a_strategy_too(tmp_path: Path) -> None:
    data = toy(200)
    oracle = regulator(tmp_path, data.group, epsilon=20.0).local()
    net, strategy = nn.Linear(4, 2), DpFermi(epsilon=5.0)
    before = net.weight.detach().clone()
    model = GradientFairClassifier(
        net, strategy=strategy, oracle=oracle, encoder="passthrough", trainer_options=SHORT
    )
    model.fit(data.x, data.y)
    assert torch.equal(net.weight, before)
    assert not torch.equal(model.module_.weight, before)
    assert vars(strategy).keys() == vars(DpFermi(epsilon=5.0)).keys()  # not trained itself
    model.fit(data.x, data.y)  # the first fit left nothing behind that would disturb this one
    assert len(model.history_) == 3


def test_class_weights_are_those_of_the_loss(tmp_path: Path) -> None:
    """Row by row: also of a row alone, as private loss steps see them. And they move decisions."""
    logits, target = torch.randn(6, 2, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1, 0])
    loss = WeightedLoss.of({"yes": 0.25}, np.array(["no", "yes"]))
    chance = torch.log_softmax(logits, dim=1)[torch.arange(6), target]
    by_hand = -chance * torch.where(target == 1, 0.25, 1.0)
    assert torch.allclose(loss(logits, target), by_hand.mean())
    assert torch.allclose(loss(logits[1:2], target[1:2]), by_hand[1])

    data = toy(400)
    selected = []
    for number, weight in enumerate((None, {1: 0.2})):
        folder = tmp_path / str(number)
        folder.mkdir()
        oracle = regulator(folder, data.group, epsilon=20.0).local()
        model = GradientFairClassifier(
            oracle=oracle, class_weight=weight, trainer_options={**SHORT, "warmup_steps": 200}
        )
        selected.append(model.fit(data.x, data.y).predict(data.x).mean())
    assert selected[1] < 0.7 * selected[0]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"module": "forest"}, "forest"),
        ({"strategy": "magic"}, "pf_ld"),
        ({"strategy_options": {"speed": 3}}, "options"),
        ({"trainer_options": {"speed": 3}}, "speed"),
        ({"strategy": PFLD(), "strategy_options": {"step": 1.0}}, "strategy's name"),
        ({"oracle": None}, "oracle"),
        ({"class_weight": {2: 1.0}}, "class_weight takes positive numbers for"),
        ({"class_weight": {1: 0.0}}, "class_weight takes positive numbers for"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, settings: dict[str, object], text: str) -> None:
    data = toy(100)
    oracle = regulator(tmp_path, data.group).local()
    with pytest.raises(ConfigError, match=text):
        GradientFairClassifier(**{"oracle": oracle, **settings}).fit(data.x, data.y)  # type: ignore[arg-type]
    assert oracle.budget.spent_units == 0


# --- Notions -----------------------------------------------------------------------------------


class ScoreParity:
    """The worked example of docs/gradient.md."""

    name = "score_parity"

    def events(self, classes: int) -> tuple[Event, ...]:
        def score(logits: Tensor, target: Tensor) -> Tensor:
            return logits[:, 1] - logits[:, 0]

        return (Event("mean score", score, bound=8.0),)


def test_a_notion_of_ones_own(tmp_path: Path) -> None:
    data = toy(800)
    oracle = regulator(tmp_path, data.group, epsilon=100.0).local()
    model = linear()
    strategy = PFLD(ScoreParity(), step=0.1, damping=0.1)
    own = trainer(model, strategy, oracle, rounds=12, local_steps=10, warmup_steps=100)
    history = own.fit(data.x, data.y).history
    assert history[-1].violation < 0.5 * history[0].violation
    assert history.events == ("mean score",)


@pytest.mark.parametrize("name", NAMES)
def test_every_notion_has_finite_gradients_and_bounded_values(name: str) -> None:
    torch.manual_seed(0)
    logits = (20 * torch.randn(50, 2)).requires_grad_()
    target = torch.randint(2, (50,))
    for event in BuiltIn(name).events(2):
        for hard in (True, False):
            assert (
                float(event.measured(logits.detach(), target, hard=hard).abs().max()) <= event.bound
            )
        (found,) = torch.autograd.grad(event.h(logits, target).sum(), logits)
        assert torch.isfinite(found).all()
        assert bool(event.members(target).any())


def test_events_of_several_classes() -> None:
    assert len(BuiltIn("demographic_parity").events(4)) == 3
    assert len(BuiltIn("equalized_odds").events(3)) == 6
    with pytest.raises(ConfigError, match="two classes"):
        BuiltIn("equal_opportunity").events(3)
    with pytest.raises(ConfigError, match="a notion is"):
        notion_of(object())  # type: ignore[arg-type]


# --- F-LD --------------------------------------------------------------------------------------


def test_f_ld_refuses_an_oracle_that_is_not_local(tmp_path: Path) -> None:
    data = toy(60)
    home = regulator(tmp_path, data.group)
    with pytest.raises(ConfigError, match="needs the true attributes"):
        trainer(linear(), FLD(), home.company()).fit(data.x, data.y)


def test_f_ld_spends_nothing_and_gets_fair(tmp_path: Path) -> None:
    data = toy(800)
    oracle = regulator(tmp_path, data.group).local()
    strategy = FLD(step=0.2, damping=4.0)
    own = trainer(linear(), strategy, oracle, rounds=100, local_steps=2, warmup_steps=100)
    history = own.fit(data.x, data.y).history
    assert oracle.budget.spent_units == 0
    assert history[-1].violation < 0.3 * history[0].violation


@pytest.mark.parametrize("signed", [True, False])
def test_f_ld_steps_as_the_paper_says(tmp_path: Path, signed: bool) -> None:
    """λ after one round is the sum of two steps of s·(μ_P − μ_G), by hand."""
    data = toy(100)
    strategy = FLD(step=0.5, signed=signed)
    seen = []
    own = trainer(linear(), strategy, regulator(tmp_path, data.group).local(), rounds=1)
    own.callbacks = [lambda t, r: seen.append(strategy._violation.clone())]
    before = []
    inner = strategy._dual_step
    strategy._dual_step = lambda people: (before.append(1), inner(people))[1]  # type: ignore[method-assign]
    result = own.fit(data.x, data.y)
    with torch.no_grad():
        hard = (own.model(torch.from_numpy(data.x))[:, 0] > 0).double().numpy()
    wanted = [hard.mean() - hard[data.group == a].mean() for a in range(2)]
    assert np.allclose(seen[0][:, 0].numpy(), wanted)
    assert len(before) == 2
    assert np.isfinite(result.history[0].multipliers).all()
    if not signed:
        assert (strategy._lam >= 0).all()


# --- Rehearsals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "base"),
    [
        ("pf_ld", "logistic"),
        ("f_ld", "logistic"),
        pytest.param("pf_ld", "mlp", marks=pytest.mark.slow),
    ],
)
def test_simulate_takes_gradient_strategies(strategy: str, base: str) -> None:
    options = {"rounds": 2, "warmup_steps": 40}
    settings = Settings(strategy=strategy, base=base, epsilons=(4.0,), seeds=1, options=options)
    (result,) = simulate("lending", settings).results
    (run,) = result.runs
    assert run.returned == strategy
    assert 0 < run.test_error < 0.5
    assert math.isinf(run.epsilon_spent) == (strategy == "f_ld")  # trained on true attributes


def test_simulate_says_which_base_models_there_are() -> None:
    with pytest.raises(ConfigError, match="--base logistic or --base mlp"):
        simulate("lending", Settings(strategy="pf_ld", base="gbdt", seeds=1))


def test_simulate_refuses_f_ld_on_the_encrypted_oracle() -> None:
    settings = Settings(strategy="f_ld", base="logistic", seeds=1, encrypted=True)
    with pytest.raises(ConfigError, match="needs the true attributes"):
        simulate("lending", settings)


FEW = {"rounds": 2, "local_steps": 2, "warmup_steps": 5}


@pytest.mark.parametrize("strategy", ["pf_ld", "dp_fermi"])
def test_simulate_tells_three_epsilons(strategy: str) -> None:
    settings = Settings(strategy=strategy, base="logistic", epsilons=(4.0,), seeds=1, options=FEW)
    result = simulate(lending(800), settings).results[0]
    shown = result.to_json()["runs"][0]
    assert shown["epsilon_cap"] == pytest.approx(4.0)
    assert shown["epsilon_spent"] == pytest.approx(4.0, abs=1e-3)
    assert shown["epsilon_as_in_papers"] > 4.0  # full batches: nothing to amplify, RDP is loose
    assert shown["as_in_papers"] == NOT_A_GUARANTEE
    assert "tolerance" not in _text(result)
    assert NOT_A_GUARANTEE in _text(result)


def _text(result: Any) -> str:
    from rich.console import Console

    from isonomy.company.rehearsal.results import Simulation
    from isonomy.company.rehearsal.tables_and_plots import table

    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table(Simulation((result,))))
    return console.export_text()


def test_simulate_protects_records() -> None:
    settings = Settings(
        strategy="pf_ld",
        base="logistic",
        epsilons=(4.0,),
        seeds=1,
        options={**FEW, "loss_clip": 0.5},
        record_epsilon=6.0,
    )
    result = simulate(lending(800), settings).results[0]
    shown = result.to_json()
    assert shown["record_epsilon"] == 6.0
    assert 5.5 < shown["runs"][0]["epsilon_as_in_papers"] <= 6.0
    assert shown["runs"][0]["as_in_papers"] == GUARANTEE
    assert GUARANTEE in _text(result)


def test_simulate_filters_individually() -> None:
    settings = Settings(
        strategy="pf_ld", base="logistic", epsilons=(2.0,), seeds=1, options=FEW, stretch=6.0
    )
    result = simulate(lending(800), settings).results[0]
    run = result.to_json()["runs"][0]
    assert run["epsilon_spent"] <= run["epsilon_cap"] == pytest.approx(2.0)
    assert run["dropped"] > 0
    assert run["first_drop"] >= 2  # after counts and the first dual step
    assert f"{run['dropped']} people dropped" in _text(result)


def test_a_tolerance_ends_a_gradient_run() -> None:
    """Given, it is what the run stops at; not given, all rounds are used."""
    spent = []
    for tolerance in (None, 0.9):
        settings = Settings(
            strategy="pf_ld", base="logistic", epsilons=(4.0,), seeds=1, tolerance=tolerance,
            options={**FEW, "rounds": 5},
        )  # fmt: skip
        spent.append(simulate(lending(800), settings).results[0].runs[0].epsilon_spent)
    assert spent[0] == pytest.approx(4.0, abs=1e-3)
    assert spent[1] < 3.0  # two rounds of five


def test_f_ld_says_that_it_is_not_private() -> None:
    settings = Settings(strategy="f_ld", base="logistic", seeds=1, options=FEW)
    result = simulate(lending(800), settings).results[0]
    shown = result.to_json()
    assert shown["runs"][0]["epsilon_spent"] is None
    assert shown["runs"][0]["epsilon_as_in_papers"] is None
    assert shown["accounting"].startswith("none")


def test_record_privacy_fits_nothing_to_the_table(tmp_path: Path) -> None:
    """Means, scales and rare values of the records would travel with the model."""
    data = toy(400)
    home = regulator(tmp_path, data.group, epsilon=8.0)
    frame = pd.DataFrame(data.x, columns=list("abcd"))
    frame["town"] = ["x", "y"] * 200
    settings: dict[str, Any] = {
        "record_privacy": RecordPrivacy(epsilon=20.0),
        "strategy_options": {"primal_norm": 0.5},
        "trainer_options": FEW,
    }
    oracle = home.local()
    for encoder in (None, StandardScaler()):
        with pytest.raises(ConfigError, match="may not be fitted to the records"):
            GradientFairClassifier(oracle=oracle, encoder=encoder, **settings).fit(frame, data.y)
    wrong = {**settings, "trainer_options": {"record_privacy": RecordPrivacy(epsilon=20.0)}}
    with pytest.raises(ConfigError, match="not among trainer_options"):
        GradientFairClassifier(oracle=oracle, **wrong).fit(frame, data.y)
    assert oracle.budget.spent_units == 0
    public = ColumnCoder.public(dict.fromkeys("abcd", (-4.0, 4.0)), {"town": ["x", "y", "z"]})
    model = GradientFairClassifier(oracle=oracle, encoder=public, **settings).fit(frame, data.y)
    assert model.coder_ is public
    assert model.n_features_in_ == 5
    assert model.predict(frame).shape == (400,)


def test_a_data_dictionary_codes_without_looking() -> None:
    coder = ColumnCoder.public({"age": (20.0, 60.0)}, {"town": ["x", "y"]})
    frame = pd.DataFrame({"age": [20, 40, 100, None], "town": ["x", "w", "y", None]})
    coded = coder.code(frame)
    assert coded.tolist() == [[-1, 1, 0], [0, 0, 0], [1, 0, 1], [0, 0, 0]]
    for wrong in ({"age": (1.0, 1.0)}, {"age": (0.0, float("inf"))}, {}):
        with pytest.raises(DataError):
            ColumnCoder.public(wrong)


@pytest.mark.parametrize("strategy", ["pf_ld", "dp_fermi"])
def test_rows_without_a_label_and_text_among_numbers_are_refused(
    tmp_path: Path, strategy: str
) -> None:
    data = toy()
    oracle = regulator(tmp_path, data.group).local()
    table = pd.DataFrame(data.x, columns=list("abcd"))
    words = table.assign(a="u")
    labels = np.where(data.y, "yes", "no").astype(object)
    gaps = labels.copy()
    gaps[3] = None
    mixed = labels.copy()
    mixed[3] = 7
    for X, y, encoder, text in (
        (table, np.where(data.y, 1.0, np.nan), None, "no label"),
        (table, gaps, None, "1 rows have no label"),
        (table, mixed, None, "one kind"),
        (words, labels, "passthrough", "numbers only"),
    ):
        model = GradientFairClassifier(oracle=oracle, strategy=strategy, encoder=encoder)
        with pytest.raises(DataError, match=text):
            model.fit(X, y)
    bad = GradientFairClassifier(oracle=oracle, pos_label="yes", learning_rate=-1.0)
    with pytest.raises(ConfigError, match="cannot be made"):
        bad.fit(table, labels)
    assert oracle.budget.spent_units == 0


def test_a_column_that_is_called_like_the_attribute(tmp_path: Path) -> None:
    data = toy()
    oracle = regulator(tmp_path, data.group, epsilon=9.0).local()
    table = pd.DataFrame(data.x, columns=["a", "b", "c", "Sex"])
    options = {"rounds": 1, "warmup_steps": 0}
    with pytest.warns(AttributeAmongFeaturesWarning, match="Sex"):
        GradientFairClassifier(oracle=oracle, trainer_options=options).fit(table, data.y)
