"""PF-LD against plain computations, and one test for each trap in the paper (docs/design.md §2)."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import Federation
from gradient_kit import linear, parameters, regulator, same, toy, trainer
from torch import Tensor, nn

from isonomy.common.base.errors import ProtocolError
from isonomy.common.privacy.dual import Multipliers
from isonomy.common.sums.question import Prepared
from isonomy.company.gradient.per_sample.ghost import ChunkGradients
from isonomy.company.gradient.pf_ld.f_ld import FLD
from isonomy.company.gradient.pf_ld.pf_ld import PFLD, SmallGroupWarning
from isonomy.company.gradient.run.strategy import Run
from isonomy.company.gradient.sums.primal import CentredGradients
from isonomy.company.gradient.training.checks import prepare_run

EXACT = 4000.0  # an ε at which next to no noise is left


def _run(home: Federation, data: Any, strategy: Any, oracle: Any = None, **settings: Any) -> Run:
    """A prepared run, without any training."""
    own = trainer(linear(), strategy, oracle or home.local(), **settings)
    generator = torch.Generator().manual_seed(0)
    run = prepare_run(own, data.x, data.y, own.oracle.cohort.ids, generator)
    strategy.prepare(run)
    return run


def _listen(oracle: Any) -> list[Prepared]:
    """All that the oracle is asked from now on."""
    seen: list[Prepared] = []
    channel: Any = oracle.channel
    exchange = channel.exchange

    def tapped(prepared: Prepared) -> Any:
        seen.append(prepared)
        return exchange(prepared)

    channel.exchange = tapped
    return seen


def _penalty_gradient(run: Run, lam: np.ndarray, group: np.ndarray, notion: str) -> list[Tensor]:
    """∇ Σ_e Σ_a λ_ae (μ_e(D_P) − μ_e(D_G_a)) by back-propagation, with the true groups."""
    chances = torch.softmax(run.outputs(torch.arange(len(run.target))), dim=1)
    everyone = torch.ones(len(run.target), dtype=torch.bool)
    events = {
        "demographic_parity": [(everyone, chances[:, 1])],
        "equalized_odds": [(run.target == y, chances[:, 1]) for y in (0, 1)],
        "accuracy_parity": [(everyone, 1 - chances.gather(1, run.target[:, None])[:, 0])],
    }[notion]
    total = torch.zeros(())
    for e, (who, h) in enumerate(events):
        for a in range(len(lam)):
            own = who & torch.from_numpy(group == a)
            total = total + float(lam[a, e]) * (h[who].mean() - h[own].mean())
    return list(torch.autograd.grad(total, list(run.model.parameters())))


@pytest.mark.parametrize("notion", ["demographic_parity", "equalized_odds", "accuracy_parity"])
@pytest.mark.parametrize(("groups", "shape"), [(2, None), (2, 0.1), (3, 0.1)])
def test_the_primal_answer_is_the_gradient_of_the_penalty(
    tmp_path: Path, notion: str, groups: int, shape: float | None
) -> None:
    data = toy(groups=groups)
    home = regulator(tmp_path, data.group, epsilon=EXACT)
    strategy = PFLD(notion, clip_quantile=1.0, noise_shape=shape)
    run = _run(home, data, strategy)
    found = strategy.constraint_gradient(run, run.chunks[0])
    assert strategy._lam is not None
    assert found is not None
    wanted = _penalty_gradient(run, np.array(strategy._lam.values()), data.group, notion)
    size = float(torch.cat([w.flatten() for w in wanted]).norm())
    assert size > 1e-3
    for a, b in zip(found, wanted, strict=True):
        assert float((a - b).norm()) < 0.03 * size


def test_chunks_of_a_big_model_add_up_to_the_same_gradient(tmp_path: Path) -> None:
    """Fewer people than parameters: coordinates of the chunk's span instead of columns."""
    data = toy(240)
    home = regulator(tmp_path, data.group, epsilon=EXACT)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 40), nn.Tanh(), nn.Linear(40, 1))
    strategy = PFLD(clip_quantile=1.0)
    own = trainer(model, strategy, home.local(), chunk_size=60)
    run = prepare_run(own, data.x, data.y, None, torch.Generator().manual_seed(0))
    strategy.prepare(run)
    assert len(run.chunks) == 4
    answers = [strategy.constraint_gradient(run, chunk) for chunk in run.chunks]
    mean = [torch.stack(parts).mean(dim=0) for parts in zip(*answers, strict=True)]  # type: ignore[arg-type]
    assert strategy._lam is not None
    values = np.array(strategy._lam.values())
    wanted = _penalty_gradient(run, values, data.group, "demographic_parity")
    size = float(torch.cat([w.flatten() for w in wanted]).norm())
    # chunks centre on their own means, so they agree up to sampling of groups
    error = torch.cat([(a - b).flatten() for a, b in zip(mean, wanted, strict=True)]).norm()
    assert float(error) < 0.25 * size


def test_centring_in_the_gram_matrix_is_centring_of_the_rows() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 30), nn.Tanh(), nn.Linear(30, 1)).double()
    inputs = torch.randn(12, 3, dtype=torch.float64)
    mass = torch.rand(12, dtype=torch.float64) + 0.1

    def scalar(outputs: Tensor) -> Tensor:
        return torch.sigmoid(outputs[:, 0]) * mass

    inner = ChunkGradients.of(model, scalar, inputs, np.arange(12))
    rows = inner.rows()
    wanted = rows - mass[:, None] * (rows.sum(dim=0) / mass.sum())
    found = CentredGradients(inner, mass)
    np.testing.assert_allclose(found.gram, wanted @ wanted.T, atol=1e-12)
    np.testing.assert_allclose(found.lengths, wanted.norm(dim=1), atol=1e-9)
    weights = torch.randn(12, dtype=torch.float64)
    combined = torch.cat([part.flatten() for part in found.combine(weights.numpy())])
    assert torch.allclose(combined, wanted.T @ weights, atol=1e-10)


def test_without_noise_to_speak_of_pf_ld_trains_as_f_ld_does(tmp_path: Path) -> None:
    data = toy(600)
    home = regulator(tmp_path, data.group, epsilon=EXACT)
    private, open_ = linear(), linear()
    settings = {"rounds": 8, "warmup_steps": 60}
    one = trainer(private, PFLD(clip_quantile=1.0), home.local(), **settings).fit(data.x, data.y)
    two = trainer(open_, FLD(step=1.0), home.local(), **settings).fit(data.x, data.y)
    assert one.history[-1].violation == pytest.approx(two.history[-1].violation, abs=0.02)
    for a, b in zip(parameters(private), parameters(open_), strict=True):
        assert np.abs(a - b).max() < 0.1 * np.abs(b).max()


@pytest.mark.parametrize("notion", ["demographic_parity", "equalized_odds"])
@pytest.mark.parametrize("groups", [2, 3])
def test_the_released_violation_falls(tmp_path: Path, notion: str, groups: int) -> None:
    data = toy(900, groups=groups)
    home = regulator(tmp_path, data.group, epsilon=300.0)
    own = trainer(linear(), PFLD(notion, damping=4.0), home.local(), rounds=16, local_steps=8)
    own.optimiser, own.warmup_steps = (lambda p: torch.optim.Adam(p, lr=0.03)), 100
    history = own.fit(data.x, data.y).history
    assert min(r.violation for r in history.records[-4:]) < 0.6 * history[0].violation


# --- The traps ---------------------------------------------------------------------------------


def test_the_bound_of_theorem_4_chooses_the_clipping_norm(tmp_path: Path) -> None:
    """More noise, smaller C: at a large budget nothing is clipped, at a small one much is."""
    data, norms = toy(), []
    for epsilon in (0.7, 300.0):
        home = regulator(tmp_path, data.group, epsilon=epsilon, name=str(epsilon))
        oracle, strategy = home.local(), PFLD(primal_norm="bound")
        run = _run(home, data, strategy, oracle)
        seen = _listen(oracle)
        strategy.constraint_gradient(run, run.chunks[0])
        norms.append(seen[0].query.norm)
    assert norms[0] < 0.9 * norms[1]


def test_trap_one_budget_for_primal_and_dual(tmp_path: Path) -> None:
    """All queries of a full run come to nine tenths of the cap: a tenth is for audits."""
    data = toy()
    home = regulator(tmp_path, data.group, epsilon=2.0)
    oracle = home.local()
    result = trainer(linear(), PFLD("equalized_odds"), oracle, rounds=6).fit(data.x, data.y)
    assert result.stopped == "rounds"
    budget = oracle.budget
    assert 0.9999 * 0.9 * budget.cap_units < budget.spent_units <= 0.9 * budget.cap_units


def test_trap_noise_scales_with_lambda(tmp_path: Path) -> None:
    """Twice the multipliers, twice the noise in the gradient: the price stays the same."""
    data = toy()
    home = regulator(tmp_path, data.group, epsilon=2.0)
    oracle, strategy = home.local(), PFLD(damping=0.0)
    run = _run(home, data, strategy, oracle)
    seen, released = _listen(oracle), []
    inner = oracle.weighted_sum
    oracle.weighted_sum = lambda *a, **k: released.append(inner(*a, **k)) or released[-1]  # type: ignore[method-assign]
    keeper = home.custodian.dual
    for factor in (1, 2):
        assert strategy._lam is not None
        strategy._lam = keeper._multipliers = _scaled(strategy._lam, factor)  # on both sides
        strategy.constraint_gradient(run, run.chunks[0])
    small, large = (float(r.deviation[0]) for r in released)
    assert large == pytest.approx(2 * small, rel=1e-6)
    assert seen[0].query.noise == seen[1].query.noise  # in units of the sensitivity


def test_trap_a_given_sigma_scales_with_lambda(tmp_path: Path) -> None:
    """σ_p is noise per sensitivity: every gradient costs 1/σ_p², whatever λ has grown to."""
    data = toy()
    oracle = regulator(tmp_path, data.group, epsilon=9.0).local()
    seen = _listen(oracle)
    strategy = PFLD(primal_multiplier=12.0, dual_multiplier=30.0)
    result = trainer(linear(), strategy, oracle, rounds=5).fit(data.x, data.y)
    grown = [float(np.abs(record.multipliers).max()) for record in result.history]
    assert grown[-1] > 1.5 * grown[0]  # else this test shows nothing
    primal = {a.query.noise for a in seen if a.query.shape == "weighted"}
    dual = {a.query.noise for a in seen if a.query.purpose.endswith("dual step")}
    bound = oracle.params.row_bound
    assert {round(noise / bound, 4) for noise in primal} == {12.0}
    assert {round(noise / bound, 4) for noise in dual} == {30.0}


@pytest.mark.parametrize("notion", ["demographic_parity", "equalized_odds"])
def test_trap_several_classes_are_several_draws(tmp_path: Path, notion: str) -> None:
    """Four classes: three gradients about everybody in each round, all within one budget."""
    data = toy(600, classes=4)
    home = regulator(tmp_path, data.group, epsilon=30.0)
    oracle = home.local()
    seen = _listen(oracle)
    strategy = PFLD(notion, small_groups="drop")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallGroupWarning)
        result = trainer(linear(outputs=4), strategy, oracle, rounds=3).fit(data.x, data.y)
    assert result.stopped == "rounds"  # planned for, so that nothing runs out
    times = np.zeros(len(data.y), dtype=int)
    for query in (a.query for a in seen if a.query.shape == "weighted"):
        times[query.position_array(len(data.y))] += 1
    assert set(times) == {9}
    budget = oracle.budget
    assert 0.9999 * 0.9 * budget.cap_units < budget.spent_units <= 0.9 * budget.cap_units


def _scaled(lam: Multipliers, factor: int) -> Multipliers:
    from dataclasses import replace

    return replace(lam, lam=tuple(tuple(factor * v for v in row) for row in lam.lam))


def test_trap_noise_never_falls_below_what_the_current_weights_need(tmp_path: Path) -> None:
    """σ·Δ with Δ = range(u)·C: replacing one attribute moves the sum by no more than Δ."""
    data = toy(60)
    home = regulator(tmp_path, data.group, epsilon=20.0)
    oracle, strategy = home.local(), PFLD(primal_multiplier=3.0)
    run = _run(home, data, strategy, oracle)
    seen = _listen(oracle)
    strategy.constraint_gradient(run, run.chunks[0])
    (asked,) = seen
    differences = asked.rows[0].astype(np.int64)  # what one person's change adds or takes
    bound = oracle.params.row_bound
    assert np.einsum("ij,ij->i", differences, differences).max() <= bound * bound
    assert asked.query.noise >= 3.0 * bound * (1 - 1e-9)


def test_trap_group_sizes_come_from_the_release(tmp_path: Path) -> None:
    """Weights follow the noised counts; with true counts they would be these exact numbers."""
    data = toy()
    home = regulator(tmp_path, data.group, epsilon=0.5)
    strategy = PFLD()
    run = _run(home, data, strategy)
    assert strategy._lam is not None
    released = np.array(strategy._lam.counts)[:, 0] / run.oracle.params.row_bound
    true = np.bincount(data.group)
    assert np.abs(released - true).min() > 0.01
    lam = np.array(strategy._lam.values())[:, 0]
    wanted = lam.sum() / len(data.y) - lam / released
    assert np.allclose(strategy._lam.weights(0, 0), wanted, rtol=1e-9)


def test_trap_the_sign_is_the_released_one(tmp_path: Path) -> None:
    """λ ≥ 0 as printed: the weights' sign is that of the noised answer, turned by noise or not."""
    data = toy(400, seed=1)
    chance = np.random.default_rng(2).integers(2, size=400)  # groups that mean nothing
    turned = 0
    for seed in range(6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        home = regulator(folder, chance, epsilon=0.5, seed=seed)
        strategy = PFLD(signed=False, damping=0.0)  # damping would bring the sign by itself
        run = _run(home, data, strategy)
        lam = strategy._lam
        assert lam is not None
        released, truth = lam.violation[0][0], _true_violation(run, chance)[0]
        low, high = lam.weights(0, 0)
        assert lam.lam[0][0] > 0  # the multiplier itself carries no sign
        assert np.sign(high - low) == np.sign(released)
        turned += int(np.sign(released) != np.sign(truth))
    assert turned > 0, "the noise never turned a sign: this test shows nothing"


def _true_violation(run: Run, group: np.ndarray) -> list[float]:
    with torch.no_grad():
        hard = (run.outputs(torch.arange(len(run.target))).argmax(dim=1) == 1).double().numpy()
    return [float(hard.mean() - hard[group == a].mean()) for a in range(2)]


def test_trap_chunks_without_a_group_are_asked_about_all_the_same(tmp_path: Path) -> None:
    """What is asked must not depend on the attributes: not how often, not about whom."""
    data = toy(120)
    rare = np.zeros(120, dtype=np.int64)
    rare[:20] = 1
    asked = []
    for number, codes in enumerate((data.group, rare)):
        folder = tmp_path / str(number)
        folder.mkdir()
        home = regulator(folder, codes, epsilon=50.0)
        oracle = home.local()
        seen = _listen(oracle)
        trainer(linear(), PFLD(), oracle, chunk_size=6, rounds=2).fit(data.x, data.y)
        asked.append([(a.query.kind, a.query.columns, a.query.positions) for a in seen])
    assert asked[0] == asked[1]
    assert len(asked[0]) == 1 + 3 + 2 * 20  # counts, dual steps, every chunk of both rounds


def test_trap_a_person_is_asked_about_once_per_round(tmp_path: Path) -> None:
    """Equalized odds: two events, but every person is in one of them, so nobody pays twice."""
    data = toy()
    home = regulator(tmp_path, data.group)
    oracle = home.local()
    seen = _listen(oracle)
    trainer(linear(), PFLD("equalized_odds"), oracle, rounds=3).fit(data.x, data.y)
    primal = [a.query for a in seen if a.query.shape == "weighted"]
    times = np.zeros(len(data.y), dtype=int)
    for query in primal:
        times[query.position_array(len(data.y))] += 1
    assert len(primal) == 6
    assert set(times) == {3}


def test_trap_the_regulator_computes_the_same_lambda(tmp_path: Path) -> None:
    """From the stored answers alone, in integers, to the last bit of every weight."""
    data = toy()
    home = regulator(tmp_path, data.group)
    oracle, strategy = home.local(), PFLD("equalized_odds", step=0.7)
    seen = _listen(oracle)
    trainer(linear(), strategy, oracle, rounds=3).fit(data.x, data.y)
    assert strategy._lam is not None
    totals = [int((data.y == label).sum()) * oracle.params.row_bound for label in (0, 1)]
    theirs: Multipliers | None = None
    checked = 0
    for asked in seen:
        query = asked.query
        if query.shape == "weighted":
            event = int(data.y[query.position_array(len(data.y))[0]])
            assert theirs is not None
            assert theirs.weights(0, event) == query.weights
            checked += 1
            continue
        record = home.ledger.find(query.query_id)
        assert record is not None
        answer = np.frombuffer(record.answer, "<i8").reshape(1, -1).tolist()
        if theirs is None:
            theirs = Multipliers.start(strategy._lam.rule, answer, totals, oracle.params.row_bound)
        else:
            theirs = theirs.advance(answer, query.norm)
    assert theirs == strategy._lam
    assert checked == 6


def test_the_encrypted_oracle_gives_the_same_model(tmp_path: Path) -> None:
    """Bit for bit, with the same noise; a small network, chunks, both ways of asking."""
    data = toy(96)
    models = []
    for name, encrypted in (("local", False), ("encrypted", True)):
        home = regulator(tmp_path, data.group, epsilon=20.0, seed=5, name=name)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1))
        oracle = home.company() if encrypted else home.local()
        own = trainer(model, PFLD(), oracle, rounds=2, chunk_size=48)
        own.fit(data.x, data.y, ids=oracle.cohort.ids)
        models.append(model)
    assert same(*models)
    untouched = regulator(tmp_path, data.group, epsilon=20.0, seed=6, name="other noise")
    torch.manual_seed(0)
    other = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1))
    trainer(other, PFLD(), untouched.local(), rounds=2, chunk_size=48).fit(data.x, data.y)
    assert not same(models[0], other)


@pytest.mark.parametrize("carrier", ["local", "company"])
@pytest.mark.parametrize("signed", [True, False])
def test_the_regulators_keeper_follows_the_companys_lambda(
    tmp_path: Path, signed: bool, carrier: str
) -> None:
    """In a rehearsal as through encryption: queries declare the rule, both sides have one λ."""
    data = toy(400)
    home = regulator(tmp_path, data.group, epsilon=40.0)
    strategy = PFLD("equalized_odds", signed=signed)
    oracle = getattr(home, carrier)()
    trainer(linear(), strategy, oracle, rounds=3).fit(data.x, data.y, ids=oracle.cohort.ids)
    assert strategy._lam is not None
    assert home.custodian.dual._multipliers == strategy._lam


def test_weights_that_do_not_follow_from_lambda_are_refused(tmp_path: Path) -> None:
    data = toy(100)
    home = regulator(tmp_path, data.group, epsilon=40.0)
    oracle, strategy = home.company(), PFLD()
    run = _run(home, data, strategy, oracle)
    assert strategy._lam is not None
    strategy._lam = _scaled(strategy._lam, 2)  # a company that wants more than λ gives it
    spent = oracle.budget.spent_units
    with pytest.raises(ProtocolError, match="weights are not those"):
        strategy.constraint_gradient(run, run.chunks[0])
    assert oracle.budget.spent_units == spent


def test_people_in_several_events_are_counted_whole(tmp_path: Path) -> None:
    """Three classes: everybody is in two events, a row of counts is √2 long and must not be cut."""
    data = toy(600, classes=3)
    strategy = PFLD()
    home = regulator(tmp_path, data.group, epsilon=50.0)
    trainer(linear(outputs=3), strategy, home.local(), rounds=1).fit(data.x, data.y)
    assert strategy._lam is not None
    counts = np.array(strategy._lam.counts) / strategy._lam.row_bound
    truth = np.bincount(data.group)
    assert np.abs(counts - truth[:, None]).max() < 12  # cut to length 1 they were off by 80
