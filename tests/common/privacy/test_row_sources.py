"""Rows that are made anew are the rows, on every carrier; rows that change are not sent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from federation import Federation, federation, labels

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import DataError, ReplayRefused
from isonomy.common.crypto.params import DEFAULT_PARAMETERS
from isonomy.common.pads.key_store import KeyStore
from isonomy.common.privacy.quantise import quantise
from isonomy.common.privacy.row_sources import RowSource, StreamedRows, same_rows
from isonomy.common.sums.openings import FolderOpenings, row_bytes
from isonomy.common.sums.oracle import GroupOracle

PEOPLE, BOUND = 60, DEFAULT_PARAMETERS.row_bound
ROWS = np.random.default_rng(0).normal(size=(PEOPLE, 5))
SOURCE = RowSource((PEOPLE, 5), 7, lambda part: ROWS[part])


def test_streamed_rows_are_the_rows() -> None:
    whole, streamed = quantise(ROWS, 2.0, BOUND), StreamedRows(SOURCE, 2.0, BOUND, 2)
    assert streamed.clipped == whole.clipped > 0
    np.testing.assert_array_equal(streamed.total, whole.rows.sum(axis=0))
    assert same_rows(streamed, whole.rows)
    assert not same_rows(streamed, np.roll(whole.rows, 1))
    for start, stop in [(0, 0), (0, 1), (3, 7), (6, 30), (55, 60), (58, 99)]:
        np.testing.assert_array_equal(streamed[start:stop], whole.rows[start:stop])
    for drawn in ([], [0], [6, 7, 20, 59]):
        numbers = np.array(drawn, np.int64)
        np.testing.assert_array_equal(streamed[numbers], whole.rows[numbers])
    assert hash_bytes("d", row_bytes(streamed)) == hash_bytes("d", row_bytes(whole.rows))
    dropped = np.arange(PEOPLE) % 3 == 0
    without = StreamedRows(SOURCE.without(dropped), 2.0, BOUND, 2)
    np.testing.assert_array_equal(without, np.where(dropped[:, None], 0, whole.rows))


def test_rows_that_change_between_two_readings_are_refused() -> None:
    rows = ROWS.copy()
    streamed = StreamedRows(RowSource((PEOPLE, 5), 7, lambda part: rows[part]), 2.0, BOUND, 2)
    rows[20] += 0.5
    streamed[:14]  # nobody of theirs
    with pytest.raises(DataError, match="came out differently"):
        streamed[14:21]
    rows[40] = np.nan
    with pytest.raises(DataError, match="NaN"):
        StreamedRows(RowSource((PEOPLE, 5), 7, lambda part: rows[part]), 2.0, BOUND, 2)


def fed_at(folder: Path, name: str) -> Federation:
    attributes = {"a": labels(np.random.default_rng(1).integers(0, 3, PEOPLE), "xyz")}
    return federation(folder, attributes, {"a": "xyz"}, name=name)


def ask(oracle: GroupOracle, rows: RowSource | np.ndarray, some: RowSource | np.ndarray) -> bytes:
    whole = oracle.blind_sum(rows, norm=2, share=0.1)
    half = oracle.blind_sum(some, norm=2, share=0.1, people=np.arange(0, PEOPLE, 2))
    return whole.values.tobytes() + half.values.tobytes()


def test_a_source_releases_the_bits_of_an_array_on_every_carrier(tmp_path: Path) -> None:
    half = RowSource((PEOPLE // 2, 5), 7, lambda part: ROWS[::2][part])
    expected = ask(fed_at(tmp_path, "array").local(), ROWS, ROWS[::2])
    padded = fed_at(tmp_path, "pads")
    padded.answer_by_pads()
    keys = KeyStore(PEOPLE, company=True)
    oracles = [
        fed_at(tmp_path, "local").local(),
        fed_at(tmp_path, "bfv").company(FolderOpenings(tmp_path / "bfv")),
        padded.company_by_pads(FolderOpenings(tmp_path / "pads"), keys),
    ]
    for oracle in oracles:
        assert ask(oracle, SOURCE, half) == expected
    # A script that runs again gets the same answers for the same rows, and none for others.
    again = padded.company_by_pads(FolderOpenings(tmp_path / "pads"), keys)
    assert ask(again, SOURCE, half) == expected
    other = padded.company_by_pads(FolderOpenings(tmp_path / "pads"), keys)
    with pytest.raises(ReplayRefused):
        ask(other, RowSource((PEOPLE, 5), 7, lambda part: ROWS[part] * 0.5), half)


def test_a_source_names_its_people_in_order(tmp_path: Path) -> None:
    oracle = fed_at(tmp_path, "order").local()
    with pytest.raises(DataError, match="ascending order"):
        oracle.blind_sum(SOURCE, norm=2, share=0.1, people=np.arange(PEOPLE)[::-1])
    with pytest.raises(DataError, match="ascending order"):
        oracle.blind_sum(SOURCE, norm=2, share=0.1, people=[1, 2])
    assert oracle.budget.spent_units == 0
