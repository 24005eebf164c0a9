"""One test for each trap in DP-FERMI's paper and code (docs/design.md §2), and DP-SGDA itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import Federation
from fermi_kit import double_run, quiet_home, silent
from gradient_kit import Toy, regulator, toy, trainer
from torch import Tensor

from isonomy.common.sums.question import Prepared
from isonomy.company.gradient.fermi.fermi import DpFermi, DpSgda
from isonomy.company.gradient.run.paper_epsilon import theorem_3_3
from isonomy.company.gradient.run.strategy import Run


def _listen(run: Run) -> list[Prepared]:
    seen: list[Prepared] = []
    channel: Any = run.oracle.channel
    exchange = channel.exchange

    def tapped(prepared: Prepared) -> Any:
        seen.append(prepared)
        return exchange(prepared)

    channel.exchange = tapped
    return seen


def _whole_run(run: Run, fermi: DpFermi) -> None:
    fermi.prepare(run)
    for _ in range(run.rounds):
        for chunk in run.chunks:
            fermi.constraint_gradient(run, chunk)
        run.round += 1
        fermi.end_round(run)


def _home(folder: Path, data: Toy, epsilon: float = 2.0) -> Federation:
    return regulator(folder, data.group, epsilon=epsilon)


@pytest.mark.parametrize(
    "strategy",
    [DpFermi, partial(DpFermi, w_update="chunk"), DpSgda],
    ids=["round", "chunk", "sgda"],
)
@pytest.mark.parametrize(
    ("notion", "classes", "groups"),
    [("demographic_parity", 2, 2), ("equalized_odds", 2, 2), ("demographic_parity", 4, 3)],
)
def test_one_budget(
    tmp_path: Path, strategy: Callable[..., DpFermi], notion: str, classes: int, groups: int
) -> None:
    """θ and W updates of a whole run fit into one cap; twice that would be the authors' error."""
    data = toy(500, classes=classes, groups=groups)
    home = _home(tmp_path, data)
    run = double_run(home, data, classes=classes, rounds=3, chunk_size=250)
    fermi = strategy(notion)
    _whole_run(run, fermi)
    spent = home.ledger.spent_units(run.oracle.plan)
    assert spent <= 0.9 * home.cap_units  # a tenth is for audits
    # The noise is solved for the budget, not far above. DP-SGDA's first θ step costs nothing: W is
    # where independence would have it, and all weights are equal.
    assert spent > 0.9 * (0.7 if isinstance(fermi, DpSgda) else 0.9) * home.cap_units
    stages = {name.split(",")[0] for name in run.oracle.log.stages}
    assert stages == {"fermi counts", "fermi θ", "fermi W"}
    if not isinstance(fermi, DpSgda):
        with pytest.raises(Exception, match="above the plan"):  # but for audits nothing is left
            run.oracle.open_sum(np.ones((500, 1)), norm=1.0, share=0.2)


@pytest.mark.parametrize("rows", [{"clip": 1.0}, {"noise_shape": 0.1}])
def test_noise_has_every_factor(tmp_path: Path, rows: dict[str, float]) -> None:
    """The gradient's noise grows with λ and with W: 6 times the product, 6 times the noise."""
    data = toy(400)
    run = double_run(_home(tmp_path, data, epsilon=1e3), data, rounds=200)
    spread = {}
    for strength, stretch in ((1.0, 1.0), (3.0, 1.0), (3.0, 2.0)):
        fermi = DpFermi(strength=strength, radius=100.0, **rows)  # type: ignore[arg-type]
        fermi.prepare(run)
        (problem,) = fermi.problems
        problem.w = problem.centre + stretch * np.array([[0.2, -0.2], [-0.1, 0.1]])
        fermi._share_theta = 1e-9  # noise far above the signal
        draws = [fermi.constraint_gradient(run, run.chunks[0]) for _ in range(40)]
        flat = np.stack([torch.cat([g.ravel() for g in d or []]).numpy() for d in draws])
        spread[strength, stretch] = float(flat.std(axis=0).mean())
    assert spread[3.0, 1.0] / spread[1.0, 1.0] == pytest.approx(3.0, rel=0.3)
    assert spread[3.0, 2.0] / spread[1.0, 1.0] == pytest.approx(6.0, rel=0.3)


def test_shaped_rows_cost_the_same_and_say_more(tmp_path: Path) -> None:
    """Equal shares, equal W: noise that follows the gradients is less where the loss is flat.

    One input in ten is large, the others hardly move. Cost of noise as in primal.py: its energy
    against the curvature Σ of the rows.
    """
    data = toy(2_000)
    data.x[:, 0] *= 10.0
    found: dict[float | None, float] = {}
    for shape in (None, 0.1):
        folder = tmp_path / str(shape)
        folder.mkdir()
        run = double_run(_home(folder, data, epsilon=1e3), data, rounds=400)
        fermi = DpFermi(noise_shape=shape, radius=100.0)
        fermi.prepare(run)
        (problem,) = fermi.problems
        problem.w = problem.centre + np.array([[0.2, -0.2], [-0.1, 0.1]])
        problem.shares[:] = 0.5
        fermi._share_theta = 1e-9
        before = run.oracle.budget.spent_units
        draws = [fermi.constraint_gradient(run, run.chunks[0]) for _ in range(60)]
        cost = run.oracle.budget.spent_units - before
        assert cost == 60 * max(1, int(1e-9 * run.oracle.budget.cap_units))
        flat = np.stack([torch.cat([g.ravel() for g in d or []]).numpy() for d in draws])
        inputs = np.column_stack([data.x, np.ones(len(data.x))])
        curvature = np.linalg.inv(inputs.T @ inputs / len(inputs) + 1e-6 * np.eye(inputs.shape[1]))
        found[shape] = float(np.trace(np.cov(flat.T) @ curvature))
    assert found[0.1] < 0.5 * (found[None] or 0.0)


def test_columns_share(tmp_path: Path) -> None:
    """K − 1 weighted sums of a θ step together cost one share: K draws are K draws."""
    data = toy(500, classes=4, groups=3)
    run = double_run(_home(tmp_path, data), data, classes=4)
    fermi = DpFermi()
    fermi.prepare(run)
    before = run.oracle.budget.spent_units
    seen = _listen(run)
    fermi.constraint_gradient(run, run.chunks[0])
    assert len(seen) == 3
    assert len({asked.query.query_id for asked in seen}) == 3
    cost = run.oracle.budget.spent_units - before
    planned = fermi._share_theta * run.oracle.budget.cap_units
    assert 0.999 * planned < cost <= planned


def test_the_shares_are_released_once_and_noised(tmp_path: Path) -> None:
    data = toy(500)
    run = double_run(_home(tmp_path, data), data)
    seen = _listen(run)
    fermi = DpFermi()
    _whole_run(run, fermi)
    assert sum(asked.query.purpose == "fermi counts" for asked in seen) == 1
    true = np.bincount(data.group) / 500
    assert not np.isclose(fermi.problems[0].shares, true, atol=1e-6).any()
    for asked in seen:  # weights come from W and the released shares: never from the true ones
        if asked.query.shape == "weighted":
            assert np.ptp(asked.query.weights) > 0


def test_a_chunk_without_a_group_is_asked_all_the_same(tmp_path: Path) -> None:
    """Whether it is asked must not tell that a group is absent."""
    data = toy(400)
    order = np.argsort(data.group, kind="stable")
    data = Toy(data.x[order], data.y[order], data.group[order])
    run = double_run(quiet_home(tmp_path, data), data)
    halves = [np.arange(0, 100), np.arange(100, 400)]
    assert len(set(data.group[:100])) == 1
    run.chunks = [type(run.chunks[0])(i, torch.from_numpy(h), h) for i, h in enumerate(halves)]
    fermi = DpFermi(w_update="chunk")
    fermi.prepare(run)
    seen = _listen(run)
    fermi.constraint_gradient(run, run.chunks[0])
    purposes = [asked.query.purpose for asked in seen]
    assert purposes == ["fermi W", "fermi θ"]


def test_labels_pay_apart(tmp_path: Path) -> None:
    """Equalized odds asks about each label's people alone: nobody pays for the other label."""
    data = toy(400)
    run = double_run(_home(tmp_path, data), data)
    seen = _listen(run)
    fermi = DpFermi("equalized_odds")
    _whole_run(run, fermi)
    for asked in seen:
        if asked.query.purpose != "fermi counts":
            label = int(asked.query.purpose[-1])
            assert (data.y[asked.query.position_array(len(data.y))] == label).all()
    spent = run.oracle.position[1]
    assert spent.min() > 0.9 * 0.9 * run.oracle.budget.cap_units  # both labels got all of it


def test_people_with_several_labels_stay_within_the_cap(tmp_path: Path) -> None:
    data = toy(400)
    people = np.arange(400) // 2  # two rows each, often with different labels
    group = data.group[::2]
    home = regulator(tmp_path, group, epsilon=2.0)
    run = double_run(home, data, people=people, chunk_size=100)
    _whole_run(run, DpFermi("equalized_odds"))
    assert home.ledger.spent_units(run.oracle.plan) <= home.cap_units


def test_equal_weights_are_free(tmp_path: Path) -> None:
    """At W = √P·1ᵀ the θ step does not depend on anybody's attribute: it costs nothing."""
    data = toy(300)
    run = double_run(_home(tmp_path, data), data)
    fermi = DpFermi()
    fermi.prepare(run)
    fermi.problems[0].w = fermi.problems[0].centre.copy()
    before = run.oracle.budget.spent_units
    gradient = fermi.constraint_gradient(run, run.chunks[0])
    assert run.oracle.budget.spent_units == before
    assert gradient is not None
    assert max(float(g.abs().max()) for g in gradient) < 1e-6  # and D_R has its minimum there


def test_a_break_changes_nothing(tmp_path: Path) -> None:
    data = toy(300)
    run = double_run(_home(tmp_path, data), data)
    fermi = DpFermi("equalized_odds")
    fermi.prepare(run)
    other = DpFermi("equalized_odds")
    other.load_state_dict(fermi.state_dict())
    for mine, theirs in zip(fermi.problems, other.problems, strict=True):
        assert (mine.w == theirs.w).all()
        assert (mine.shares == theirs.shares).all()
        assert mine.label == theirs.label
    assert other.state_dict().keys() == fermi.state_dict().keys()
    assert other._share_theta == fermi._share_theta


# --- Algorithm 2 on a problem with a known saddle point -------------------------------------------


class Quadratic:
    """min_θ max_w 1/n Σ ½‖θᵀx_i − y_i‖² + w·s_{A_i}·(θᵀx_i)_1 − ½κw², s = (1, −1)."""

    columns, kappa, bound, suffix, label = 1, 0.5, 40.0, "", None
    centre = np.zeros((1, 1))

    def __init__(self, target: Tensor) -> None:
        self.target, self.w = target, np.zeros((1, 1))

    def centre_on(self, outputs: Tensor, weight: Tensor) -> None:
        pass

    def moments(self, outputs: Tensor) -> Tensor:
        return outputs[:, 1:]

    def public(self, outputs: Tensor, w: np.ndarray) -> Tensor:
        return 0.5 * ((outputs - self.target) ** 2).sum(dim=1)

    def coupling(self, w: np.ndarray) -> np.ndarray:
        return np.array([[1.0], [-1.0]]) * w[0, 0]

    def ascent(self, w: np.ndarray, sums: np.ndarray, mass: float) -> np.ndarray:
        return np.array([[(sums[0, 0] - sums[1, 0]) / mass - self.kappa * w[0, 0]]])

    def project(self, w: np.ndarray) -> np.ndarray:
        return np.clip(w, -5.0, 5.0)

    def gap(self, sums: np.ndarray, deviation: float, mass: float) -> tuple[float, float]:
        return float(np.ptp(sums)) / mass, deviation


class Saddle(DpSgda):
    """DP-SGDA on another problem than ERMI."""

    def problems_of(self, run: Run) -> list[Quadratic]:
        x = run.inputs[run.chunks[0].rows]
        return [Quadratic(torch.stack([x[:, 2], x[:, 0] + x[:, 1]], dim=1))]


def test_sgda_finds_the_saddle_point(tmp_path: Path) -> None:
    data = toy(200, seed=3)
    run = double_run(silent(_home(tmp_path, data, epsilon=1e3)), data, rounds=60)
    run.model = torch.nn.Linear(4, 2, bias=False).double()
    strategy = Saddle(strength=1.0, clip=8.0, ascent_step=0.8)
    strategy.prepare(run)
    optimiser = torch.optim.SGD(run.model.parameters(), lr=0.4)
    for _ in range(run.rounds):
        (run.model.weight.grad,) = strategy.constraint_gradient(run, run.chunks[0]) or []
        optimiser.step()
        strategy.end_round(run)
    x = run.inputs.numpy()
    sign = np.where(data.group == 0, 1.0, -1.0)
    moment, gram = x.T @ sign / 200, x.T @ x / 200
    # ∇_θ1 = gram θ1 − xᵀy1/n + w·moment = 0, ∇_w = momentᵀθ1 − κw = 0
    system = np.block([[gram, moment[:, None]], [moment[None], -np.array([[Quadratic.kappa]])]])
    exact = np.linalg.solve(system, np.append(x.T @ (x[:, 0] + x[:, 1]) / 200, 0.0))
    theta = run.model.weight.detach().numpy()
    assert np.allclose(theta[1], exact[:4], atol=1e-3)
    assert strategy.problems[0].w[0, 0] == pytest.approx(exact[4], abs=1e-3)
    assert abs(exact[4]) > 0.1  # the constraint binds
    assert np.allclose(theta[0], [0, 0, 1, 0], atol=1e-3)


def test_sgda_takes_both_steps_from_the_same_point(tmp_path: Path) -> None:
    """W_{t+1} is made after the θ step's gradient, which still has W_t in it."""
    data = toy(300)
    run = double_run(quiet_home(tmp_path, data), data)
    purposes = {}
    for strategy in (DpSgda(clip=1.0), DpFermi(clip=1.0, w_update="chunk")):
        strategy.prepare(run)
        strategy.problems[0].w = strategy.problems[0].w + np.array([[0.1, -0.1], [0.0, 0.0]])
        requests = _listen(run)
        strategy.constraint_gradient(run, run.chunks[0])
        purposes[strategy.name] = [request.query.purpose for request in requests]
    assert purposes["dp_sgda"] == ["fermi θ", "fermi W"]
    assert purposes["dp_fermi"][:2] == ["fermi W", "fermi θ"]


# --- The noise of Theorem 3.3 ---------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [DpFermi, DpSgda])
def test_the_theorems_noise_is_that_of_the_theorem(tmp_path: Path, strategy: type[DpFermi]) -> None:
    """Deviations of the answers, against σ_θ and σ_w by hand; the ledger charges what they cost."""
    data = toy(400)
    run = double_run(_home(tmp_path, data, epsilon=5.0), data, rounds=30)
    fermi = strategy(noise="theorem", epsilon=2.0, clip=0.5, radius=0.4)
    fermi.prepare(run)
    (problem,) = fermi.problems
    problem.w = problem.centre + np.array([[0.1, -0.1], [-0.05, 0.05]])
    requests = _listen(run)
    fermi.constraint_gradient(run, run.chunks[0])
    fermi._ascend(run, run.chunks)
    rho = float(problem.shares.min())
    sigma_w, sigma_theta = theorem_3_3(
        epsilon=2.0, delta=run.oracle.budget.delta, steps=31, people=400, rho=rho,
        diameter=float(np.sqrt(problem.shares.max())) + 0.4, lipschitz=0.5,
    )  # fmt: skip
    bound = run.oracle.params.row_bound
    for request in requests:
        query, norm = request.query, 0.5
        if query.shape == "weighted":
            unit = norm * float(np.ptp(query.weights)) / bound
            assert query.noise * unit == pytest.approx(400 * sigma_theta, rel=1e-3)
        else:
            unit = problem.bound / bound
            expected = 400 * sigma_w * np.sqrt(rho) / 2
            assert query.noise * unit == pytest.approx(expected, rel=1e-3)
    assert {request.query.shape for request in requests} == {"weighted", "groups"}


def test_a_run_that_the_theorem_makes_dearer_than_the_plan_ends_with_the_plan(
    tmp_path: Path,
) -> None:
    """Chunks count on amplification, which is none against the company."""
    data = toy(400)
    home = _home(tmp_path, data, epsilon=1.0)
    oracle, strategy = home.local(), DpSgda(noise="theorem", radius=0.2)
    settings = {"rounds": 20, "local_steps": 1, "chunk_size": 20}
    result = trainer(torch.nn.Linear(4, 1), strategy, oracle, **settings).fit(data.x, data.y)
    assert result.stopped == "budget"
    assert home.ledger.spent_units(oracle.plan) <= home.cap_units
