"""Taking a kit into service on a party's machine."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import private_folder, write_whole
from isonomy.common.keys.certificates import TlsFiles, install, read_issued
from isonomy.common.keys.party import Card
from isonomy.common.kits import users
from isonomy.common.kits.access import check_programs
from isonomy.common.kits.declared import Declared
from isonomy.common.kits.kit import Kit, KitFacts
from isonomy.common.kits.request import PLAIN_PATH
from isonomy.common.kits.services import Places

UNITS = Path("/etc/systemd/system")
FOLDER = "kit"  # below the party's home: kit.json and cards/


def check_kit(kit: Kit, home: Path, node: Path) -> None:
    """Raise unless a kit is for this home and node, whose users can run the programs."""
    with _unpacked(kit, home, node):
        check_programs(kit.facts.role, home, node)


def install_kit(kit: Kit, home: Path, node: Path) -> None:
    """Put a kit's certificates to their keys, and its facts and cards below the home.

    Everything is checked before the first file changes.
    """
    with _unpacked(kit, home, node) as folder:
        for name, keys in (("tls.pem", home / "tls"), ("node.pem", node)):
            with users.acting_as_owner(keys):
                install(keys, folder / name, folder / "ca.pem")
    with users.acting_as_owner(home):
        target = private_folder(home / FOLDER / "cards").parent
        kit.facts.save(target / "kit.json")
        for other in kit.cards():
            other.save(target / "cards" / f"{other.name}.json")


@contextmanager
def _unpacked(kit: Kit, home: Path, node: Path) -> Iterator[Path]:
    """Yield a folder with a kit's certificates, which were issued for this home's keys."""
    facts, card = kit.facts, Card.load(home / "keys" / "card.json")
    if (facts.name, facts.role) != (card.name, card.role):
        raise ConfigError(
            f"this kit is for {facts.name} ({facts.role}); {home} is of {card.name} ({card.role})"
        )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_whole(folder / "ca.pem", kit.files["ca.pem"])
        for name, keys in (("tls.pem", home / "tls"), ("node.pem", node)):
            write_whole(folder / name, kit.files.get(name, b""))
            read_issued(TlsFiles(folder / "ca.pem", folder / name, TlsFiles.of(keys).key))
        folder.chmod(0o755)  # the owners read it; nothing in it is secret
        yield folder


def check_places(facts: KitFacts, home: Path, node: Path) -> Places:
    """Return where this machine's services run; ConfigError for paths that a unit could misread."""
    programs = Path(sys.executable).parent
    writes = Declared.of(home).folders
    for path in (home, node, programs, *writes):
        if not re.fullmatch(PLAIN_PATH, str(path)):
            raise ConfigError(f"{path} has characters that a service's file could misread")
    return Places(
        *(facts.name, facts.role, str(home), str(node), str(programs)),
        python=str(Path(sys.base_prefix).resolve()),
        writes=writes,
    )


def installed_facts(home: Path) -> KitFacts | None:
    """Return what the kit of this home said; None if none was installed."""
    path = home / FOLDER / "kit.json"
    return KitFacts.load(path) if path.exists() else None


def installed_cards(home: Path) -> list[Card]:
    """Return the other parties' cards that came with the kit."""
    return [Card.load(path) for path in sorted((home / FOLDER / "cards").glob("*.json"))]


def start_units(units: Mapping[str, str], folder: Path = UNITS) -> str:
    """Write units and start them by systemd; returns a sentence about what happened."""
    if not users.is_root():
        raise ConfigError("only root can install services; nothing was started")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in units.items():
        write_whole(folder / name, text.encode())
    names = " ".join(units)
    if not Path("/run/systemd/system").is_dir():
        return f"wrote {names} to {folder}; systemd does not run here, so nothing was started"
    for command in (["daemon-reload"], ["enable", *units], ["restart", *units]):
        done = subprocess.run(["systemctl", *command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise ConfigError(f"systemctl {command[0]} failed: {done.stderr.strip()}")
    return f"started {names}; `journalctl -u {next(iter(units))}` shows the log"
