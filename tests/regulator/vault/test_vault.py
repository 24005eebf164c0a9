"""The vault at rest: nothing readable, nothing changeable, nothing movable to another file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from regulator_kit import GROUPS, Regulator, fill_vault

from isonomy.common.base.errors import ConfigError, IsonomyError, UnknownSchema
from isonomy.regulator.config.faults import VaultLocked, VaultTampered
from isonomy.regulator.upkeep.doctor import examine
from isonomy.regulator.vault import sealed_file
from isonomy.regulator.vault.sealed_file import Header, open_sealed, shred, write_sealed
from isonomy.regulator.vault.unlock import (
    Derivation,
    Secret,
    new_secret,
    read_secret,
    secret_from_file,
)
from isonomy.regulator.vault.vault import VaultTable

WEAK = Derivation(b"s" * 16, 10)
SECRET = Secret(b"a passphrase")


def sealed(path: Path, payload: bytes, **changes: object) -> Path:
    fields: dict[str, Any] = {"what": "vault", "schema": 1, "derivation": WEAK, "public": {}}
    header = Header(**{**fields, **changes})
    write_sealed(path, payload, header, SECRET, overwrite=True)
    return path


@pytest.mark.parametrize("size", [0, 1, 100, 1 << 12, (1 << 12) + 1, 3 << 12])
def test_any_size_comes_back(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_file, "CHUNK_BYTES", 1 << 12)
    payload = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    path = sealed(tmp_path / "v", payload)
    assert open_sealed(path, "vault", 1, SECRET)[1] == payload


def test_flipped_bytes_are_found(tmp_path: Path) -> None:
    path = sealed(tmp_path / "v", b"attributes")
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(IsonomyError):  # tampered, locked or another schema: never content
            open_sealed(path, "vault", 1, SECRET)


def test_cut_swapped_and_repeated_chunks_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed_file, "CHUNK_BYTES", 64)
    path = sealed(tmp_path / "v", b"a" * 64 + b"b" * 64 + b"c" * 10)
    line, _, body = path.read_bytes().partition(b"\n")
    one, two, three = body[:80], body[80:160], body[160:]
    for forged in (b"", one, one + two, two + one + three, one + one + three, body + three):
        path.write_bytes(line + b"\n" + forged)
        with pytest.raises(VaultTampered):
            open_sealed(path, "vault", 1, SECRET)


def test_chunks_of_another_write_do_not_fit(tmp_path: Path) -> None:
    path = sealed(tmp_path / "v", b"old people")
    old = path.read_bytes()
    sealed(path, b"new people")
    new = path.read_bytes()
    path.write_bytes(new.partition(b"\n")[0] + b"\n" + old.partition(b"\n")[2])
    with pytest.raises(VaultTampered):
        open_sealed(path, "vault", 1, SECRET)


def test_a_wrong_secret_is_said_so(tmp_path: Path) -> None:
    path = sealed(tmp_path / "v", b"attributes")
    with pytest.raises(VaultLocked):
        open_sealed(path, "vault", 1, Secret(b"another"))


def test_another_kind_or_schema_is_refused(tmp_path: Path) -> None:
    path = sealed(tmp_path / "v", b"attributes", what="backup")
    with pytest.raises(VaultTampered):
        open_sealed(path, "vault", 1, SECRET)
    path = sealed(path, b"attributes", schema=7)
    with pytest.raises(UnknownSchema, match="schema 7"):
        open_sealed(path, "vault", 1, SECRET)


def test_the_schema_of_a_vault_cannot_be_changed_by_hand(tmp_path: Path) -> None:
    path = sealed(tmp_path / "v", b"attributes")
    path.write_bytes(path.read_bytes().replace(b'"schema":1', b'"schema":2'))
    with pytest.raises(VaultLocked):
        open_sealed(path, "vault", 2, SECRET)


@pytest.mark.parametrize("log_n", [b"11", b"18", b"20", b"40", b"-1", b"true", b'"10"', b"[]"])
def test_a_file_does_not_choose_what_its_key_costs(tmp_path: Path, log_n: bytes) -> None:
    path = sealed(tmp_path / "v", b"attributes")
    path.write_bytes(path.read_bytes().replace(b'"log_n":10', b'"log_n":' + log_n))
    with pytest.raises(VaultTampered):
        open_sealed(path, "vault", 1, SECRET)


def test_the_key_of_a_replaced_file_is_destroyed(tmp_path: Path) -> None:
    path = sealed(tmp_path / "v", b"forgotten people")
    kept = tmp_path / "still-there"
    kept.hardlink_to(path)  # what undeleting would find
    sealed(path, b"others")
    with pytest.raises(VaultTampered):
        open_sealed(kept, "vault", 1, SECRET)


def test_shredding(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    path.write_bytes(b"person-1\n" * 100)
    kept = tmp_path / "still-there"
    kept.hardlink_to(path)
    shred(path)
    assert not path.exists()
    assert b"person" not in kept.read_bytes()
    shred(path)  # gone already


def test_nothing_of_the_people_is_readable(tmp_path: Path) -> None:
    regulator = Regulator.create(tmp_path, people=0)
    fill_vault(regulator.config, {"someone-special": "female"}, GROUPS, "cohort-name")
    raw = regulator.config.vault_path.read_bytes()
    for word in (b"someone", b"female", b"sex", b"cohort-name"):
        assert word not in raw
    assert regulator.config.vault_path.stat().st_mode & 0o077 == 0
    assert "someone" not in repr(regulator.vault.read())


def test_a_failed_write_leaves_the_old_vault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    regulator = Regulator.create(tmp_path, people=3)
    before = regulator.config.vault_path.read_bytes()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("isonomy.regulator.vault.sealed_file.os.fsync", full)
    with pytest.raises(IsonomyError, match="nothing was changed"):
        regulator.vault.write(VaultTable.empty())
    assert regulator.config.vault_path.read_bytes() == before
    assert not list(regulator.home.glob(".vault*"))


class TestSecrets:
    def test_a_key_file_is_made_once_and_private(self, tmp_path: Path) -> None:
        path = tmp_path / "unlock"
        made = new_secret(path)
        assert path.stat().st_mode & 0o777 == 0o600
        assert secret_from_file(path).key(WEAK) == made.key(WEAK) == new_secret(path).key(WEAK)
        assert made.strong
        assert Derivation.fresh(strong_secret=False).log_n == 17

    def test_a_passphrase_from_a_file_is_the_one_that_was_typed(self, tmp_path: Path) -> None:
        path = tmp_path / "unlock"
        path.write_bytes(b"correct horse battery\n")
        path.chmod(0o600)
        found = secret_from_file(path)
        assert found.key(WEAK) == Secret(b"correct horse battery").key(WEAK)
        assert not found.strong

    def test_a_new_vault_takes_no_file_that_can_be_guessed(self, tmp_path: Path) -> None:
        path = tmp_path / "unlock"
        for content, fits in ((b"a", False), (b"x" * 15 + b"\n", False), (b"x" * 16, True)):
            path.write_bytes(content)
            path.chmod(0o600)
            if fits:
                assert new_secret(path).size == 16
                continue
            with pytest.raises(ConfigError, match="fewer than 16 bytes") as caught:
                new_secret(path)
            assert "256 random bits" in str(caught.value)
            assert read_secret(path).size < 16  # a vault that has it already still opens

    def test_doctor_names_a_file_that_can_be_guessed(self, tmp_path: Path) -> None:
        regulator = Regulator.create(tmp_path)
        assert regulator.config.unlock_file is not None
        regulator.config.unlock_file.write_bytes(b"a")
        found = [own for own in examine(regulator.config) if own.check == "vault"]
        assert any(own.level == "fail" and "guessed" in own.text for own in found)

    def test_without_a_terminal_nobody_is_asked(self) -> None:
        with pytest.raises(VaultLocked, match="--unlock-file"):
            read_secret(None)
        with pytest.raises(VaultLocked, match="--unlock-file"):
            new_secret(None)

    def test_a_short_passphrase_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        monkeypatch.setattr("typer.prompt", lambda *args, **options: "short")
        with pytest.raises(ConfigError, match="12 characters"):
            new_secret(None)

    def test_secrets_are_not_shown(self) -> None:
        assert "passphrase" not in repr(SECRET)
