"""A feature map from a data dictionary."""

from __future__ import annotations

from pathlib import Path

import pytest

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.company.federation.feature_maps import read_description

TEXT = "name,low,high,typical,spread,levels\nage,18,90,40,,\nhome,,,,,rent | own\n"


def described(folder: Path, text: str | bytes) -> Path:
    path = folder / "columns.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_description_makes_a_map(tmp_path: Path) -> None:
    features = read_description(described(tmp_path, TEXT))
    age, home = features.columns
    assert (age.low, age.high, age.typical, age.spread) == ("18", "90", "40", "")
    assert home.levels == ("rent", "own")
    assert features == read_description(described(tmp_path, TEXT)), "the seed is its own hash"
    assert read_description(described(tmp_path, TEXT), seed=5).seed == 5
    excel = b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode()
    assert read_description(described(tmp_path, excel)) == features


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name,low,high\n",
        "age,18,90\n",
        "name,colour\nage,red\n",
        "name,low,high\nage,18\n",
        "name,low,high\nage,18,90,7\n",
        "name,low,high\nage,90,18\n",
        "name,low,high\nage,18,90\nage,18,90\n",
        b"name,low,high\n\xff\xfe,1,2\n",
    ],
)
def test_what_is_no_description(tmp_path: Path, text: str | bytes) -> None:
    with pytest.raises((DataError, ConfigError)):
        read_description(described(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises((DataError, ConfigError)):
        read_description(tmp_path / "no.csv")
