"""DP-FERMI's formulas against the definition of ERMI, with the noise off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from fermi_kit import double_run, ermi, quiet_home
from gradient_kit import Toy, regulator, toy
from scipy import optimize
from torch import Tensor

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.company.gradient.fermi._ermi import Ermi, project_ball, strata_of, sum_zero_basis
from isonomy.company.gradient.fermi._sgda import shares_of
from isonomy.company.gradient.fermi.fermi import DpFermi
from isonomy.company.gradient.run.strategy import Run, trainable

LARGE = 1e3  # a radius or clipping bound that never acts


def _chances(run: Run) -> Tensor:
    return torch.softmax(run.outputs(torch.arange(len(run.target))), dim=1)


def _exact(data: Toy, classes: int, groups: int) -> Ermi:
    counts = np.bincount(data.group, minlength=groups).astype(float)
    return Ermi.of(counts, np.zeros(groups), len(data.y), classes=classes, radius=LARGE)


def _true_sums(problem: Ermi, outputs: Tensor, group: np.ndarray, groups: int) -> np.ndarray:
    h = problem.moments(outputs).detach().numpy()
    return np.stack([h[group == a].sum(axis=0) for a in range(groups)])


@pytest.mark.parametrize(("classes", "groups"), [(2, 2), (3, 4)])
def test_the_maximum_over_w_is_ermi(classes: int, groups: int) -> None:
    data = toy(300, classes=classes, groups=groups)
    outputs = torch.randn(300, classes, dtype=torch.float64) + torch.from_numpy(data.x[:, :1])
    outputs[:, 0] += torch.from_numpy(data.group)
    problem = _exact(data, classes, groups)
    problem.centre_on(outputs, torch.ones(300))
    sums = _true_sums(problem, outputs, data.group, groups)
    problem.newton = True
    w = problem.w + problem.ascent(problem.w, sums, 300.0)
    u = problem.coupling(w)[data.group]
    constant = 2 * (w / np.sqrt(problem.shares)[:, None])[data.group] @ problem.mean
    private = (torch.from_numpy(u) * problem.moments(outputs)).sum(dim=1) + torch.from_numpy(
        constant
    )
    psi = problem.public(outputs, w) + private - 1
    true = float(ermi(torch.softmax(outputs, dim=1), data.group, groups))
    assert float(psi.mean()) == pytest.approx(true, rel=1e-10)
    assert true > 0.01
    problem.newton = False
    again = problem.ascent(w, sums, 300.0)
    assert np.abs(again).max() < 1e-10  # the gradient vanishes at the maximum


def test_the_w_gradient_is_that_of_psi() -> None:
    data = toy(200, classes=3, groups=3)
    outputs = torch.randn(200, 3, dtype=torch.float64)
    problem = _exact(data, 3, 3)
    problem.centre_on(outputs, torch.ones(200))
    w = problem.w + 0.1 * np.random.default_rng(0).normal(size=(3, 3))

    def psi(flat: np.ndarray) -> float:
        own = flat.reshape(3, 3)
        f = torch.softmax(outputs, dim=1).numpy()
        first = -(f @ (own**2).sum(axis=0))
        second = 2 * ((own / np.sqrt(problem.shares)[:, None])[data.group] * f).sum(axis=1)
        return float((first + second).mean())

    numeric = optimize.approx_fprime(w.ravel(), psi, 1e-6).reshape(3, 3)
    sums = _true_sums(problem, outputs, data.group, 3)
    assert np.allclose(problem.ascent(w, sums, 200.0), numeric, atol=1e-5)


PLAIN = {"clip": LARGE}  # plain rows under round noise
SHAPED = {"clip_quantile": 1.0, "noise_shape": 0.1}  # centred rows in coordinates of their own


@pytest.mark.parametrize(
    ("notion", "classes", "groups", "chunk", "rows"),
    [
        ("demographic_parity", 2, 2, None, PLAIN),
        ("demographic_parity", 3, 4, None, PLAIN),
        ("equalized_odds", 2, 3, None, PLAIN),
        ("equalized_odds", 3, 2, None, PLAIN),
        ("equal_opportunity", 2, 2, None, PLAIN),
        ("demographic_parity", 2, 2, 50, PLAIN),
        ("demographic_parity", 2, 2, None, SHAPED),
        ("demographic_parity", 3, 4, None, SHAPED),
        ("equalized_odds", 2, 3, None, SHAPED),
    ],
)
def test_constraint_gradient_is_that_of_the_penalty(
    tmp_path: Path,
    notion: str,
    classes: int,
    groups: int,
    chunk: int | None,
    rows: dict[str, float],
) -> None:
    """At W = W*(θ) the gradient of λ·D_R is λ/n Σ ∇_θ ψ_i (the envelope theorem)."""
    data = toy(400, classes=classes, groups=groups)
    run = double_run(quiet_home(tmp_path, data), data, classes=classes, chunk_size=chunk)
    fermi = DpFermi(notion, strength=3.0, radius=LARGE, **rows)  # type: ignore[arg-type]
    fermi.prepare(run)
    parts = [(fermi.constraint_gradient(run, c), len(c)) for c in run.chunks]
    mine = [
        sum(own[p] * size for own, size in parts) / 400  # type: ignore[index]
        for p in range(len(trainable(run.model)))
    ]
    chances, penalty = _chances(run), torch.zeros((), dtype=torch.float64)
    for label in strata_of(notion, classes):
        who = np.ones(400, bool) if label is None else data.y == label
        penalty = penalty + who.mean() * ermi(chances[who], data.group[who], groups)
    true = torch.autograd.grad(3.0 * penalty, trainable(run.model))
    scale = max(float(t.abs().max()) for t in true)
    assert scale > 1e-3
    for ours, theirs in zip(mine, true, strict=True):
        assert torch.allclose(ours, theirs, atol=2e-2 * scale)  # rows are fixed point of C = 1000


def test_finite_differences_of_the_penalty(tmp_path: Path) -> None:
    """No automatic differentiation on the other side, and a clipping bound that fits."""
    data = toy(300)
    run = double_run(quiet_home(tmp_path, data), data)
    fermi = DpFermi(strength=1.0, clip=4.0, radius=LARGE)
    fermi.prepare(run)
    gradient = fermi.constraint_gradient(run, run.chunks[0])
    assert gradient is not None
    weight = run.model.weight
    with torch.no_grad():
        for place in range(4):
            values = []
            for step in (1e-5, -1e-5):
                weight[0, place] += step
                values.append(float(ermi(_chances(run), data.group, 2)))
                weight[0, place] -= step
            numeric = (values[0] - values[1]) / 2e-5
            assert float(gradient[0][0, place]) == pytest.approx(numeric, abs=1e-4)


@pytest.mark.parametrize("update", ["round", "chunk"])
def test_reaches_the_exact_minimum(tmp_path: Path, update: str) -> None:
    """Loss + λ·D_R on a small problem: as good as a solver that knows all groups."""
    data = toy(300)
    run = double_run(quiet_home(tmp_path, data), data, rounds=150)
    fermi = DpFermi(strength=2.0, clip=3.0, radius=LARGE, w_update=update)  # type: ignore[arg-type]
    x, y = torch.from_numpy(data.x).double(), run.target

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        theta = torch.tensor(flat, requires_grad=True)
        logit = x @ theta[:4] + theta[4]
        both = torch.stack([torch.zeros_like(logit), logit], dim=1)
        value = torch.nn.functional.cross_entropy(both, y)
        value = value + 2.0 * ermi(torch.softmax(both, dim=1), data.group, 2)
        (gradient,) = torch.autograd.grad(value, theta)
        return float(value.detach()), gradient.numpy()

    best = optimize.minimize(objective, np.zeros(5), jac=True, method="BFGS").fun
    plain = optimize.minimize(
        lambda t: float(np.logaddexp(0, -(2 * data.y - 1) * (data.x @ t)).mean()),
        np.zeros(4),
    )
    fermi.prepare(run)
    optimiser = torch.optim.SGD(trainable(run.model), lr=2.0)
    for _ in range(run.rounds):
        constraint = fermi.constraint_gradient(run, run.chunks[0])
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(run.outputs(torch.arange(300)), y)
        loss.backward()
        assert constraint is not None
        for parameter, extra in zip(trainable(run.model), constraint, strict=True):
            parameter.grad += extra
        optimiser.step()
        run.round += 1
        fermi.end_round(run)
    found = np.concatenate([p.detach().numpy().ravel() for p in trainable(run.model)])
    reached = objective(found)[0]
    assert reached == pytest.approx(best, abs=2e-3)
    assert objective(np.append(plain.x, 0.0))[0] > best + 0.05  # the penalty matters here


def test_w_stays_in_its_ball(tmp_path: Path) -> None:
    data = toy(200)
    run = double_run(regulator(tmp_path, data.group, epsilon=1.0), data)
    fermi = DpFermi(radius=0.05)
    fermi.prepare(run)
    for _ in range(3):
        for problem in fermi.problems:
            away = float(np.linalg.norm(problem.w - problem.centre))
            assert away <= 0.05 * (1 + 1e-9)
        run.round += 1
        fermi.end_round(run)
    assert away > 0.049  # W* and the noise lie beyond the border
    inside, centre = np.ones((2, 2)), np.zeros((2, 2))
    assert (project_ball(inside, centre, 3.0) == inside).all()
    assert np.linalg.norm(project_ball(inside, centre, 1.0)) == pytest.approx(1.0)


def test_basis_is_orthonormal_and_sums_to_zero() -> None:
    for classes in (2, 3, 9):
        basis = sum_zero_basis(classes)
        assert np.allclose(basis.T @ basis, np.eye(classes - 1))
        assert np.allclose(basis.sum(axis=0), 0)


def test_open_sums_never_clip() -> None:
    problem = Ermi(np.array([0.3, 0.7]), sum_zero_basis(4), LARGE)
    problem.mean = np.array([0.7, 0.1, 0.1, 0.1])
    corners = torch.eye(4, dtype=torch.float64) * 1e3  # softmax of these: certain decisions
    lengths = problem.moments(corners).norm(dim=1)
    assert float(lengths.max()) <= problem.bound
    assert float(lengths.max()) == pytest.approx(problem.bound, rel=1e-5)


def test_columns_share_by_their_ranges() -> None:
    assert shares_of(np.array([1.0, 3.0, 0.0]), 0.4) == pytest.approx([0.1, 0.3, 0.0])
    assert shares_of(np.zeros(2), 0.4).sum() == 0.0
    assert shares_of(np.array([1.0, 1e-9]), 1.0)[1] > 0.009


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="strength"):
        DpFermi(strength=0.0)
    with pytest.raises(ConfigError, match="ascent"):
        DpFermi(ascent="up")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="noise"):
        DpFermi(noise="none")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="noise_shape"):
        DpFermi(noise="theorem", noise_shape=0.1)
    with pytest.raises(ConfigError, match="no form"):
        strata_of("accuracy_parity", 2)
    data = toy(60)
    lonely = Toy(data.x, data.y, np.where(np.arange(60) < 1, 1, 0))
    run = double_run(regulator(tmp_path, lonely.group, epsilon=1.0), lonely)
    with pytest.raises(DataError, match="fewer than two groups"):
        DpFermi().prepare(run)
    assert {d.event["purpose"] for d in _debits(run)} == {"fermi counts"}  # nothing else was paid


def _debits(run: Run) -> list:
    ledger = run.oracle.channel.custodian._ledger  # type: ignore[attr-defined]
    found = (ledger.find(f"{run.oracle.plan.hex()[:16]}-{i:06d}") for i in range(99))
    return [each for each in found if each is not None]
