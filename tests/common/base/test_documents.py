"""Files from elsewhere: read in bounds, refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from isonomy.common.base.arrays import read_arrays
from isonomy.common.base.documents import parse_json, parse_toml, read_bounded
from isonomy.common.base.errors import ConfigError, DataError

DEEP = b"[" * 100_000


@pytest.mark.parametrize("raw", [DEEP, DEEP + b"]" * 100_000, b"", b"\xff", b"{", b"9" * 5000])
def test_what_is_no_json_or_toml_is_refused_by_name(raw: bytes) -> None:
    with pytest.raises(DataError, match="the card is not JSON"):
        parse_json(raw, "the card")
    with pytest.raises(ConfigError, match=r"home.toml is not TOML"):
        parse_toml(b"a = " + raw, "home.toml")


def test_one_byte_more_than_allowed_shows_that_a_file_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 3_000_000)
    assert len(read_bounded(path, 2_500_000)) == 2_500_001
    assert len(read_bounded(path, 3_000_000)) == 3_000_000


def test_texts_of_an_array_are_made_of_characters(tmp_path: Path) -> None:
    numbers = np.array([0x7FFFFFFF, 65], "<u4")
    np.savez(tmp_path / "a.npz", ids=numbers.view("<U1"))
    with pytest.raises(DataError, match="plain arrays"):
        read_arrays(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", ids=np.array(["a", "é"]))
    assert read_arrays(tmp_path / "b.npz")["ids"].tolist() == ["a", "é"]
