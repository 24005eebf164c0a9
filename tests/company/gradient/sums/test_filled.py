"""Noisy weights (company/gradient/filled.py) against what they stand for.

Formal guarantees, one test of the same name each
  rows_are_equally_long       |ρ_i| = C' for everybody, whatever the kernel: the oracle never clips
  weights_are_not_biased      R⁻ᵀ(Rᵀu) = u, whatever the kernel
  noise_energy_is_the_trace   E|noise|² = s²·tr(K̄ M⁻¹), which is far below the bare span's
  own_part_bounds_the_noise   M⁻¹ ≼ (1 + fill)/fill/C'²: a misleading kernel costs that at most
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from federation import federation, labels
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.sums.local import LocalOracle
from isonomy.common.sums.oracle import FilteredOracle, GroupOracle, Release
from isonomy.company.gradient.per_sample.ghost import ChunkGradients
from isonomy.company.gradient.pf_ld.pf_ld import PFLD
from isonomy.company.gradient.sums.filled import FEW, FILL, Filled
from isonomy.company.gradient.sums.primal import CentredGradients, private_sum

U = [0.7, -0.3]
PEOPLE = 40


def kernel(people: int, rank: int, seed: int, dtype: type) -> np.ndarray:
    """Inner products of rows of very different lengths; a zero and a repeated row."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(people, rank)) * 10.0 ** rng.uniform(-3, 1, size=(people, 1))
    if people > 3:
        rows[1] = 0.0
        rows[2] = rows[3]
    return (rows @ rows.T).astype(dtype)


CASES = st.tuples(
    st.integers(1, 40),
    st.integers(1, 12),
    st.integers(0, 99),
    st.sampled_from([np.float32, np.float64]),
)


@settings(deadline=None, max_examples=80)
@given(case=CASES, fill=st.sampled_from([0.1, FILL, 3.0]))
def test_rows_are_equally_long(case: tuple[int, int, int, type], fill: float) -> None:
    filled = Filled.of(kernel(*case), fill=fill)
    assert filled is not None
    lengths = np.linalg.norm(filled.rows.astype(np.float64), axis=1)
    assert (lengths <= filled.norm).all()
    np.testing.assert_allclose(lengths, filled.norm, rtol=2.0**-13)


@settings(deadline=None, max_examples=80)
@given(case=CASES)
def test_weights_are_not_biased(case: tuple[int, int, int, type]) -> None:
    filled = Filled.of(kernel(*case))
    assert filled is not None
    u = np.random.default_rng(case[2]).normal(size=case[0])
    back = filled.back(u @ filled.rows)
    np.testing.assert_allclose(back, u, atol=1e-4 if case[3] is np.float32 else 1e-9)


@settings(deadline=None, max_examples=40)
@given(case=CASES, fill=st.sampled_from([0.1, FILL, 3.0]))
def test_own_part_bounds_the_noise(case: tuple[int, int, int, type], fill: float) -> None:
    filled = Filled.of(kernel(*case), fill=fill)
    assert filled is not None
    rows = filled.rows.astype(np.float64)
    least = np.linalg.eigvalsh(rows @ rows.T)[0]
    assert least > (1 - 1e-3) * filled.norm**2 * fill / (1 + fill)


def test_nobody_has_a_gradient() -> None:
    filled = Filled.of(np.zeros((5, 5), np.float32))
    assert filled is not None
    np.testing.assert_allclose(filled.rows, filled.norm * np.eye(5), rtol=1e-3)


def test_few_people_have_weights_with_noise_of_their_own(tmp_path: Path) -> None:
    model, inputs = chunk(torch.float32, people=FEW)
    groups = np.arange(FEW) % 2
    grads = ChunkGradients.of(model, score, inputs, np.arange(FEW))
    norm = float(grads.lengths.max())
    answer, release = ask(local(tmp_path, groups), grads, norm, sigma=0.02 * norm)
    expected = torch.tensor(U).double()[groups] @ grads.rows()
    assert np.abs(release.values - np.array(U)[groups]).max() < 0.02 * 5  # the weights themselves
    assert float((flat(answer) - expected).norm()) < 0.3 * float(expected.norm())


def test_bad_fill_is_refused() -> None:
    for fill in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="fill"):
            Filled.of(np.eye(3), fill=fill)
        with pytest.raises(ConfigError, match="fill"):
            PFLD(fill=fill)
    filled = Filled.of(np.eye(3))
    assert filled is not None
    with pytest.raises(ConfigError, match="3 coordinates"):
        filled.back([1.0, 2.0])


# --- Through the oracle ------------------------------------------------------------------------


def chunk(dtype: torch.dtype = torch.float64, people: int = PEOPLE) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU())
    return nn.Sequential(*model, nn.Linear(30, 2)).to(dtype), 2 * torch.randn(people, 5).to(dtype)


def score(outputs: Tensor) -> Tensor:
    return torch.softmax(outputs, dim=1)[:, 1]


def flat(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts]).double()


def local(folder: Path, groups: np.ndarray, name: str = "ledger") -> GroupOracle:
    table = {"sex": labels(groups, ("F", "M"))}
    return federation(folder, table, {"sex": ("F", "M")}, epsilon=3000.0, name=name).local()


def ask(
    oracle: GroupOracle,
    grads: ChunkGradients,
    norm: float,
    fill: float | None = FILL,
    **noise: float,
) -> tuple[list[Tensor], Release]:
    """Σ u clip(g_i) + noise, not centred; `sigma` is for rows of length `norm`."""
    if "sigma" in noise:
        noise = {"sigma": noise["sigma"] / norm}
    answer = private_sum(
        oracle,
        CentredGradients(grads, None),
        U,
        norm=norm,
        attribute="sex",
        noise=noise,
        fill=fill,
        label={"purpose": "test"},
    )
    return answer.tensors(), answer.release


def clipped(grads: ChunkGradients, norm: float) -> Tensor:
    """Clipped by their plain lengths, then centred: what is asked for."""
    rows = grads.rows()
    factors = (norm / rows.norm(dim=1)).clamp(max=1.0)
    return factors[:, None] * (rows - rows.mean(dim=0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_private_sum_is_the_weighted_sum_of_clipped_gradients(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    model, inputs = chunk(dtype)
    groups = np.arange(PEOPLE) % 3 % 2
    inner = ChunkGradients.of(model, score, inputs, np.arange(PEOPLE))
    norm = float(np.median(inner.lengths))
    grads = CentredGradients(inner, torch.ones(PEOPLE).double())
    answer = private_sum(
        local(tmp_path, groups),
        grads,
        U,
        norm=norm,
        attribute="sex",
        noise={"sigma": 0.02},
        label={"purpose": "test"},
    )
    expected = torch.tensor(U).double()[groups] @ clipped(inner, norm)
    error = float((flat(answer.tensors()) - expected).norm())
    assert 0.0 < error < 0.15 * float(expected.norm())


def test_noise_energy_is_the_trace(tmp_path: Path) -> None:
    """Noise of 40 answers, against the formula; and the bare span's, at the same price."""
    model, inputs = chunk()
    groups, repeats = np.arange(PEOPLE) % 2, 40
    oracle = local(tmp_path, groups)
    grads = ChunkGradients.of(model, score, inputs, np.arange(PEOPLE))
    rows, norm = grads.rows(), float(grads.lengths.max())
    sigma = 5 * norm
    truth = torch.tensor(U).double()[groups] @ rows
    filled = Filled.of(grads.gram(first=True).numpy())
    assert filled is not None
    scale = (sigma / norm) * filled.norm  # s, for rows of length C'
    expected = scale**2 * np.trace(np.linalg.solve(filled.rows @ filled.rows.T, rows @ rows.T))
    energies, price = {}, {}
    for fill in (FILL, None):
        noise, before = [], oracle.budget.spent_units
        for _ in range(repeats):
            answer, _ = ask(oracle, grads, norm, fill, sigma=sigma)
            noise.append(float((flat(answer) - truth).square().sum()))
        energies[fill] = float(np.mean(noise))
        price[fill] = oracle.budget.spent_units - before
        deviation = float(np.std(noise)) / repeats**0.5
        assert abs(energies[fill] - (expected if fill else sigma**2 * PEOPLE)) < 5 * deviation
    assert price[FILL] == pytest.approx(price[None], rel=1e-3)
    assert energies[FILL] < 0.6 * energies[None]


def test_encrypted_weights_are_the_local_ones_bit_for_bit(tmp_path: Path) -> None:
    model, inputs = chunk(torch.float32)
    groups = {"sex": labels(np.arange(PEOPLE) % 2, ("F", "M"))}
    answers = []
    for name in ("local", "encrypted"):
        made = federation(tmp_path, groups, {"sex": ("F", "M")}, seed=4, name=name)
        oracle = made.local() if name == "local" else made.company()
        grads = ChunkGradients.of(model, score, inputs, np.arange(PEOPLE))
        answers.append(flat(ask(oracle, grads, 0.1, share=0.1)[0]))
    assert torch.equal(*answers)


def test_a_person_with_several_rows_has_one_weight(tmp_path: Path) -> None:
    model, inputs = chunk(people=12)
    people = np.array([3, 3, 0, 0, 0, 5, 7, 7, 1, 2, 9, 9])
    groups = np.arange(10) % 2
    grads = ChunkGradients.of(model, score, inputs, people)
    assert grads.people is not None
    norm = float(np.median(grads.lengths))
    answer, release = ask(local(tmp_path, groups), grads, norm, sigma=0.02 * norm)
    rows = grads.rows()
    expected = (norm / rows.norm(dim=1)).clamp(max=1.0)[:, None] * rows
    expected = torch.tensor(U).double()[groups[grads.people]] @ expected
    assert release.values.shape == (len(grads.people),)
    assert float((flat(answer) - expected).norm()) < 0.3 * float(expected.norm())


def test_who_pays_for_their_own_row_is_not_filled_up(tmp_path: Path) -> None:
    """Under the individual filter rows are as long as gradients, so that short ones stay cheap."""
    model, inputs = chunk()
    names = {"sex": labels(np.arange(PEOPLE) % 2, ("F", "M"))}
    ids = [f"p{i}" for i in range(PEOPLE)]
    plan = {"epsilon": 3000.0, "delta": 1e-5, "individual": True}
    oracle = FilteredOracle(LocalOracle.rehearse(ids, names, **plan), stretch=2.0)
    grads = ChunkGradients.of(model, score, inputs, np.arange(PEOPLE))
    norm = float(grads.lengths.max())
    ask(oracle, grads, norm, share=0.01)
    spent = oracle.accounts.spent
    lengths = grads.lengths
    assert spent[lengths.argmin()] < 0.7 * spent[lengths.argmax()]


@pytest.mark.parametrize("norm", [None, 1.0])
def test_gradients_that_exploded_behind_the_first_layer_ask_nothing(
    tmp_path: Path, norm: float | None
) -> None:
    """The rows come of the first layer alone, but nobody is asked about a model that is lost."""
    model, inputs = chunk(torch.float32)
    with torch.no_grad():  # what enters the last layer is huge; the outputs are as before
        model[2].weight.mul_(1e25)
        model[4].weight.mul_(1e-25)
    oracle = local(tmp_path, np.arange(PEOPLE) % 2)
    inner = ChunkGradients.of(model, score, inputs, np.arange(PEOPLE))
    assert inner.gram(torch.float32, first=True).diagonal().isfinite().all()
    grads = CentredGradients(inner, torch.ones(PEOPLE).double())
    noise = {"share": 0.1}
    with pytest.raises(DataError, match="diverged"):
        private_sum(
            oracle, grads, U, norm=norm, attribute="sex", noise=noise, label={"purpose": "test"}
        )
    with pytest.raises(DataError, match="diverged"):
        ask(oracle, inner, 1.0, share=0.1)
    assert oracle.position[0] == 0


def test_gradients_with_much_in_common_are_combined_in_double_precision(tmp_path: Path) -> None:
    """What people differ in is 10⁻⁵ of what they share: below single precision's rounding."""
    model, inputs = chunk(torch.float32)
    with torch.no_grad():
        inputs[:] = inputs[0] + 1e-5 * inputs
    oracle = local(tmp_path, np.arange(PEOPLE) % 2)
    inner = ChunkGradients.of(model, score, inputs, np.arange(PEOPLE))
    for mass, double in ((torch.ones(PEOPLE).double(), True), (None, False)):
        grads = CentredGradients(inner, mass)
        noise = {"share": 0.1}
        answer = private_sum(
            oracle, grads, U, norm=None, attribute="sex", noise=noise, label={"purpose": "test"}
        )
        assert answer.double is double
