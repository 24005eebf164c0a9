"""The chunk's own coordinates against the plain d-dimensional computation.

Formal guarantees, one test of the same name each
  same_lengths_and_differences   |row_i| = min(|g_i|, C) and |row_i − row_j| = |ḡ_i − ḡ_j|
  same_mean                      without noise the way back gives Σ u clip(g_i)
  same_noise_inside_the_span     the noise's covariance is s² times the projection onto the span
  noise_energy_is_the_rank       E|noise|² = s²·r, where the plain form has s²·d
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

from isonomy.common.base.errors import ConfigError
from isonomy.common.sums.oracle import GroupOracle, Release
from isonomy.company.gradient.per_sample.ghost import ChunkGradients
from isonomy.company.gradient.sums._subspace import ROUNDING, Subspace
from isonomy.company.gradient.sums.filled import FILL
from isonomy.company.gradient.sums.primal import CentredGradients, private_sum

U = [0.7, -0.3]


def gradients(people: int, size: int, rank: int, seed: int) -> Tensor:
    """(b, d) rows of a given rank, of very different lengths, with a zero and a repeated row."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(people, rank)) @ rng.normal(size=(rank, size))
    rows *= 10.0 ** rng.uniform(-2, 1, size=(people, 1))
    if people > 3:
        rows[1] = 0.0
        rows[2] = rows[3]
    return torch.from_numpy(rows)


def clipped(rows: Tensor, norm: float) -> Tensor:
    return rows * (norm / rows.norm(dim=1, keepdim=True).clamp(min=1e-300)).clamp(max=1.0)


CASES = st.tuples(st.integers(1, 12), st.integers(1, 20), st.integers(1, 12), st.integers(0, 99))


@settings(deadline=None, max_examples=60)
@given(case=CASES, norm=st.floats(0.05, 20))
def test_same_lengths_and_differences(case: tuple[int, int, int, int], norm: float) -> None:
    people, size, rank, seed = case
    rows = gradients(people, size, rank, seed)
    subspace = Subspace.of((rows @ rows.T).numpy(), norm=norm)
    expected = clipped(rows, norm)
    assert subspace.rank <= min(people, max(1, min(size, rank)))
    lengths = np.linalg.norm(subspace.rows, axis=1)
    np.testing.assert_allclose(lengths, expected.norm(dim=1), rtol=1e-6, atol=1e-6 * norm)
    assert (lengths <= norm).all()
    apart = torch.cdist(torch.from_numpy(subspace.rows), torch.from_numpy(subspace.rows))
    truth = torch.cdist(expected, expected, compute_mode="donot_use_mm_for_euclid_dist")
    torch.testing.assert_close(apart, truth, rtol=1e-5, atol=3e-6 * norm)
    assert subspace.clipped == int((rows.norm(dim=1) > norm).sum())


@settings(deadline=None, max_examples=60)
@given(case=CASES, norm=st.floats(0.05, 20))
def test_same_mean(case: tuple[int, int, int, int], norm: float) -> None:
    people, size, rank, seed = case
    rows = gradients(people, size, rank, seed)
    subspace = Subspace.of((rows @ rows.T).numpy(), norm=norm)
    u = torch.from_numpy(np.random.default_rng(seed).normal(size=people))
    back = torch.from_numpy(subspace.back(u.numpy() @ subspace.rows)) @ rows  # as combine() does
    expected = u @ clipped(rows, norm)
    torch.testing.assert_close(back, expected, rtol=1e-5, atol=2e-6 * norm * people)


@settings(deadline=None, max_examples=60)
@given(case=CASES, norm=st.floats(0.05, 20))
def test_same_noise_inside_the_span(case: tuple[int, int, int, int], norm: float) -> None:
    """Noise z ~ N(0, I_r) returns as Q z with orthonormal Q whose columns lie in the span."""
    people, size, rank, seed = case
    rows = gradients(people, size, rank, seed)
    if not rows.any():
        return
    subspace = Subspace.of((rows @ rows.T).numpy(), norm=norm)
    q = torch.from_numpy(np.stack([subspace.back(e) for e in np.eye(subspace.rank)])) @ rows
    torch.testing.assert_close(q @ q.T, torch.eye(subspace.rank).double(), rtol=0, atol=2e-3)
    inside = torch.linalg.lstsq(rows.T, q.T, driver="gelsd").solution.T @ rows
    torch.testing.assert_close(inside, q, rtol=0, atol=2e-3)


def test_nobody_has_a_gradient() -> None:
    subspace = Subspace.of(np.zeros((4, 4)), norm=1.0)
    assert subspace.rows.shape == (4, 1)
    assert not subspace.rows.any()
    assert not subspace.back(np.array([3.0])).any()


def test_at_least_one_direction_is_kept() -> None:
    subspace = Subspace.of(np.eye(8), norm=10.0, floor=np.full(8, 0.999))
    assert subspace.rank >= 1
    answer = np.zeros(subspace.rank)
    answer[0] = 3.0
    assert float(np.linalg.norm(subspace.back(answer))) == pytest.approx(3.0)


def test_single_precision_leaves_out_rounding_only() -> None:
    rows = gradients(40, 300, 40, 5).float()
    exact = Subspace.of((rows.double() @ rows.double().T).numpy(), norm=1.0)
    gram = (rows @ rows.T).double().numpy()
    rough = Subspace.of(gram, norm=1.0, floor=1e-6 * gram.diagonal())
    assert rough.rank <= exact.rank
    lost = (exact.rows**2).sum(axis=1) - (rough.rows**2).sum(axis=1)
    assert lost.max() < 2e-6
    assert np.isfinite(rough.back(np.ones(rough.rank))).all()


# --- Through the oracle ------------------------------------------------------------------------


def chunk(size: int, people: int, seed: int = 0) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, size), nn.Tanh(), nn.Linear(size, 2)).double()
    return model, torch.randn(people, 5).double()


def score(outputs: Tensor) -> Tensor:
    return torch.softmax(outputs, dim=1)[:, 1]


def flat(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])


def local(folder: Path, groups: np.ndarray, name: str = "ledger", seed: int = 0) -> GroupOracle:
    table = {"sex": labels(groups, ("F", "M"))}
    return federation(
        folder, table, {"sex": ("F", "M")}, epsilon=3000.0, seed=seed, name=name
    ).local()


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


@pytest.mark.parametrize("size", [2, 30])
def test_private_sum_is_the_weighted_sum_of_clipped_gradients(tmp_path: Path, size: int) -> None:
    model, inputs = chunk(size, 24)
    groups = np.arange(60) % 3 % 2
    people = np.sort(np.random.default_rng(0).permutation(60)[:24])
    grads = ChunkGradients.of(model, score, inputs, people)
    plain = grads.size <= 24
    assert plain == (size == 2)
    norm = float(np.median(grads.lengths))
    answer, release = ask(local(tmp_path, groups), grads, norm, sigma=0.02 * norm)
    expected = torch.tensor(U).double()[groups[people]] @ clipped(grads.rows(), norm)
    assert release.values.shape == ((grads.size,) if plain else (24,))
    assert [part.shape for part in answer] == [p.shape for p in model.parameters()]
    error = (flat(answer) - expected).norm()
    assert float(error) < 0.02 * norm * 1.5 * len(release.values) ** 0.5  # noise, nothing else
    assert float(error) > 0.0


def test_noise_energy_is_the_rank(tmp_path: Path) -> None:
    """Noise of 60 answers of the same gradient: s²·r in the span, s²·d in the plain form."""
    model, inputs = chunk(30, 16)
    groups = np.arange(16) % 2
    oracle = local(tmp_path, groups)
    grads = ChunkGradients.of(model, score, inputs, np.arange(16))
    norm, repeats = float(grads.lengths.max()) * 2, 60
    sigma = 5 * norm
    truth = torch.tensor(U).double()[groups] @ grads.rows()
    span, plain = [], []
    for _ in range(repeats):
        answer, release = ask(oracle, grads, norm, fill=None, sigma=sigma)
        span.append((flat(answer) - truth).numpy())
        whole = oracle.weighted_sum(grads.rows().numpy(), U, norm=norm, sigma=sigma)
        plain.append(whole.values - truth.numpy())
    rank, size = len(release.values), grads.size
    assert (rank, size) == (16, 242)
    for noise, energy in ((np.array(span), rank), (np.array(plain), size)):
        ratio = (noise**2).sum() / (sigma**2 * energy * repeats)
        assert abs(ratio - 1) < 5 * (2 / (energy * repeats)) ** 0.5  # 5 deviations of a χ²
    # the same noise inside the span: the plain form's, projected
    basis = torch.linalg.svd(grads.rows(), full_matrices=False).Vh.numpy()
    inside = (np.array(plain) @ basis.T) / sigma
    assert abs((inside**2).mean() - 1) < 5 * (2 / inside.size) ** 0.5
    outside = np.array(span) - np.array(span) @ basis.T @ basis
    assert np.abs(outside).max() < 1e-6 * sigma


def test_repeated_people_are_clipped_as_one(tmp_path: Path) -> None:
    model, inputs = chunk(30, 12)
    people = np.array([3, 3, 0, 0, 0, 5, 7, 7, 1, 2, 9, 9])
    groups = np.arange(10) % 2
    grads = ChunkGradients.of(model, score, inputs, people)
    assert grads.people is not None
    norm = float(np.median(grads.lengths))
    answer, release = ask(local(tmp_path, groups), grads, norm, sigma=0.02 * norm)
    expected = torch.tensor(U).double()[groups[grads.people]] @ clipped(grads.rows(), norm)
    assert float((flat(answer) - expected).norm()) < 0.12 * norm
    assert release.clipped == 0  # clipped before, a hair inside


def test_people_must_be_named(tmp_path: Path) -> None:
    model, inputs = chunk(30, 4)
    oracle = local(tmp_path, np.arange(10) % 2)
    with pytest.raises(ConfigError, match="name the people"):
        ask(oracle, ChunkGradients.of(model, score, inputs), 1.0, sigma=1.0)
    assert oracle.budget.spent_units == 0


def test_encrypted_gradients_are_the_local_ones_bit_for_bit(tmp_path: Path) -> None:
    model, inputs = chunk(30, 20)
    groups = {"sex": labels(np.arange(20) % 2, ("F", "M"))}
    answers = []
    for name in ("local", "encrypted"):
        made = federation(tmp_path, groups, {"sex": ("F", "M")}, seed=4, name=name)
        oracle = made.local() if name == "local" else made.company()
        grads = ChunkGradients.of(model, score, inputs, np.arange(20))
        answers.append(flat(ask(oracle, grads, 0.1, share=0.1)[0]))
    assert torch.equal(*answers)


def test_nearly_equal_gradients_survive_centring(tmp_path: Path) -> None:
    """A deep, untrained net in single precision: what people differ in is 10⁻⁴ of what they share.

    The Gram matrix of the differences is then below single precision's rounding.
    """
    torch.manual_seed(0)
    wide = [part for _ in range(9) for part in (nn.Linear(40, 40), nn.ReLU())]
    model = nn.Sequential(nn.Linear(5, 40), nn.ReLU(), *wide, nn.Linear(40, 2))
    inputs, people = torch.randn(30, 5), np.arange(30)
    groups = people % 2
    rows = ChunkGradients.of(model, score, inputs).rows()
    rows = rows - rows.mean(dim=0)
    lengths = rows.norm(dim=1)
    assert float(lengths.median()) < 1e-2 * float(
        np.median(ChunkGradients.of(model, score, inputs).lengths)
    )
    own = ChunkGradients.of(model, score, inputs, people)
    grads = CentredGradients(own, torch.ones(30).double())
    np.testing.assert_allclose(grads.lengths, lengths, rtol=1e-3)
    norm = float(lengths.median())
    answer = private_sum(
        local(tmp_path, groups),
        grads,
        U,
        norm=norm,
        attribute="sex",
        noise={"sigma": 0.02},
        fill=None,
        label={"purpose": "test"},
    ).tensors()
    expected = torch.tensor(U).double()[groups] @ clipped(rows, norm)
    assert float((flat(answer) - expected).norm()) < 0.3 * norm


@pytest.mark.parametrize("shift", [0.0, 5.0])
def test_centring_loses_nothing_in_single_precision(shift: float) -> None:
    """Large chunks, and inputs that have much in common: the way back is as exact as before."""
    torch.manual_seed(0)
    people, layers = 400, (nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
    inner = ChunkGradients.of(
        nn.Sequential(*layers, nn.Linear(48, 2)), score, torch.randn(people, 20) + shift
    )
    grads = CentredGradients(inner, torch.ones(people).double())
    rows = inner.rows()
    rows = rows - rows.mean(dim=0)
    norm = float(rows.norm(dim=1).max())
    span = Subspace.of(grads.gram, norm=norm, floor=ROUNDING * inner.lengths**2)
    u = torch.tensor(U).double()[torch.arange(people) % 2]
    found = flat(grads.combine(span.back(span.rows.T @ u.numpy()), double=True))
    expected = u @ rows
    assert float((found - expected).norm()) < 1e-4 * float(expected.norm())
