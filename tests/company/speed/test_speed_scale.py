"""`isonomy bench scale` measures what it says; the ledger does not grow with people per answer."""

from __future__ import annotations

import pytest

from isonomy.common.base.errors import ConfigError
from isonomy.company.speed.scale import PHASES, _row, measure, tables


def test_rows_of_every_number_of_people() -> None:
    result = measure(lambda *_: None, [3_000, 1_000], ["answers"])
    rows = result["rows"]
    assert [row["people"] for row in rows] == [1_000, 3_000]
    assert all(row["seconds"] > 0 <= row["peak_bytes_per_person"] for row in rows)
    small, large = (row["bytes_per_person"] * row["people"] for row in rows)
    assert large == pytest.approx(small, rel=0.02)  # the record says how many, not who
    assert next(tables(result)).row_count == 2


def test_what_cannot_be_measured_is_refused() -> None:
    for people, phases in (([999], []), ([1_000], ["nap"])):
        with pytest.raises(ConfigError, match=next(iter(PHASES))):
            measure(lambda *_: None, people, phases)


@pytest.mark.parametrize("phase", ["enrolment", "answers, ledger alone", "openings"])
def test_phases_that_no_other_benchmark_has(phase: str) -> None:
    row = _row(phase, 1_500)
    assert (row["phase"], row["people"]) == (phase, 1_500)
    assert row["seconds"] > 0 <= row["peak_bytes_per_person"]
    if phase == "openings":  # 16 columns of 4 bytes are kept of everybody
        assert 64 < row["bytes_per_person"] < 80
