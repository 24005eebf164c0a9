"""What protects the regulator's samples: rows, accounts, noise, and the trap of second order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from few_shot_kit import SeededBytes, tiny_pool, tiny_settings
from pydantic import ValidationError

from isonomy.common.agreements.few_shot_settings import FewShotSettings
from isonomy.common.base.errors import BudgetExceeded, CapacityError, ConfigError, DataError
from isonomy.common.few_shot.learning._private import (
    BOUND,
    Accounts,
    PlainSums,
    PrivateSums,
    fixed_point,
    saturated,
    sigma_of,
)
from isonomy.common.few_shot.learning._private_round import PrivateRound
from isonomy.common.few_shot.learning.adapt import adapt
from isonomy.common.few_shot.learning.learners import CompanyLearner, RegulatorLearner
from isonomy.common.few_shot.learning.memory import run_in_memory
from isonomy.common.few_shot.learning.models import Network
from isonomy.common.few_shot.learning.tasks import Sampler, Tasks
from isonomy.common.few_shot.rounds.sides import MAX_ABS
from isonomy.common.privacy.accounting import gaussian_units, units_for
from isonomy.common.privacy.noise import rounded_gaussian


class _Spy:
    """Takes the place of the sums: keeps every row that would be clipped and added."""

    def __init__(self, log: list[np.ndarray], count: int, size: int) -> None:
        self._log, self._sums = log, PlainSums(count, size)

    def add(self, number: int, rows: np.ndarray, people: np.ndarray) -> None:
        self._log.append(rows)
        self._sums.add(number, rows, people)

    def release(self) -> np.ndarray:
        return self._sums.release()


def _round(
    settings: FewShotSettings, monkeypatch: pytest.MonkeyPatch
) -> tuple[PrivateRound, Tasks, dict[str, list[np.ndarray]]]:
    pool, network = tiny_pool(), Network.of(settings)
    accounts = Accounts(len(pool), 1, individual=True)
    private = PrivateRound(settings, pool, network, accounts, source=SeededBytes(0))
    logs: dict[str, list[np.ndarray]] = {}
    monkeypatch.setattr(
        private, "_sums", lambda n, size, what, norm=None: _Spy(logs.setdefault(what, []), n, size)
    )
    return private, Sampler(pool, settings).draw(2, SeededBytes(1)), logs


@pytest.mark.parametrize("part", ["head", "all"])
def test_per_sample_gradients_equal_a_slow_loop(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny_settings(method="pf_ld", inner_part=part, inner_steps=1)
    private, tasks, logs = _round(settings, monkeypatch)
    theta = Network.of(settings).initial(0) + 0.1
    private.gradient(
        theta, tasks
    )  # releases the shares, takes one dual step: λ is not 0 afterwards
    assert private.multipliers is not None
    logs.clear()
    multipliers = private.multipliers
    assert np.abs(multipliers.lam).min() > 0
    private.gradient(theta, tasks)

    network, pool = Network.of(settings), tiny_pool()
    assert pool.groups is not None
    assert pool.positive is not None
    cells = 2 * pool.groups.astype(int) + pool.positive[pool.labels]

    def slow(
        flat: torch.Tensor, person: int, place: int, positive: np.ndarray | None = None
    ) -> torch.Tensor:
        """With `positive`: the constraint too."""
        leaf = flat.clone().requires_grad_()
        x = torch.from_numpy(pool.inputs[person : person + 1])
        p = torch.softmax(network.logits(network.unflatten(leaf), x)[0], dim=0)
        loss = -torch.log(p[place])
        if positive is not None:
            u = multipliers.weights(cells[person : person + 1])[0]
            loss = loss + float(u) * p[torch.from_numpy(positive)].sum()
        return torch.autograd.grad(loss, leaf)[0]

    flat = torch.from_numpy(theta)
    head = network.size - (network.feature_size + 1) * settings.ways
    moved, scale = [], 0.4 / (settings.ways * settings.shots)
    for t in range(2):
        rows = torch.stack([slow(flat, p, j // 2) for j, p in enumerate(tasks.support[t])])
        if part == "head":
            rows[:, :head] = 0
        got = logs["inner"][t]
        assert np.allclose(got, rows[:, -got.shape[1] :], atol=1e-5)
        moved.append(flat - scale * rows.sum(0))
    query = np.concatenate(logs["query"])
    expected = [
        slow(moved[t], person, j // 2, tasks.positive[t])
        for t in range(2)
        for j, person in enumerate(tasks.query[t])
    ]
    assert np.allclose(query, torch.stack(expected), atol=1e-4)


def test_norms_noise_and_charges_of_a_sum_are_those_of_the_accountant() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(5, 7)) * np.array([0.01, 0.1, 1, 10, 1e6])[:, None]
    people, noise = np.array([4, 2, 0, 1, 3]), 2_500_000
    accounts = Accounts(6, units_for(8.0, 1e-5), individual=True)
    sums = PrivateSums(1, 7, norm=2.0, noise=noise, accounts=accounts, source=SeededBytes(5))
    sums.add(0, rows, people)
    got = sums.release()[0]
    lengths = np.linalg.norm(rows, axis=1)
    clipped = rows * np.minimum(1, 2.0 / lengths)[:, None]
    whole = np.trunc(clipped / 2.0 * BOUND)
    noised = whole.sum(0) + rounded_gaussian(sigma_of(noise), 7, SeededBytes(5))
    assert np.abs(got * BOUND / 2.0 - noised).max() <= 5  # at most one unit per row by rounding
    spent = accounts.spent
    for row, person in zip(clipped, people, strict=True):
        exact = int((np.trunc(row / 2.0 * BOUND).astype(object) ** 2).sum())
        assert spent[person] == pytest.approx(gaussian_units(exact, sigma_of(noise)), rel=1e-5)
    assert spent[5] == 0
    assert spent.max() <= gaussian_units(BOUND * BOUND, sigma_of(noise))


def test_worst_case_accounts_charge_the_bound_whatever_the_row() -> None:
    accounts = Accounts(2, 10**13, individual=False)
    sums = PrivateSums(1, 3, norm=1.0, noise=2_000_000, accounts=accounts, source=SeededBytes(0))
    sums.add(0, np.zeros((1, 3)), np.array([1]))
    assert accounts.spent.tolist() == [0, gaussian_units(BOUND * BOUND, sigma_of(2_000_000))]


def test_a_paced_row_costs_no_more_than_its_part_of_the_account() -> None:
    """Of 900 units, 100 spent, two uses left: 400 a use, less 40 for the dual step."""
    rng = np.random.default_rng(0)
    unit = gaussian_units(BOUND * BOUND, sigma_of(1_000_000)) // 400
    accounts = Accounts(4, 900 * unit, individual=True)
    accounts.put_back(np.array([100, 100, 100, 900]) * unit, np.zeros(4, np.bool_))
    accounts.pace(np.array([2, 2, 1, 2]))
    sums = PrivateSums(
        1, 50, norm=1.0, noise=1_000_000, accounts=accounts, source=SeededBytes(0), parts=1,
        reserve=40 * unit,
    )  # fmt: skip
    rows = rng.normal(size=(4, 50))
    rows *= np.array([9.0, 0.3, 9.0, 9.0])[:, None] / np.linalg.norm(rows, axis=1)[:, None]
    sums.add(0, rows, np.arange(4))
    cost = accounts.spent / unit - np.array([100, 100, 100, 900])
    # √(360/400) of the bound; a short row as it is; the bound; an empty account adds 0
    assert cost.tolist() == pytest.approx([360, 36, 400, 0], rel=1e-4)
    assert cost[0] <= 360
    assert not accounts.refused.any()


@pytest.mark.parametrize("method", ["irdp", "pf_ld"])
def test_paced_samples_last_to_the_end(method: str) -> None:
    """Noise for a third of the planned uses: individual accounts shorten rows instead."""
    low = {"inner_noise": 800_000, "query_noise": 800_000, "inner_norm": 1_000, "query_norm": 1_000}
    settings = tiny_settings(method=method, rounds=6, epsilon=2_000_000, **low)
    regulator = RegulatorLearner(settings, tiny_pool(), _source=SeededBytes(2))
    theta = regulator.network.initial(0)
    for number in range(6):
        regulator.contribute(number, theta)
    assert regulator.dropped == 0
    assert regulator.accounts.spent.max() <= regulator.accounts.cap
    assert regulator.accounts.spent.mean() > 0.8 * regulator.accounts.cap


def test_a_sample_that_cannot_pay_adds_nothing_and_the_rest_go_on() -> None:
    price = gaussian_units(BOUND * BOUND, sigma_of(1_000_000))
    accounts = Accounts(2, price, individual=True)

    def total(rows: list[list[float]], people: list[int]) -> np.ndarray:
        source = SeededBytes(1)
        sums = PrivateSums(1, 1, norm=1.0, noise=1_000_000, accounts=accounts, source=source)
        sums.add(0, np.array(rows), np.array(people))
        noise = rounded_gaussian(sigma_of(1_000_000), 1, SeededBytes(1))
        return sums.release()[0] * BOUND - noise

    assert total([[1.0], [0.25]], [0, 1]) == pytest.approx(1.25 * BOUND)
    assert total([[1.0], [0.25]], [0, 1]) == pytest.approx(0.25 * BOUND)
    assert accounts.refused.tolist() == [True, False]


def test_no_sample_is_charged_above_the_cap_and_the_state_brings_accounts_back() -> None:
    settings = tiny_settings(method="pf_ld", epsilon=1_000_000, rounds=6)
    regulator = RegulatorLearner(settings, tiny_pool(), _source=SeededBytes(0))
    theta = regulator.network.initial(0)
    last = None
    for number in range(40):
        last = regulator.contribute(number, theta)
        assert int(last.spent.max()) <= units_for(1.0, 1e-5)
    assert regulator.dropped > 0
    assert last is not None
    other = RegulatorLearner(settings, tiny_pool())
    other.restore(last.state)
    assert np.array_equal(other.accounts.spent, last.spent)


def test_worst_case_accounts_end_with_budget_exceeded_and_spend_nothing_more() -> None:
    settings = tiny_settings(method="dp_sgd", epsilon=1_000_000)
    regulator = RegulatorLearner(settings, tiny_pool(), _source=SeededBytes(0))
    theta, spent = regulator.network.initial(0), None
    with pytest.raises(BudgetExceeded):  # noqa: PT012
        for number in range(100):
            spent = regulator.contribute(number, theta).spent
    assert spent is not None
    assert np.array_equal(regulator.accounts.spent, spent)


# --- The trap -------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["head", "all"])
def test_second_order_shows_a_support_sample_that_noise_has_hidden(part: str) -> None:
    """At one and the same noised θ', the Jacobian dθ'/dθ still moves with a support sample.

    First order is a function of θ' and the query set alone, so it does not.
    """
    network = Network("mlp", 5, (4,), 3)
    theta = torch.from_numpy(network.initial(0)) + 0.2
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(6, 4, generator=rng)
    other = x.clone()
    other[0] = 0.0  # the neighbour: one sample zeroed out
    y, q = torch.arange(3).repeat_interleave(2), torch.randn(6, 4, generator=rng)
    noised = theta + 0.1 * torch.randn(network.size, generator=rng)  # θ', given: same in both

    def meta(support: torch.Tensor, *, exact: bool) -> torch.Tensor:
        def outer(flat: torch.Tensor) -> torch.Tensor:
            moved = network.flatten(
                adapt(network, network.unflatten(flat), support, y, steps=1, rate=0.5, part=part)
            )
            shift = moved if exact else flat
            return torch.nn.functional.cross_entropy(
                network.logits(network.unflatten(shift + (noised - shift).detach()), q), y
            )

        return torch.func.grad(outer)(theta)

    assert torch.equal(meta(x, exact=False), meta(other, exact=False))
    assert (meta(x, exact=True) - meta(other, exact=True)).norm() > 1e-3


@pytest.mark.parametrize("method", ["dp_sgd", "irdp", "l_d", "pf_ld"])
def test_private_methods_refuse_exact_second_order(method: str) -> None:
    with pytest.raises(ValidationError, match="Hessian"):
        tiny_settings(method=method, learner="maml")
    assert tiny_settings(method=method, company_learner="maml").private


# --- Bits and errors ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["none", "fair", "dp_sgd", "irdp", "l_d", "pf_ld"])
def test_injected_noise_gives_the_same_bits_and_other_noise_others(method: str) -> None:
    settings = tiny_settings(method=method)

    def run(seed: int) -> np.ndarray:
        company = CompanyLearner(settings, tiny_pool(1, groups=False))
        regulator = RegulatorLearner(settings, tiny_pool(), _source=SeededBytes(seed))
        return run_in_memory(company, regulator, settings.rounds)

    assert np.array_equal(run(7), run(7))
    assert not np.array_equal(run(7), run(8))


@pytest.mark.parametrize("method", ["irdp", "pf_ld"])
def test_a_resumed_run_ends_where_an_unbroken_one_does(method: str) -> None:
    settings = tiny_settings(method=method, rounds=4)
    source = SeededBytes(3)
    company = CompanyLearner(settings, tiny_pool(1, groups=False))
    regulator = RegulatorLearner(settings, tiny_pool(), _source=source)
    whole = run_in_memory(
        CompanyLearner(settings, tiny_pool(1, groups=False)),
        RegulatorLearner(settings, tiny_pool(), _source=SeededBytes(3)),
        4,
    )
    theta, state = company.theta(), b""
    for number in range(2):
        part = regulator.contribute(number, theta)
        theta, state = company.step(number, company.contribute(number) + part.values), part.state
    second = CompanyLearner(settings, tiny_pool(1, groups=False))
    second.restore(company.state())
    third = RegulatorLearner(settings, tiny_pool(), _source=source)  # the noise goes on
    third.restore(state)
    theta = second.theta()
    for number in (2, 3):
        part = third.contribute(number, theta)
        theta = second.step(number, second.contribute(number) + part.values)
    assert np.array_equal(theta, whole)


def test_theta_that_ran_away_is_refused_before_anything_is_spent() -> None:
    regulator = RegulatorLearner(tiny_settings(), tiny_pool())
    theta = regulator.network.initial(0)
    theta[3] = np.nan
    with pytest.raises(DataError, match="NaN"):
        regulator.contribute(0, theta)
    with pytest.raises(CapacityError):
        fixed_point(np.array([np.nan]), 20, 2**41)
    assert not regulator.accounts.spent.any()
    # Finite, but its products are not. An error would tell whose: such rows count as 0.
    theta[:] = 1e30
    assert np.abs(regulator.contribute(0, theta).values).max() > 0
    assert not regulator.accounts.spent.any()


def test_a_failed_round_leaves_accounts_uses_and_multipliers_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = tiny_settings(method="pf_ld", regulator_weight=10**12)
    pool = tiny_pool()
    regulator = RegulatorLearner(settings, pool, _source=SeededBytes(0))
    regulator.contribute(0, regulator.network.initial(0))
    before = regulator.accounts.spent

    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("isonomy.common.few_shot.learning.learners.saturated", full)
    with pytest.raises(MemoryError):
        regulator.contribute(1, regulator.network.initial(0))
    assert np.array_equal(regulator.accounts.spent, before)


@pytest.mark.parametrize("learner", ["fomaml", "reptile"])
def test_a_sum_that_is_too_large_is_cut_and_paid_for(learner: str) -> None:
    """An error would tell, at no cost, that a noised sum of the company's choice is large."""
    settings = tiny_settings(
        method="irdp", learner=learner, regulator_weight=10**12, query_norm=10**12,
        inner_norm=10**12,
    )  # fmt: skip
    regulator = RegulatorLearner(settings, tiny_pool())
    part = regulator.contribute(0, regulator.network.initial(0))
    assert np.abs(part.values).max() == MAX_ABS - 1
    assert part.spent.max() > 0
    assert np.array_equal(regulator.accounts.spent, part.spent)
    cut = saturated(np.array([np.nan, np.inf, -np.inf, 1.5]), 1, MAX_ABS)
    assert cut.tolist() == [0, MAX_ABS - 1, 1 - MAX_ABS, 3]


def test_what_no_round_could_answer_is_refused_before_a_budget_is_set_aside() -> None:
    """An approved plan's budget is gone for good, so that is too late to find out."""
    with pytest.raises(ValidationError, match="inner_noise"):
        tiny_settings(inner_noise=7_812)
    least = tiny_settings(inner_noise=7_813)
    learner = RegulatorLearner(least, tiny_pool())
    learner.contribute(0, learner.network.initial(0))
    small = tiny_settings(model="conv4", width=4, input_shape=(1, 6, 6))
    pool = replace(tiny_pool(), inputs=np.ones((72, 1, 6, 6), np.float32))
    with pytest.raises(ConfigError, match="by itself"):  # groups of one number have no spread
        RegulatorLearner(small, pool)


def test_zeroing_a_sample_out_changes_one_sum_by_at_most_its_clipped_row() -> None:
    """The adjacency: the same draws, the same noise, one sample's slot empty."""
    pool = tiny_pool()
    settings = tiny_settings(method="irdp", inner_steps=1, inner_noise=10**12, query_norm=500_000)
    person = int(Sampler(pool, settings).draw(2, SeededBytes(4)).query[0, 0])
    results = []
    for empty in (False, True):
        regulator = RegulatorLearner(settings, pool, _source=SeededBytes(4))
        if empty:
            spent = regulator.accounts.spent
            spent[person] = regulator.accounts.cap  # cannot pay: takes no part
            regulator.accounts.put_back(spent, regulator.accounts.refused)
        results.append(regulator.contribute(0, regulator.network.initial(0)).values)
    scale = settings.regulator_tasks * settings.ways * settings.queries
    moved = np.linalg.norm((results[0] - results[1]).astype(float)) / 2**20 * scale
    assert 0 < moved <= 0.5 + 1e-3


def test_states_of_another_shape_are_refused() -> None:
    settings = tiny_settings()
    small = RegulatorLearner(settings, tiny_pool(each=8))
    part = small.contribute(0, small.network.initial(0))
    with pytest.raises(DataError):
        RegulatorLearner(settings, tiny_pool()).restore(part.state)
    with pytest.raises(DataError):
        CompanyLearner(settings, tiny_pool()).restore(part.state)
    with pytest.raises(DataError):
        small.restore(b"\x00\x00\x00\x05nope")


def test_replacing_the_pool_changes_nothing_public() -> None:
    settings, pool = tiny_settings(), tiny_pool()
    assert pool.groups is not None
    other = RegulatorLearner(settings, replace(pool, groups=1 - pool.groups))
    assert other.fingerprint == RegulatorLearner(settings, pool).fingerprint
    assert other.size == RegulatorLearner(settings, pool).size


def test_noise_scales_with_every_factor_in_front_of_the_sum() -> None:
    """Nobody can pay, so what leaves is noise alone: z·C·weight/(tasks·ways·queries)."""
    settings = tiny_settings(
        method="irdp", width=40, query_norm=3_000_000, query_noise=2_000_000,
        regulator_weight=500_000,
    )  # fmt: skip
    regulator = RegulatorLearner(settings, tiny_pool(), _source=SeededBytes(9))
    full = np.full(regulator.samples, regulator.accounts.cap)
    regulator.accounts.put_back(full, regulator.accounts.refused)
    part = regulator.contribute(0, regulator.network.initial(0))
    expected = 2.0 * 3.0 * 0.5 / (2 * 4 * 2)
    assert (part.values / 2**20).std() == pytest.approx(expected, rel=0.05)  # 2,004 draws: 1.6 %
    assert np.array_equal(part.spent, full)
