"""Whole records: how far one record moves a release, and the noise that covers it."""

from __future__ import annotations

import copy
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fermi_kit import silent
from gradient_kit import Toy, linear, regulator, toy, trainer
from numpy.typing import NDArray
from record_kit import (
    CASES,
    FAST,
    PLAN,
    Tape,
    case_data,
    home_of,
    loss_run,
    train_case,
)
from scipy.stats import norm
from torch import nn

from isonomy.common.sums.oracle import GroupOracle, RepeatedPeopleWarning
from isonomy.company.gradient.pf_ld.pf_ld import PFLD
from isonomy.company.gradient.record import privacy as record_privacy
from isonomy.company.gradient.record import releases as record_releases
from isonomy.company.gradient.record.privacy import RecordPrivacy, RecordRun
from isonomy.company.gradient.record.releases import (
    Expanded,
    blocks_of_people,
    centred_sum,
    poisson,
    private_total,
)
from isonomy.company.gradient.run.strategy import Run


class Scales:
    """Each release with the noise that was meant for it, as pairs (values, deviation)."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.log: list[tuple[str, float, list[tuple[NDArray[np.float64], float]]]] = []
        pending: list[tuple[NDArray[np.float64], float]] = []
        asked: list[float] = []
        total, weighted = record_privacy.private_total, GroupOracle.weighted_sum
        opened, released = GroupOracle.open_sum, RecordRun.released

        def private_total(rows: Any, columns: int, bound: float, z: float, noise: Any) -> Any:
            pending.append((total(rows, columns, bound, z, noise), z * bound))
            return pending[-1][0]

        def weighted_sum(oracle: Any, *args: Any, **options: Any) -> Any:
            found = weighted(oracle, *args, **options)
            asked.append(float(found.deviation[0]))
            return found

        def open_sum(oracle: Any, *args: Any, **options: Any) -> Any:
            found = opened(oracle, *args, **options)
            lasts = np.cumsum([len(oracle.labels(own)) for own in np.ravel(options["attribute"])])
            pending.append((np.delete(found.values, lasts - 1, 0), float(found.deviation[0])))
            return found

        def centred(*args: Any, **options: Any) -> Any:
            asked.clear()
            values = centred_sum(*args, **options)
            if asked:
                pending.append((values, asked[0]))
            return values

        def release(run: RecordRun, name: str, values: Any) -> Any:
            self.log.append((name, run.parts[name].multiplier, list(pending)))
            pending.clear()
            return released(run, name, values)

        patch.setattr(record_privacy, "private_total", private_total)
        patch.setattr(GroupOracle, "weighted_sum", weighted_sum)
        patch.setattr(GroupOracle, "open_sum", open_sum)
        patch.setattr(record_privacy, "centred_sum", centred)
        patch.setattr(RecordRun, "released", release)


@pytest.mark.parametrize("name", CASES)
def test_one_record_moves_a_release_by_its_bound(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the same state, blanking a record moves a release by at most 1/z times the noise in it, z
    being what the accountant was told; a record with long gradients comes close to that."""
    monkeypatch.setattr(
        record_releases, "rounded_gaussian", lambda sigma, size, source: np.zeros(size, np.int64)
    )
    prepared, data = Run.__post_init__, _loud_record(name)
    first, logs = Tape(), []
    for number in range(2):
        folder = tmp_path / f"home{number}"
        folder.mkdir()
        home = silent(home_of(folder, name, data))

        def prepare(run: Run, blank: bool = bool(number)) -> None:
            prepared(run)
            if blank:
                run.weight[LOUD] = 0.0

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Run, "__post_init__", prepare)
            logs.append(Scales(patch).log)
            tape = Tape(first.seen) if number else first
            train_case(tmp_path / str(number), name, data, tape, home)
    most: dict[str, float] = {}
    for (kind, z, here), (other, _, there) in zip(*logs, strict=True):
        assert kind == other
        squares = [
            (np.linalg.norm(a - b) / deviation) ** 2
            for (a, deviation), (b, _) in zip(here, there, strict=True)
        ]
        most[kind] = max(most.get(kind, 0.0), math.sqrt(sum(squares)) * z)
    assert set(most) == {"counts", "totals", "dual", "primal", "loss"}
    assert max(most.values()) <= 1 + 1e-5  # σ is rounded to integers
    assert min(most["loss"], most["counts"]) > 0.99  # as bad as it can be, and no worse
    assert most["primal"] > 0.2


LOUD = 7


def _loud_record(name: str) -> Toy:
    """Unequal groups, and one person in the smallest with gradients far above every bound."""
    _, data, model, _ = case_data(name)
    group = np.where(np.arange(len(data.y)) % 2 == 0, data.group, data.group.max())
    group[LOUD] = 0
    weight = next(model.parameters()).detach().numpy()  # (classes, 4)
    flat = np.linalg.svd(weight)[2][-1] * 12.0  # the logits hardly see it, their gradients do
    data.x[LOUD] = flat
    return Toy(data.x, data.y, group)


def test_private_total_is_a_clipped_sum_with_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(1).normal(size=(50, 6))
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    exact = (rows * np.minimum(1, 1.5 / lengths)).sum(axis=0)
    draws = np.stack(
        [
            private_total([rows[:20], rows[20:]], 6, 1.5, 2.0, Expanded(b"seed", "x", turn))
            for turn in range(300)
        ]
    )
    assert draws.mean(axis=0) == pytest.approx(exact, abs=5 * 3.0 / math.sqrt(300))
    assert draws.std(axis=0).mean() == pytest.approx(3.0, rel=0.1)
    monkeypatch.setattr(
        record_releases, "rounded_gaussian", lambda sigma, size, source: np.zeros(size, np.int64)
    )
    noise = Expanded(b"seed", "x", 0)
    assert private_total([rows], 6, 1.5, 2.0, noise) == pytest.approx(exact, abs=1e-4)
    without = private_total([rows[1:]], 6, 1.5, 2.0, noise)
    moved = np.linalg.norm(private_total([rows], 6, 1.5, 2.0, noise) - without)
    assert moved == pytest.approx(min(1.5, lengths[0, 0]), abs=1e-4)


@pytest.mark.parametrize("row", [[np.nan, 2.0, 0.0], [np.nan, 1e30, 5.0], [np.inf, 5.0, 5.0]])
def test_a_row_without_a_norm_counts_as_nothing(
    monkeypatch: pytest.MonkeyPatch, row: list[float]
) -> None:
    """Beside NaN, nothing would be clipped: the first row would move the sum by 1,192 bounds."""
    monkeypatch.setattr(
        record_releases, "rounded_gaussian", lambda sigma, size, source: np.zeros(size, np.int64)
    )
    rows, noise = np.array([row, [0.5, 0.25, 0.0]]), Expanded(b"seed", "x", 0)
    assert private_total([rows], 3, 1.0, 1.0, noise).tolist() == [0.5, 0.25, 0.0]


@pytest.mark.parametrize("clip", [0.5, 2.0])
def test_the_noise_of_a_loss_step_is_there_and_grows_with_the_clip(
    tmp_path: Path, clip: float
) -> None:
    data = toy(300)
    run = loss_run(
        tmp_path, data, record_privacy=RecordPrivacy(epsilon=3.0, clip=clip), warmup_steps=400
    )
    record = run.record
    assert record is not None
    loss = nn.functional.cross_entropy
    drawn = np.array(
        [
            torch.cat([g.flatten() for g in record.loss_gradient(run, loss, None)]).tolist()
            for _ in range(400)
        ]
    )
    expected = record.parts["loss"].multiplier * clip / 300
    assert drawn.std(axis=0) == pytest.approx(np.full(5, expected), rel=0.2)
    lag = [np.corrcoef(drawn[:-1, c], drawn[1:, c])[0, 1] for c in range(5)]
    assert max(map(abs, lag)) < 0.25  # every step has noise of its own


def test_a_membership_attack_learns_no_more_than_epsilon(tmp_path: Path) -> None:
    """The best attack on the loss step, empirically: blank a record with the largest gradient, look
    along its direction. The rates of error allowed by ε are not undercut."""
    data = toy(60)
    data.x[0] = [50.0, 0.0, 0.0, 0.0]
    run = loss_run(tmp_path, data, warmup_steps=800, record_privacy=RecordPrivacy(epsilon=2.0))
    record = run.record
    assert record is not None
    loss = nn.functional.cross_entropy
    z = record.parts["loss"].multiplier
    with_record = _along(run, record, loss, 400)
    run.weight[0] = 0.0  # blanked
    without = _along(run, record, loss, 400)
    gap = abs(with_record.mean() - without.mean()) * 60
    assert gap == pytest.approx(1.0, abs=6 * z * math.sqrt(2 / 400))  # C = 1, at most
    # one step is 1/z-GDP: no threshold tells the two apart better
    cut = (with_record.mean() + without.mean()) / 2
    right = max(
        np.mean(with_record > cut) + np.mean(without <= cut),
        np.mean(with_record <= cut) + np.mean(without > cut),
    )
    assert right / 2 <= norm.cdf(0.5 / z) + 4 * math.sqrt(0.25 / 800)


def _along(run: Run, record: RecordRun, loss: Any, times: int) -> NDArray[np.float64]:
    """The component of the released gradient along the first weight."""
    return np.array([float(record.loss_gradient(run, loss, None)[0][0, 0]) for _ in range(times)])


@pytest.mark.filterwarnings("ignore:Full backward hook")  # Opacus' own, about its hooks
def test_agrees_with_opacus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The loss step without noise is the clipped mean that Opacus' DP-SGD makes."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    data = toy(200)
    run = loss_run(tmp_path, data, record_privacy=RecordPrivacy(epsilon=3.0, clip=0.5))
    monkeypatch.setattr(
        record_releases, "rounded_gaussian", lambda sigma, size, source: np.zeros(size, np.int64)
    )
    assert run.record is not None
    mine = run.record.loss_gradient(run, nn.functional.cross_entropy, None)
    wrapped = GradSampleModule(copy.deepcopy(run.model), loss_reduction="sum")
    optimiser = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=1.0),
        noise_multiplier=0.0,
        max_grad_norm=0.5,
        expected_batch_size=200,
        loss_reduction="sum",
    )
    wrapped.train()
    logit = wrapped(run.inputs)[:, 0]
    nn.functional.binary_cross_entropy_with_logits(
        logit, run.target.float(), reduction="sum"
    ).backward()
    optimiser.clip_and_accumulate()
    for ours, parameter in zip(mine, wrapped.parameters(), strict=True):
        assert torch.allclose(ours * 200, parameter.summed_grad, atol=1e-3)


def test_a_loss_of_ones_own_is_taken_row_by_row(tmp_path: Path) -> None:
    run = loss_run(tmp_path, toy(50))
    logits = torch.randn(50, 2)
    each = record_releases._per_row(
        lambda z, y: nn.functional.cross_entropy(z, y, label_smoothing=0.1), logits, run.target
    )
    told = nn.functional.cross_entropy(logits, run.target, label_smoothing=0.1, reduction="none")
    assert torch.allclose(each, told, atol=1e-6)


def test_half_a_range_is_enough_for_a_record(tmp_path: Path) -> None:
    """Blanking a person of any group changes the centred sum by at most range(u)/2·C, exactly on
    the oracle's grid; the oracle's own answer would change by max |u|·C."""
    rng = np.random.default_rng(0)
    data = toy(30, groups=3)
    for turn in range(10):
        (tmp_path / str(turn)).mkdir()
        oracle = silent(regulator(tmp_path / str(turn), data.group)).local()
        u = (rng.normal(size=3) + 5).tolist()
        rows = rng.normal(size=(30, 5))
        asked = {"attribute": "sex", "people": np.arange(30), "share": 0.1, "purpose": "x"}
        nobody = Expanded(b"s", "x", 0)
        whole = centred_sum(oracle, rows, u, norm=0.7, sigma=1.0, nobody=nobody, **asked)
        rows[turn] = 0.0
        less = centred_sum(oracle, rows, u, norm=0.7, sigma=1.0, nobody=nobody, **asked)
        half = np.ptp(u) / 2 * 0.7
        moved = np.linalg.norm(whole - less)
        assert moved <= half
        assert half < 0.7 * 5 - 0.7 < max(u) * 0.7  # far less than with ū left in
        steps = whole / (np.ptp(u) * 0.7 / 2**20)
        assert np.abs(steps - np.rint(steps)).max() < 1e-6


def test_nobody_gives_noise_alone(tmp_path: Path) -> None:
    oracle = regulator(tmp_path, toy(30).group).local()
    drawn = centred_sum(
        oracle, np.zeros((0, 4000)), [1.0, -2.0], norm=0.5, sigma=2.0,
        nobody=Expanded(b"s", "x", 0), purpose="x",
    )  # fmt: skip
    assert drawn.std() == pytest.approx(2.0 * 3.0 * 0.5, rel=0.1)
    assert oracle.budget.spent_units == 0


def test_constraint_noise_fills_all_coordinates(tmp_path: Path) -> None:
    """A sample smaller than the model: noise in the span of its gradients would show the span."""
    data = toy(40)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    home = regulator(tmp_path, data.group, epsilon=PLAN)
    seen: list[int] = []
    oracle = home.local()
    ask = oracle.weighted_sum
    oracle.weighted_sum = lambda rows, *a, **k: seen.append(np.shape(rows)[1]) or ask(rows, *a, **k)  # type: ignore[method-assign, func-returns-value]
    trainer(model, PFLD(primal_norm=0.5), oracle, **FAST).fit(data.x, data.y)
    assert set(seen) == {sum(p.numel() for p in model.parameters())}


def test_poisson_and_its_seed() -> None:
    drawn = poisson(100_000, 0.2, Expanded(b"s", "draw", 1))
    assert drawn.mean() == pytest.approx(0.2, abs=5 * math.sqrt(0.16 / 1e5))
    assert np.array_equal(drawn, poisson(100_000, 0.2, Expanded(b"s", "draw", 1)))
    for other in (Expanded(b"t", "draw", 1), Expanded(b"s", "draw", 2), Expanded(b"s", "d", 1)):
        again = poisson(100_000, 0.2, other)
        assert np.mean(drawn & again) == pytest.approx(0.04, abs=0.005)
    assert poisson(5, 1.0, Expanded(b"s", "draw", 1)).all()


def test_blocks_keep_people_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_releases, "BLOCK_CELLS", 40)
    person = np.sort(np.random.default_rng(0).integers(9, size=50))
    parts = list(blocks_of_people(torch.arange(50), person, columns=8))
    assert torch.equal(torch.cat(parts), torch.arange(50))
    assert len(parts) > 4
    for left, right in itertools.pairwise(parts):
        assert person[left[-1]] != person[right[0]]
    assert list(blocks_of_people(torch.arange(0), person[:0], columns=8)) == []


@pytest.mark.parametrize("name", ["pf_ld", "pf_ld, odds, classes", "fermi, odds, classes"])
def test_without_noise_it_is_the_exact_gradient(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blind part and own terms add up to ∇(loss + Σ_i u_{A_i} h_i), or to FERMI's ∇(loss + λψ)."""
    from isonomy.company.gradient.training.checks import plan_record, prepare_run

    monkeypatch.setattr(
        record_releases, "rounded_gaussian", lambda sigma, size, source: np.zeros(size, np.int64)
    )
    strategy, data, model, _ = case_data(name)
    vars(strategy)["clip" if "fermi" in name else "primal_norm"] = 5.0
    home = silent(regulator(tmp_path, data.group, epsilon=PLAN))
    own = trainer(
        model, strategy, home.local(),
        **{**FAST, "record_privacy": RecordPrivacy(epsilon=20.0, clip=50.0)},
    )  # fmt: skip
    run = prepare_run(own, data.x, data.y, None, torch.Generator())
    plan_record(run, strategy)
    record = run.record
    assert record is not None
    strategy.prepare(run)
    blind = strategy.constraint_gradient(run, record.draw_chunk(run, 0))
    mine = record.loss_gradient(run, nn.functional.cross_entropy, strategy.free_terms(run))
    found = torch.cat([(a + b).flatten() for a, b in zip(blind, mine, strict=True)])
    logits = run.outputs(torch.arange(3000))
    total = nn.functional.cross_entropy(logits, run.target)
    group = torch.from_numpy(data.group)
    if "fermi" in name:
        for problem in strategy.problems:
            member = (run.target == problem.label).float()
            u = torch.from_numpy(problem.coupling(problem.w)).float()
            psi = problem.public(logits, problem.w) + (u[group] * problem.moments(logits)).sum(1)
            total = total + strategy.strength * (member * psi).mean()
    else:
        people, lam, _ = strategy._ready(run)
        for number, event in enumerate(people.events):
            weights = torch.tensor(lam.weights(0, number)).float()
            h = event.h(logits, run.target) * event.members(run.target).float()
            total = total + (weights[group] * h).sum()
    exact = torch.cat([g.flatten() for g in torch.autograd.grad(total, list(model.parameters()))])
    plain = nn.functional.cross_entropy(run.outputs(torch.arange(3000)), run.target)
    loss = torch.cat([g.flatten() for g in torch.autograd.grad(plain, list(model.parameters()))])
    assert float((exact - loss).norm()) > 5e-3  # the constraint says something
    assert torch.allclose(found, exact, atol=2e-4)


def test_a_persons_rows_are_clipped_together(tmp_path: Path) -> None:
    """Ten rows of one person move a loss step by one bound, not by ten."""
    data = toy(60)
    whose = np.repeat(np.arange(6), 10)
    home = regulator(tmp_path, data.group[:6], epsilon=PLAN)
    own = trainer(linear(), PFLD(primal_norm=0.5), home.local(), **FAST)
    from isonomy.company.gradient.training.checks import plan_record, prepare_run

    with pytest.warns(RepeatedPeopleWarning):
        run = prepare_run(own, data.x, data.y, [f"person-{p}" for p in whose], torch.Generator())
    plan_record(run, own.strategy)
    assert run.record is not None
    run.inputs[:10] *= 100
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            record_releases,
            "rounded_gaussian",
            lambda sigma, size, source: np.zeros(size, np.int64),
        )
        with_them = run.record.loss_gradient(run, nn.functional.cross_entropy, None)
        run.weight[:10] = 0.0
        without = run.record.loss_gradient(run, nn.functional.cross_entropy, None)
    moved = torch.cat([(a - b).flatten() for a, b in zip(with_them, without, strict=True)]) * 6
    assert float(moved.norm()) == pytest.approx(1.0, rel=0.01)
