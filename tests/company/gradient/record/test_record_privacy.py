"""Whole records: what the model is made of, how far one record moves it, what it all costs."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from federation import Federation, federation, labels
from fermi_kit import silent
from gradient_kit import Toy, linear, regulator, same, toy, trainer
from numpy.typing import NDArray
from scipy.stats import binom, norm
from torch import nn

from isonomy.common.base.errors import BudgetExceeded, ConfigError
from isonomy.common.privacy.accounting import UNITS_PER_MU2
from isonomy.common.privacy.dual import DualKeeper
from isonomy.common.sums.oracle import FilteredOracle, GroupOracle, RepeatedPeopleWarning
from isonomy.company.gradient.fermi.fermi import DpFermi
from isonomy.company.gradient.pf_ld.f_ld import FLD
from isonomy.company.gradient.pf_ld.pf_ld import PFLD
from isonomy.company.gradient.record import privacy as record_privacy
from isonomy.company.gradient.record import releases as record_releases
from isonomy.company.gradient.record.privacy import Part, RecordPrivacy, RecordRun
from isonomy.company.gradient.record.releases import (
    Expanded,
    blocks_of_people,
    centred_sum,
    most_often,
    poisson,
    private_total,
)
from isonomy.company.gradient.run.notions import Event
from isonomy.company.gradient.run.paper_epsilon import GUARANTEE, theorem_3_3
from isonomy.company.gradient.run.strategy import Run

OWN = RecordPrivacy(epsilon=20.0)
PLAN = 10.0
FAST = {"rounds": 2, "local_steps": 2, "warmup_steps": 3, "record_privacy": OWN}
Strategies = Callable[[], Any]


def _scores() -> Any:
    class ScoreParity:
        name = "score_parity"

        def events(self, classes: int) -> tuple[Event, ...]:
            return (Event("score", lambda z, y: z[:, 1] - z[:, 0], bound=8.0),)

    return ScoreParity()


CASES: dict[str, tuple[Strategies, int, int, int | None]] = {  # strategy, classes, groups, chunk
    "pf_ld": (lambda: PFLD(primal_norm=0.5), 2, 2, None),
    "pf_ld, samples": (lambda: PFLD(primal_norm=0.5), 2, 2, 750),
    "pf_ld, odds, classes": (lambda: PFLD("equalized_odds", primal_norm=0.5), 3, 3, 1500),
    "pf_ld, own notion": (lambda: PFLD(_scores(), primal_norm=0.5, step=0.1), 2, 3, None),
    "pf_ld, two attributes": (lambda: PFLD(primal_norm=0.5), 2, 3, None),
    "fermi": (lambda: DpFermi(clip=0.5, strength=2.0), 2, 2, None),
    "fermi, samples": (lambda: DpFermi(clip=0.5, strength=2.0), 2, 3, 1000),
    "fermi, classes": (lambda: DpFermi(clip=0.5, ascent="gradient", strength=0.5), 3, 3, None),
    "fermi, odds, classes": (lambda: DpFermi("equalized_odds", clip=0.5), 3, 2, None),
}


def _data(name: str, people: int = 3000) -> tuple[Any, Toy, nn.Module, int | None]:
    make, classes, groups, chunk = CASES[name]
    model = linear(outputs=1 if classes == 2 else classes)
    return make(), toy(people, classes=classes, groups=groups), model, chunk


class Tape:
    """What passed `RecordRun.released`, and what passes instead."""

    def __init__(self, forced: list[tuple[str, Any]] | None = None) -> None:
        self.seen: list[tuple[str, NDArray[np.float64]]] = []
        self.forced = forced

    def __call__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = RecordRun.released

        def released(run: RecordRun, name: str, values: Any) -> Any:
            own = np.asarray(real(run, name, values), np.float64)
            self.seen.append((name, own.copy()))
            if self.forced is None:
                return own
            told, value = self.forced[len(self.seen) - 1]
            assert told == name
            return value

        monkeypatch.setattr(RecordRun, "released", released)
        # The regulator's λ follows its own answers; a run that is made to hear others cannot agree.
        monkeypatch.setattr(DualKeeper, "check", lambda *query: None)
        monkeypatch.setattr(DualKeeper, "after", lambda *query: None)


def _train(folder: Path, name: str, data: Toy, tape: Tape, home: Federation | None = None) -> Any:
    strategy, _, model, chunk = _data(name)
    folder.mkdir()
    home = home or _home(folder, name, data)
    with pytest.MonkeyPatch.context() as patch:
        tape(patch)
        patch.setattr(record_privacy.os, "urandom", lambda n: b"s" * n)  # the same samples, noise
        own = trainer(
            model, strategy, home.local(), chunk_size=chunk, attribute=_names(name), **FAST
        )
        return own.fit(data.x, data.y)


def _names(name: str) -> list[str]:
    return ["sex", "age"] if "two attributes" in name else ["sex"]


def _home(folder: Path, name: str, data: Toy) -> Federation:
    """The regulator of a case; a second attribute goes by halves of the cohort."""
    groups = {"sex": [f"g{i}" for i in range(int(data.group.max()) + 1)], "age": ["old", "young"]}
    values = {
        "sex": labels(data.group, groups["sex"]),
        "age": ["young", "old"] * (len(data.y) // 2),
    }
    own = _names(name)
    return federation(
        folder, {n: values[n] for n in own}, {n: groups[n] for n in own}, epsilon=PLAN
    )


def _other_record(data: Toy, person: int = 7) -> Toy:
    """One person with another label and far-out features; the attribute is another one, too."""
    x, y, group = data.x.copy(), data.y.copy(), data.group.copy()
    x[person] = [40.0, -30.0, 5.0, 9.0]
    y[person] = (y[person] + 1) % (y.max() + 1)
    group[person] = (group[person] + 1) % (group.max() + 1)
    return Toy(x, y, group)


@pytest.mark.parametrize("name", CASES)
def test_the_model_is_a_function_of_the_releases(tmp_path: Path, name: str) -> None:
    """Made to hear the releases of other data, a run ends with the other data's model.

    Whatever else of the records reached the model (a mean, a quantile, a warm-up step, the span of
    the gradients, a count) would show here.
    """
    data = _data(name)[1]
    first = Tape()
    here = _train(tmp_path / "a", name, data, first)
    again = Tape(first.seen)
    there = _train(tmp_path / "b", name, _other_record(data), again)
    assert same(here.model, there.model)
    for own, other in zip(here.history, there.history, strict=True):
        assert own.violation == other.violation
        assert np.array_equal(own.multipliers, other.multipliers)
        assert math.isnan(own.loss)  # not released, so not told
        assert own.epsilon_spent == other.epsilon_spent
    assert here.epsilons == there.epsilons
    apart = [
        not np.array_equal(a, b) for (_, a), (_, b) in zip(first.seen, again.seen, strict=True)
    ]
    assert any(apart)  # the record was seen: by the releases, and by nothing else


def test_what_was_spent_does_not_tell_who_was_drawn(tmp_path: Path) -> None:
    """The most that somebody spent is the budget of whoever was drawn most, if their label was
    asked about: a figure about one record, without noise."""
    data, results = toy(600, classes=2), []
    first, drawn, made = Tape(), [], RecordRun.of
    for number, y in enumerate((data.y, data.y.copy())):
        (folder := tmp_path / str(number)).mkdir()
        home = regulator(folder, data.group, epsilon=PLAN)
        if number:  # another label for those who were drawn most: the query leaves them out
            y[drawn[0].times == drawn[0].times[y == 1].max()] = 0
        with pytest.MonkeyPatch.context() as patch:
            (Tape(first.seen) if number else first)(patch)
            patch.setattr(RecordRun, "of", lambda *a, **k: drawn.append(made(*a, **k)) or drawn[-1])
            patch.setattr(record_privacy.os, "urandom", lambda n: b"s" * n)
            strategy = PFLD("equal_opportunity", primal_norm=0.5)
            settings = {**FAST, "record_privacy": RecordPrivacy(epsilon=2000.0)}
            own = trainer(linear(), strategy, home.local(), chunk_size=75, **settings)
            results.append((own.fit(data.x, y), own.oracle.budget.spent_units))
    (here, spent), (there, other) = results
    assert spent != other  # the company's own book, which nobody else is shown
    assert here.epsilons == there.epsilons
    assert here.epsilons.spent == here.epsilons.cap
    assert [r.epsilon_spent for r in here.history] == [r.epsilon_spent for r in there.history]


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
        home = silent(_home(folder, name, data))

        def prepare(run: Run, blank: bool = bool(number)) -> None:
            prepared(run)
            if blank:
                run.weight[LOUD] = 0.0

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Run, "__post_init__", prepare)
            logs.append(Scales(patch).log)
            tape = Tape(first.seen) if number else first
            _train(tmp_path / str(number), name, data, tape, home)
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
    _, data, model, _ = _data(name)
    group = np.where(np.arange(len(data.y)) % 2 == 0, data.group, data.group.max())
    group[LOUD] = 0
    weight = next(model.parameters()).detach().numpy()  # (classes, 4)
    flat = np.linalg.svd(weight)[2][-1] * 12.0  # the logits hardly see it, their gradients do
    data.x[LOUD] = flat
    return Toy(data.x, data.y, group)


# --- Mechanisms ----------------------------------------------------------------------------------


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


def _loss_run(folder: Path, data: Toy, **settings: Any) -> Run:
    """A run that only takes loss steps, with its noise solved."""
    from isonomy.company.gradient.training.checks import plan_record, prepare_run

    own = trainer(
        linear(), PFLD(primal_norm=0.5), regulator(folder, data.group, epsilon=1.0).local(),
        **{**FAST, "record_privacy": RecordPrivacy(epsilon=3.0), **settings},
    )  # fmt: skip
    run = prepare_run(own, data.x, data.y, None, torch.Generator())
    plan_record(run, own.strategy)
    return run


@pytest.mark.parametrize("clip", [0.5, 2.0])
def test_the_noise_of_a_loss_step_is_there_and_grows_with_the_clip(
    tmp_path: Path, clip: float
) -> None:
    data = toy(300)
    run = _loss_run(
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
    run = _loss_run(tmp_path, data, warmup_steps=800, record_privacy=RecordPrivacy(epsilon=2.0))
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
    run = _loss_run(tmp_path, data, record_privacy=RecordPrivacy(epsilon=3.0, clip=0.5))
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
    run = _loss_run(tmp_path, toy(50))
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
    strategy, data, model, _ = _data(name)
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


# --- Accounts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_accounting_matches_what_was_asked(tmp_path: Path, name: str) -> None:
    """ε again, from the oracle's own log and by dp-accounting: no step is left out."""
    strategy, data, model, chunk = _data(name)
    home = _home(tmp_path, name, data)
    oracle = home.local()
    own = trainer(model, strategy, oracle, chunk_size=chunk, attribute=_names(name), **FAST)
    result = own.fit(data.x, data.y)
    papers, budget = result.epsilons.as_in_papers, oracle.budget
    assert papers.is_guarantee
    assert papers.label == GUARANTEE
    assert papers.epsilon <= OWN.epsilon
    assert 0 < budget.spent_units <= budget.cap_units
    assert result.history[-1].extra["epsilon_records"] == pytest.approx(papers.epsilon, rel=1e-6)

    moves = 1.0 if data.group.max() == 1 else 2.0
    if "two attributes" in name:
        moves = (2 + 1) / 2  # three groups and two; a record is in one of each
    chunks = 1 if chunk is None else -(-len(data.y) // chunk)
    stages = {  # a mean: columns of a step share it anew each time
        purpose: sum(units * n for (units, _), n in stage.queries.items())
        / stage.queries.total()
        / UNITS_PER_MU2
        for purpose, stage in oracle.log.stages.items()
    }
    counts = sum(mu2 for p, mu2 in stages.items() if "counts" in p or "people per group" in p)
    dual = _worst_label(stages, ("fermi W", "pf_ld: dual"))
    primal = _worst_label(stages, ("fermi θ", "pf_ld: gradient"))
    if "pf_ld, odds" in name:
        primal *= data.y.max()  # events of one label are asked about one by one
    if "two attributes" in name:
        primal *= 2
    gaussian, sampled = dp_accounting.GaussianDpEvent, dp_accounting.PoissonSampledDpEvent
    orders = [1 + x / 10 for x in range(1, 100)] + list(range(11, 64)) + [80, 128, 256, 512]
    accountant = RdpAccountant(orders)
    accountant.compose(gaussian((counts / moves) ** -0.5))
    accountant.compose(gaussian((dual / moves) ** -0.5), 3)
    accountant.compose(sampled(1 / chunks, gaussian((primal / 4) ** -0.5)), 2 * chunks)
    parts = _parts_of(own, data)
    accountant.compose(gaussian(parts["totals"].multiplier), parts["totals"].times)
    steps = 3 + 2 * 2 * chunks
    accountant.compose(sampled(1 / chunks, gaussian(parts["loss"].multiplier)), steps)
    told = {"counts": counts / moves, "dual": dual / moves, "primal": primal / 4}
    for kind, mu2 in told.items():
        assert parts[kind].multiplier == pytest.approx(mu2**-0.5, rel=1e-3)
    assert parts["totals"].times == (4 if "odds" in name else 3)
    assert papers.epsilon == pytest.approx(accountant.get_epsilon(OWN.delta * 0.999), rel=0.02)


def _worst_label(stages: dict[str, float], begins: tuple[str, ...]) -> float:
    """Columns of one label add up; people have one label."""
    by_label: dict[str, float] = {}
    for purpose, mu2 in stages.items():
        if purpose.startswith(begins):
            label = purpose.split(", column")[0]
            by_label[label] = by_label.get(label, 0.0) + mu2
    return max(by_label.values())


def _parts_of(own: Any, data: Toy) -> dict[str, Part]:
    """The plan of the same run, made again on a fresh oracle of the same cap."""
    from isonomy.company.gradient.training.checks import plan_record, prepare_run

    own.oracle.accounts.restore(0 * own.oracle.accounts.state())
    run = prepare_run(own, data.x, data.y, None, torch.Generator().manual_seed(0))
    plan_record(run, own.strategy)
    assert run.record is not None
    return run.record.parts


def test_prv_is_at_most_rdp_and_agrees_with_pld() -> None:
    run = RecordRun(RecordPrivacy(epsilon=3.0), np.arange(10), np.arange(10), 0.1, 100, 0.05, 200)
    run.plan({"dual": Part(12.0, 16), "primal": Part(6.0, 100, 0.1)}, 16)
    rdp = run.epsilon().epsilon
    prv = copy.copy(run)
    prv.settings = RecordPrivacy(epsilon=3.0, accountant="prv")
    accountant = PLDAccountant()
    for part in run.parts.values():
        event = dp_accounting.GaussianDpEvent(part.multiplier)
        if part.rate < 1:
            event = dp_accounting.PoissonSampledDpEvent(part.rate, event)
        accountant.compose(event, part.times)
    told = accountant.get_epsilon(run.settings.delta * 0.999)
    assert prv.epsilon().epsilon == pytest.approx(told, abs=0.02)
    assert told <= rdp <= 3.0
    assert rdp > 2.7  # and the budget is used


def test_nothing_is_released_unplanned(tmp_path: Path) -> None:
    run = _loss_run(tmp_path, toy(60), warmup_steps=0, rounds=1, local_steps=2)
    assert run.record is not None
    for _ in range(2):
        run.record.loss_gradient(run, nn.functional.cross_entropy, None)
    with pytest.raises(BudgetExceeded, match="planned no further"):
        run.record.loss_gradient(run, nn.functional.cross_entropy, None)
    with pytest.raises(KeyError):
        run.record.released("something else", np.zeros(1))


def test_nobody_takes_part_too_often(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Were somebody drawn every time, they would be left out after M steps: the cap holds."""
    monkeypatch.setattr(
        record_privacy, "poisson", lambda people, rate, source: np.ones(people, np.bool_)
    )
    data = toy(200)
    home = regulator(tmp_path, data.group, epsilon=PLAN)
    oracle = home.local()
    settings = {**FAST, "local_steps": 1, "rounds": 3}
    trainer(linear(), PFLD(primal_norm=0.5), oracle, chunk_size=10, **settings).fit(data.x, data.y)
    asked = sum(oracle.log.stages["pf_ld: gradient"].queries.values())
    assert asked == most_often(60, 1 / 20, OWN.epsilon, OWN.delta) < 60
    assert oracle.budget.spent_units <= oracle.budget.cap_units


def test_most_often_covers_the_tail() -> None:
    for steps, rate in ((10, 0.1), (300, 0.03), (60, 0.2)):
        for epsilon in (0.5, 8.0):  # (1 + e^ε) of it is taken off δ
            most, tail = most_often(steps, rate, epsilon, 1e-5), 1e-8 / (1 + math.exp(epsilon))
            assert binom.sf(most, steps, rate) <= tail
            assert binom.sf(most - 1, steps, rate) > tail
    assert most_often(15, 1.0, 1.0, 1e-5) == 15


# --- Refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "settings", "text"),
    [
        (PFLD(), {}, "C_p must be a number"),
        (PFLD(primal_norm="bound"), {}, "C_p must be a number"),
        (PFLD(primal_norm=0.5, primal_multiplier=5.0), {}, "noise is solved from the budget"),
        (DpFermi(), {}, "bound on ∇h must be a number"),
        (DpFermi(clip=0.5, w_update="chunk"), {}, 'w_update="round"'),
        (FLD(), {}, "f_ld cannot run under record privacy"),
        (PFLD(primal_norm=0.5), {"record_privacy": 3.0}, "RecordPrivacy"),
    ],
)
def test_what_looks_at_records_is_refused(
    tmp_path: Path, strategy: Any, settings: dict[str, Any], text: str
) -> None:
    data = toy(200)
    oracle = regulator(tmp_path, data.group).local()
    with pytest.raises(ConfigError, match=text):
        trainer(linear(), strategy, oracle, **{**FAST, **settings}).fit(data.x, data.y)
    assert oracle.budget.spent_units == 0


def test_a_filter_and_record_privacy_are_refused(tmp_path: Path) -> None:
    data = toy(200)
    home = regulator(tmp_path, data.group)
    home.individual = True
    oracle = FilteredOracle(home.local())
    with pytest.raises(ConfigError, match="do not go together"):
        trainer(linear(), PFLD(primal_norm=0.5), oracle, **FAST).fit(data.x, data.y)
    assert oracle.budget.spent_units == 0


def test_too_little_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    data = toy(200)
    oracle = regulator(tmp_path, data.group, epsilon=4.0).local()
    little = {**FAST, "record_privacy": RecordPrivacy(epsilon=0.05)}
    with pytest.raises(BudgetExceeded, match="the oracle releases costs records more"):
        trainer(linear(), PFLD(primal_norm=0.5), oracle, **little).fit(data.x, data.y)
    assert oracle.budget.spent_units == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 0.0}, {"epsilon": math.nan}, {"epsilon": True}, {"clip": 0.0},
        {"clip": math.inf}, {"delta": 1.0}, {"totals": 1.0}, {"accountant": "moments"},
    ],
)  # fmt: skip
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RecordPrivacy(**{"epsilon": 1.0, **wrong})


def test_a_plan_that_promises_record_privacy_takes_nothing_else(tmp_path: Path) -> None:
    from sklearn.linear_model import LogisticRegression

    from isonomy.company import FairClassifier, GradientFairClassifier

    data = toy(300)
    home = regulator(tmp_path, data.group, epsilon=PLAN)
    home.records = True
    oracle = home.local()
    with pytest.raises(ConfigError, match="the approved plan promises"):
        trainer(linear(), PFLD(), oracle).fit(data.x, data.y)
    with pytest.raises(ConfigError, match="the approved plan promises"):
        FairClassifier(LogisticRegression(), oracle=oracle).fit(data.x, data.y)
    with pytest.raises(ConfigError, match="the approved plan promises"):
        GradientFairClassifier("logistic", oracle=oracle).fit(data.x, data.y)
    assert oracle.budget.spent_units == 0
    trainer(linear(), PFLD(primal_norm=0.5), oracle, **FAST).fit(data.x, data.y)
    assert oracle.budget.spent_units > 0


# --- Use -----------------------------------------------------------------------------------------


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


def test_a_broken_run_ends_with_the_same_model(tmp_path: Path) -> None:
    """Samples, noise and accounts go on where they were; other data are refused."""
    data = toy(200)
    home = regulator(tmp_path, data.group, epsilon=PLAN)

    def made(**more: Any) -> Any:
        return trainer(
            linear(), PFLD(primal_norm=0.5), home.local(), chunk_size=50,
            **{**FAST, "rounds": 3, "checkpoint": tmp_path / "c", **more},
        )  # fmt: skip

    def stop(own: Any, record: Any) -> None:
        if record.round == 2:
            raise InterruptedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_privacy.os, "urandom", lambda n: b"s" * n)
        whole = made(checkpoint=None).fit(data.x, data.y)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_privacy.os, "urandom", lambda n: b"s" * n)
        with pytest.raises(InterruptedError):
            made(callbacks=[stop]).fit(data.x, data.y)  # stored answers: the same noise
    spent = home.local().budget.spent_units
    result = made().fit(data.x, data.y, resume=tmp_path / "c")
    assert same(whole.model, result.model)
    assert result.epsilons.as_in_papers == whole.epsilons.as_in_papers
    assert spent == 0
    other = data.x.copy()
    other[0] += 1
    with pytest.raises(ConfigError, match="another run: data differ"):
        made().fit(other, data.y, resume=tmp_path / "c")


@pytest.mark.parametrize("name", ["pf_ld, odds, classes", "fermi, odds, classes"])
def test_the_encrypted_oracle_gives_the_same_model(tmp_path: Path, name: str) -> None:
    """Bit for bit; PF-LD's λ is computed by the regulator as well, from noised totals only."""
    made = []
    for encrypted in (False, True):
        folder = tmp_path / str(encrypted)
        folder.mkdir()
        strategy, data, model, _ = _data(name, 1200)
        home = regulator(folder, data.group, epsilon=4 * PLAN)
        oracle = home.company() if encrypted else home.local()
        settings = {**FAST, "rounds": 1, "record_privacy": RecordPrivacy(epsilon=100.0)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(record_privacy.os, "urandom", lambda n: b"s" * n)
            trainer(model, strategy, oracle, **settings).fit(data.x, data.y)
        made.append(model)
    assert same(*made)


def test_records_protected_and_still_fair(tmp_path: Path) -> None:
    """With people enough, noise on everything still lets much of the gap close."""
    data = toy(6000)
    home = regulator(tmp_path, data.group, epsilon=8.0, seed=None)
    result = trainer(
        linear(), PFLD(primal_norm=0.4, step=1.5), home.local(), rounds=10, local_steps=10,
        warmup_steps=50, record_privacy=RecordPrivacy(epsilon=8.0),
        optimiser=lambda p: torch.optim.Adam(p, lr=0.05),
    ).fit(data.x, data.y)  # fmt: skip
    with torch.no_grad():
        chosen = (result.model(torch.from_numpy(data.x))[:, 0] > 0).numpy()
    gap = abs(chosen[data.group == 0].mean() - chosen[data.group == 1].mean())
    base = abs(data.y[data.group == 0].mean() - data.y[data.group == 1].mean())
    assert base > 0.35
    assert gap < 0.6 * base
    assert np.mean(chosen == data.y) > 0.6


def test_theorem_3_3() -> None:
    """Worked out by hand for round numbers."""
    sigma_w, sigma_theta = theorem_3_3(
        epsilon=1.0,
        delta=math.exp(-10),
        steps=100,
        people=1000,
        rho=0.25,
        diameter=2.0,
        lipschitz=0.6,
    )
    assert sigma_w**2 == pytest.approx(16 * 1e-3 / 0.25)
    assert sigma_theta**2 == pytest.approx(16 * 1.44 * 1e-3 / 0.25)
