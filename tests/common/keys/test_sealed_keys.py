"""Keys that a passphrase seals."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from isonomy.common.base.errors import ConfigError
from isonomy.common.keys.party import PartyKeys
from isonomy.common.keys.sealed_keys import VARIABLE, is_sealed, read_key, seal_key
from isonomy.company.cli.company import app

OLD, NEW = "a long passphrase", "another passphrase"


def passphrase_file(folder: Path, text: str) -> Path:
    path = folder / f"{text[:3]}.txt"
    path.touch(0o600)
    path.write_text(text + "\n")
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    PartyKeys.create(tmp_path / "home" / "keys", "company", "company")
    return tmp_path / "home"


def seal(home: Path, path: Path) -> int:
    command = ["seal-keys", "--home", str(home), "--passphrase-file", str(path)]
    result = CliRunner().invoke(app, command)
    return 1 if result.exception is not None else 0


def test_sealed_keys_are_the_same_keys(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, plain = PartyKeys.load(home / "keys").card(), read_key(home / "keys/identity.key")
    assert seal(home, passphrase_file(tmp_path, OLD)) == 0
    path = home / "keys" / "identity.key"
    assert is_sealed(path)
    assert plain not in path.read_bytes()
    with pytest.raises(ConfigError, match=VARIABLE):
        PartyKeys.load(home / "keys")
    monkeypatch.setenv(VARIABLE, str(passphrase_file(tmp_path, OLD)))
    assert PartyKeys.load(home / "keys").card() == card
    assert seal(home, passphrase_file(tmp_path, NEW)) == 0  # opened by the old one, sealed anew
    with pytest.raises(ConfigError, match="does not open"):
        PartyKeys.load(home / "keys")
    assert seal(home, passphrase_file(tmp_path, OLD)) == 1  # whoever lacks it changes nothing
    monkeypatch.setenv(VARIABLE, str(passphrase_file(tmp_path, NEW)))
    assert PartyKeys.load(home / "keys").card() == card


def test_a_short_passphrase_changes_nothing(home: Path) -> None:
    before = (home / "keys/identity.key").read_bytes()
    with pytest.raises(ConfigError, match="12 characters"):
        seal_key(home / "keys" / "identity.key", "short")
    assert (home / "keys/identity.key").read_bytes() == before


@pytest.mark.parametrize("place", [10, 60])
def test_a_changed_byte_shows(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    path = home / "keys" / "identity.key"
    seal_key(path, OLD)
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    monkeypatch.setenv(VARIABLE, str(passphrase_file(tmp_path, OLD)))
    with pytest.raises(ConfigError):
        read_key(path)
