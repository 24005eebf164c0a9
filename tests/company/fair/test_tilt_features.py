"""φ and the table coder: bounded, the same for new people, total on odd columns."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isonomy.common.base.errors import DataError
from isonomy.company.fair.inputs import features
from isonomy.company.fair.inputs.columns import ColumnCoder, Columns
from isonomy.company.fair.inputs.features import FeatureMap, fit_features
from isonomy.company.fair.inputs.people import People
from isonomy.company.fair.inputs.state import Arrays, pack, unpack


def table(n: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "number": rng.normal(5, 2, n),
            "binary": rng.integers(0, 2, n) * 7,
            "flag": rng.random(n) < 0.5,
            "text": rng.choice(["a", "b", "c"], n),
            "category": pd.Categorical(rng.choice(["x", "y"], n)),
            "constant": 1,
            "gap": np.where(rng.random(n) < 0.3, np.nan, rng.normal(0, 1, n)),
        }
    )


def test_each_column_is_coded_as_the_table_says() -> None:
    coder = ColumnCoder.fit(table())
    widths = {code.name: code.width for code in coder.codes}
    assert widths == {
        "number": 1, "binary": 1, "flag": 1, "text": 3, "category": 2, "constant": 1, "gap": 2
    }  # fmt: skip
    coded = coder.code(table())
    assert np.isfinite(coded).all()
    assert np.abs(coded).max() <= 3
    assert coded[:, 0].std() == pytest.approx(1, abs=0.05)
    assert set(np.round(np.ptp(np.unique(coded[:, 1])), 9).reshape(-1)) == {1.0}


@pytest.mark.parametrize("many", [False, True])
def test_rows_are_bounded_for_everybody(many: bool) -> None:
    score = np.linspace(0, 1, 300)
    phi = fit_features(table(), score, np.random.default_rng(0), many=many)
    strange = table().assign(number=1e12, text="never seen", gap=np.inf)
    for X in (table(), strange):
        rows = phi.rows(X, score)
        assert rows.shape == (300, phi.width)
        assert np.linalg.norm(rows, axis=1).max() <= 1 + 1e-9


def test_without_bins_is_a_part_of_the_same_columns() -> None:
    score = np.linspace(0, 1, 300)
    phi = fit_features(table(), score, np.random.default_rng(0))
    full, part = phi.rows(table(), score), phi.without_bins().rows(table())
    np.testing.assert_array_equal(full[:, : part.shape[1]], part)
    np.testing.assert_array_equal(phi.without_bins().columns(full), part)


def test_many_groups_have_columns_of_equal_variance_and_no_waves() -> None:
    score = np.linspace(0, 1, 300)
    phi = fit_features(table(), score, np.random.default_rng(0), many=True)
    inner = replace(phi, limit=np.inf)._x_part(phi.coder.code(table()))
    assert inner.shape[1] == 1 + phi.coder.width == phi.width - features.BINS
    varied = inner[:, inner.std(axis=0) > 1e-9]
    np.testing.assert_allclose(varied.std(axis=0), 1 / np.sqrt(varied.shape[1]), rtol=1e-9)


@pytest.mark.parametrize("many", [False, True])
def test_state_makes_the_same_map(many: bool) -> None:
    score = np.linspace(0, 1, 300)
    phi = fit_features(table(), score, np.random.default_rng(0), many=many)
    arrays = Arrays()
    again = unpack(FeatureMap, json.loads(json.dumps(pack(phi, arrays))), arrays)
    np.testing.assert_array_equal(again.rows(table(), score), phi.rows(table(), score))


def test_a_very_wide_table_is_projected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "MAX_LINEAR", 4)
    score = np.linspace(0, 1, 300)
    phi = fit_features(table(), score, np.random.default_rng(0))
    assert phi.width == 1 + 4 + features.FOURIER + features.BINS


def test_a_constant_score_makes_one_bin() -> None:
    phi = fit_features(table(), np.full(300, 0.5), np.random.default_rng(0))
    assert np.isfinite(phi.rows(table(), np.linspace(0, 1, 300))).all()


def test_columns_that_went_missing_or_changed_are_named() -> None:
    coder = ColumnCoder.fit(table())
    with pytest.raises(DataError, match="number"):
        coder.code(table().drop(columns="number"))
    with pytest.raises(DataError, match="held numbers"):
        coder.code(table().assign(number="text"))


def test_empty_tables_and_double_names_are_refused() -> None:
    with pytest.raises(DataError, match="shape"):
        Columns.of(np.zeros((0, 3)))
    with pytest.raises(DataError, match="same name"):
        Columns.of(pd.DataFrame([[1, 2]], columns=["a", "a"]))


def test_many_levels_share_a_column() -> None:
    frame = pd.DataFrame({"town": [f"t{i % 80}" for i in range(400)]})
    coder = ColumnCoder.fit(frame)
    assert coder.width == 51
    np.testing.assert_array_equal(coder.code(frame).sum(axis=1), 1)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_every_person_weighs_one(rows: list[tuple[int, int]]) -> None:
    position, stratum = np.array(rows).T
    people = People.of(position, stratum)
    ones, positions = people.by_person(people.fold(np.ones((len(rows), 1))))
    np.testing.assert_allclose(ones, 1)
    assert sorted(positions.tolist()) == sorted(set(position.tolist()))
    u = np.random.default_rng(0).normal(size=(len(rows), 1))
    g = np.random.default_rng(1).normal(size=people.entries)
    np.testing.assert_allclose(people.unfold(g) @ u, g @ people.fold(u))
