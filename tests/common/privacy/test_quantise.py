"""Integer clipping: one test per guarantee of isonomy.common.privacy.quantise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from isonomy.common.base.errors import DataError
from isonomy.common.privacy.quantise import (
    checked_rows,
    clip_rows,
    quantise,
    quantise_weighted,
    sum_by_person,
)

BOUND = 1 << 20
FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=64)
ROWS = hnp.arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=FLOATS)
NORMS = st.floats(1e-300, 1e300)


def exact_squares(rows: np.ndarray) -> list[int]:
    return [sum(int(x) ** 2 for x in row) for row in rows]


@given(ROWS, NORMS)
def test_norm_never_exceeds_bound(rows: np.ndarray, norm: float) -> None:
    assert max(exact_squares(quantise(rows, norm, BOUND).rows)) <= BOUND**2
    by_l1 = quantise(rows, norm, BOUND, order=1).rows
    assert max(sum(abs(int(x)) for x in row) for row in by_l1) <= BOUND


@given(
    st.integers(1, 5).flatmap(
        lambda m: hnp.arrays(np.float64, (4, m), elements=st.floats(-1e6, 1e6))
    ),
    hnp.arrays(np.float64, st.integers(2, 5), elements=st.floats(-1e3, 1e3)),
    st.floats(1e-3, 1e6),
)
def test_pairwise_differences_never_exceed_bound(
    rows: np.ndarray, weights: np.ndarray, norm: float
) -> None:
    if weights.max() == weights.min():
        return
    differences = quantise_weighted(rows, weights, norm, BOUND).rows.astype(object)
    relative = [*differences, 0 * differences[0]]
    for left in relative:
        for right in relative:
            assert max(exact_squares(left - right)) <= BOUND**2


@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 5), st.integers(1, 9)),
        elements=st.floats(allow_nan=False, allow_infinity=False, width=32),
    ),
    st.sampled_from([1e-150, 1e-30, 1e-3, 1.0, 7.3, 1e30]),
    st.booleans(),
)
def test_single_precision_never_exceeds_the_bound_either(
    rows: np.ndarray, norm: float, swap: bool
) -> None:
    weights = np.array([0.3, -0.2] if swap else [-0.2, 0.3])
    made = quantise_weighted(rows, weights, norm, BOUND)
    assert max(exact_squares(made.rows[0].astype(object))) <= BOUND**2


def test_single_precision_gives_the_same_integers_but_for_rounding() -> None:
    """Rows as long as the bound, and a hair shorter and longer, wide and narrow, by two slices."""
    rng = np.random.default_rng(5)
    for columns, stretch in ((3, 1.0), (255, 1.0 - 2.0**-14), (255, 1.0), (255, 1.0 + 1e-6)):
        rows = np.tril(rng.normal(size=(255, columns)))
        rows *= stretch / np.linalg.norm(rows, axis=1, keepdims=True)
        single = quantise_weighted(rows.astype(np.float32), np.array([1.0, -0.5]), 1.0, BOUND)
        double = quantise_weighted(rows, np.array([1.0, -0.5]), 1.0, BOUND)
        assert max(exact_squares(single.rows[0].astype(object))) <= BOUND**2
        assert np.abs(single.rows - double.rows).max() <= 2  # differences are twice the integers
        # what is left of the totals: Σ q exactly, and Σ of the rows
        assert (single.last_total == -single.rows[0].sum(axis=0, dtype=np.int64) // 2).all()
        # a row too long by less than truncation takes off stays as it is, in double precision
        rtol = max(stretch - 1.0, 1e-7)
        np.testing.assert_allclose(single.clipped_total, double.clipped_total, rtol, atol=2e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_integers_do_not_depend_on_the_other_rows(dtype: type) -> None:
    """A row that is too long, or taken out, changes nobody else's integers by a single unit."""
    rng = np.random.default_rng(8)
    for norm in (0.3, 1.7):
        rows = rng.normal(size=(60, 10))
        rows *= 0.9 * norm / np.linalg.norm(rows, axis=1, keepdims=True)
        rows[20:40] = np.rint(rows[20:40] / norm * BOUND / 2) * norm / (BOUND / 2)  # whole units
        rows[0] *= 2
        given = rows.astype(dtype)
        both = quantise_weighted(given, np.array([0.7, -0.3]), norm, BOUND).rows[0]
        given[0] = 0.0
        alone = quantise_weighted(given, np.array([0.7, -0.3]), norm, BOUND).rows[0]
        assert (both[1:] == alone[1:]).all()


def test_a_row_as_long_as_the_norm_loses_nothing() -> None:
    for norm in np.random.default_rng(9).uniform(0.1, 3, size=200):
        made = quantise_weighted(np.array([[norm]]), np.array([0.7, -0.3]), float(norm), BOUND)
        assert made.rows[0, 0, 0] == BOUND


@pytest.mark.parametrize("weights", [(-0.3, 0.4), (0.1, 0.3), (7.1, -1e-3), (1 / 3, 1e3)])
def test_two_groups_mirror_each_other(weights: tuple[float, float]) -> None:
    """The extreme weights are ±½ of the range exactly, whatever floats make of the middle."""
    rows = np.random.default_rng(1).normal(size=(40, 6))
    made = quantise_weighted(rows, np.array(weights), 3.0, BOUND)
    scaled, clipped = clip_rows(rows, 3.0, 2)
    first = np.trunc(scaled * (BOUND / 2 if weights[0] > weights[1] else -BOUND / 2))
    assert made.clipped == clipped > 0
    assert np.array_equal(made.rows[0], 2 * first)
    assert np.array_equal(made.last_total, -first.sum(axis=0))
    np.testing.assert_allclose(made.clipped_total, scaled.sum(axis=0), atol=1e-12)


def test_scaling_while_clipping_loses_nothing() -> None:
    rows = np.random.default_rng(2).normal(size=(50, 5)) * 10.0 ** np.arange(-2, 3)
    for norm in (1e9, 0.7, 1e-120):  # nobody is clipped, some are, a norm for the careful way
        plain, over = clip_rows(rows, norm, 2)
        scaled, same = clip_rows(rows, norm, 2, -(2.0**19))
        assert over == same
        assert np.array_equal(scaled, plain * -(2.0**19))


def test_rows_within_the_norm_are_only_truncated() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 7))
    rows *= (rng.random(500) / np.linalg.norm(rows, axis=1))[:, None]
    result = quantise(rows, 1.0, BOUND)
    assert result.clipped == 0
    moved = rows * BOUND - result.rows
    assert (np.abs(moved) < 1).all()
    assert (np.abs(result.rows) <= np.abs(rows * BOUND)).all()


def test_rows_over_the_bound_are_shortened_and_counted() -> None:
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [1e308, 1e308]])
    result = quantise(rows, 1.0, BOUND)
    assert result.clipped == 2
    assert result.rows[0].tolist() == [int(0.6 * BOUND), int(0.8 * BOUND)]
    assert result.rows[2].tolist() == [0, 0]
    assert abs(int(result.rows[3, 0]) - BOUND / np.sqrt(2)) < 2


def test_chunks_give_what_one_pass_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, weights = np.random.default_rng(1).normal(size=(300, 5)), np.array([0.3, -1.0, 2.0])
    whole, weighted = quantise(rows, 1.0, BOUND), quantise_weighted(rows, weights, 1.0, BOUND)
    monkeypatch.setattr("isonomy.common.privacy.quantise._CHUNK_CELLS", 64)
    assert np.array_equal(quantise(rows, 1.0, BOUND).rows, whole.rows)
    again = quantise_weighted(rows, weights, 1.0, BOUND)
    assert np.array_equal(again.rows, weighted.rows)
    assert np.array_equal(again.last_total, weighted.last_total)


def test_weighted_rows_stand_for_the_weights() -> None:
    rng = np.random.default_rng(2)
    rows, weights = rng.normal(size=(40, 3)), np.array([0.5, -2.0, 1.0, 4.0])
    rows /= np.linalg.norm(rows, axis=1)[:, None] * 1.001
    result = quantise_weighted(rows, weights, 1.0, BOUND)
    for group in range(3):
        expected = (weights[group] - weights[3]) / 6.0 * rows * BOUND
        assert np.abs(result.rows[group] - expected).max() < 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1.0, np.nan]], "NaN or infinity"),
        ([[np.inf]], "NaN or infinity"),
        (np.zeros((0, 3)), "at least 1"),
        (np.zeros((3, 0)), "at least 1"),
        (np.zeros((2, 2, 2)), "people × columns"),
        ([["a"]], "must be numbers"),
    ],
)
def test_bad_rows_are_refused(rows: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        checked_rows(rows)


def test_rows_of_one_person_are_added_up_before_clipping() -> None:
    rows = np.array([[1.0], [2.0], [4.0], [8.0]])
    totals, people = sum_by_person(rows, np.array([5, 2, 5, 9]))
    assert people.tolist() == [2, 5, 9]
    assert totals.tolist() == [[2.0], [5.0], [8.0]]
