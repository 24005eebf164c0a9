"""`GradientFairClassifier`, the notions, F-LD's refusals, and the strategies in a rehearsal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from gradient_kit import linear, regulator, toy, trainer
from sklearn.base import clone
from torch import Tensor, nn

from isonomy.common.errors import ConfigError
from isonomy.company import GradientFairClassifier
from isonomy.company.gradient.f_ld import FLD
from isonomy.company.gradient.notions import NAMES, BuiltIn, Event, notion_of
from isonomy.company.gradient.pf_ld import PFLD
from isonomy.company.simulate import Settings, simulate

SHORT = {"rounds": 3, "warmup_steps": 40, "local_steps": 4}


def test_a_table_with_text_goes_in_and_labels_come_out(tmp_path: Path) -> None:
    data = toy(300)
    frame = pd.DataFrame(data.x, columns=list("abcd")).assign(
        town=np.where(data.x[:, 2] > 0, "x", "y")
    )
    y = np.where(data.y == 1, "yes", "no")
    home = regulator(tmp_path, data.group, epsilon=20.0)
    model = GradientFairClassifier(oracle=home.local(), trainer_options=SHORT)
    model.fit(frame, y, ids=[f"person-{i}" for i in range(300)])
    assert set(model.predict(frame)) <= {"no", "yes"}
    proba = model.predict_proba(frame)
    assert proba.shape == (300, 2)
    assert np.allclose(proba.sum(axis=1), 1)
    assert (model.predict(frame) == y).mean() > 0.7
    assert model.stopped_ == "rounds"
    assert len(model.history_) == 3


def test_a_clone_shares_the_budget_and_nothing_else(tmp_path: Path) -> None:
    data = toy(300)
    oracle = regulator(tmp_path, data.group, epsilon=20.0).local()
    model = GradientFairClassifier(
        oracle=oracle, strategy_options={"epsilon": 5.0}, trainer_options=SHORT
    )
    model.fit(data.x, data.y)
    other = clone(model)
    assert other.oracle is oracle
    assert not hasattr(other, "module_")
    spent = oracle.budget.spent_units
    other.fit(data.x, data.y)
    assert oracle.budget.spent_units > spent


def test_an_nn_module_is_copied_and_a_strategy_too(tmp_path: Path) -> None:
    data = toy(200)
    oracle = regulator(tmp_path, data.group, epsilon=20.0).local()
    net, strategy = nn.Linear(4, 2), PFLD(epsilon=5.0)
    before = net.weight.detach().clone()
    model = GradientFairClassifier(
        net, strategy=strategy, oracle=oracle, encoder="passthrough", trainer_options=SHORT
    )
    model.fit(data.x, data.y)
    assert torch.equal(net.weight, before)
    assert not torch.equal(model.module_.weight, before)
    assert strategy._lam is None
    model.fit(data.x, data.y)  # the first fit left nothing behind that would disturb this one
    assert len(model.history_) == 3


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"module": "forest"}, "forest"),
        ({"strategy": "magic"}, "pf_ld"),
        ({"strategy_options": {"speed": 3}}, "options"),
        ({"trainer_options": {"speed": 3}}, "speed"),
        ({"strategy": PFLD(), "strategy_options": {"step": 1.0}}, "strategy's name"),
        ({"oracle": None}, "oracle"),
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
    with pytest.raises(ConfigError, match="not private"):
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
    assert (run.epsilon_spent == 0) == (strategy == "f_ld")


def test_simulate_says_which_base_models_there_are() -> None:
    with pytest.raises(ConfigError, match="--base logistic or --base mlp"):
        simulate("lending", Settings(strategy="pf_ld", base="gbdt", seeds=1))


def test_simulate_refuses_f_ld_on_the_encrypted_oracle() -> None:
    settings = Settings(strategy="f_ld", base="logistic", seeds=1, encrypted=True)
    with pytest.raises(ConfigError, match="not private"):
        simulate("lending", settings)
