"""What relay and parties leave on disk: for the owner only, and durable where it must be."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from session_kit import Federation

from isonomy.common.base.errors import StorageError
from isonomy.common.session.tickets import Ticket, resume_secret
from isonomy.server.relay._state import Checkpoint
from isonomy.server.relay.stand_alone import _write_ticket

TICKET = Ticket("127.0.0.1:1", "relay", b"token", b"p" * 32, "company", "acme", 5)


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files whose name was made durable."""
    names: list[str] = []

    def fsync_folder(path: Path) -> None:
        assert path.exists()
        names.append(path.name)

    monkeypatch.setattr("isonomy.common.session.tickets.fsync_folder", fsync_folder)
    monkeypatch.setattr("isonomy.common.base.private_files.fsync_folder", fsync_folder)
    return names


def test_a_checkpoint_that_must_last_is_synced_with_its_name(
    tmp_path: Path, named: list[str]
) -> None:
    relay = Federation.create(tmp_path).relay()
    named.clear()
    relay._save(sync=False)
    assert named == []
    relay._save(sync=True)
    assert named == ["relay.json"]
    file = tmp_path / "server" / "state" / "relay.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Checkpoint.load(file) == relay._state.checkpoint()


def test_one_secret_per_plan_and_party_whatever_the_tickets(
    tmp_path: Path, named: list[str]
) -> None:
    first = resume_secret(tmp_path, TICKET)
    other = Ticket("127.0.0.1:2", "relay", b"junk", b"p" * 32, "company", "acme", 6)
    assert resume_secret(tmp_path, other) == first
    (file,) = tmp_path.iterdir()
    assert named == [file.name]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for plan, party in ((b"q" * 32, "acme"), (b"p" * 32, "bolt")):
        third = Ticket("127.0.0.1:1", "relay", b"token", plan, "company", party, 5)
        assert resume_secret(tmp_path, third) != first


def test_two_processes_at_once_have_one_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the relay hears first from one of them must be what is on disk afterwards."""
    secrets: list[bytes] = []
    fsync = os.fsync

    def second_process(fd: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        secrets.append(resume_secret(tmp_path, TICKET))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", second_process)
    secrets.append(resume_secret(tmp_path, TICKET))
    (file,) = tmp_path.iterdir()
    assert secrets == [file.read_bytes()] * 2
    file.write_bytes(b"")
    with pytest.raises(StorageError, match="damaged"):
        resume_secret(tmp_path, TICKET)


def test_a_ticket_file_is_for_the_owner_only(tmp_path: Path) -> None:
    (tmp_path / "acme.ticket.partial").touch(0o644)  # left behind by a process that was killed
    _write_ticket(tmp_path, TICKET)
    (file,) = tmp_path.iterdir()
    assert file.read_bytes() == TICKET.to_json()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
