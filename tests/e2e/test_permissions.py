"""Who may read what in each home, made by the real commands under an ordinary umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isonomy.company.cli.company import app as company
from isonomy.regulator.cli import app as regulator
from isonomy.server.cli import app as server

OPEN = {  # a certificate, a request, a card of public keys: to hand out
    "authority/ca.pem",
    "company/keys/card.json",
    "company/tls/tls.csr",
    "regulator/keys/card.json",
    "regulator/tls/tls.csr",
    "server/server.toml",
    "server/tls/ca.pem",
    "server/tls/tls.pem",
    "regulator/run",  # the node's user reaches the socket in it
}


@pytest.fixture(autouse=True)
def ordinary_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> set[str]:
    """What a stranger could read if the folders above let them."""
    paths = (path for path in folder.rglob("*") if stat.S_IMODE(path.lstat().st_mode) & 0o077)
    return {path.relative_to(folder).as_posix() for path in paths}


@pytest.mark.parametrize("existing", [False, True], ids=["new", "existing"])
def test_homes(tmp_path: Path, existing: bool) -> None:
    names = ("authority", "company", "regulator", "server")
    homes = {name: tmp_path / "homes" / name for name in names}
    for home in homes.values() if existing else ():
        home.mkdir(parents=True, mode=0o755)
    passphrase, unlock = tmp_path / "passphrase", tmp_path / "secret" / "unlock"
    passphrase.touch(0o600)
    passphrase.write_text("correct horse battery")
    authority = ("--authority", homes["authority"], "--passphrase-file", passphrase)
    policy = ("--groups", "sex=female,male", "--epsilon", "2", "--delta", "1e-6")
    for app, *command in (
        (server, "init", homes["server"], "--name", "relay.test", *authority),
        (company, "keys", "--name", "acme", "--home", homes["company"]),
        (company, "tls-request", "--home", homes["company"]),
        (regulator, "init", homes["regulator"], "--name", "reg", *policy, "--unlock-file", unlock),
    ):
        done = CliRunner().invoke(app, list(map(str, command)))
        assert done.exit_code == 0, done.output
    assert open_to_others(tmp_path / "homes") == OPEN, "the homes themselves are closed"
    assert stat.S_IMODE((tmp_path / "homes").stat().st_mode) == 0o755, "not ours to close"
    assert {stat.S_IMODE(path.stat().st_mode) for path in (unlock, unlock.parent)} == {0o600, 0o700}
