"""Making a server's home, and the kits of those who meet there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isonomy.common.base.private_files import private_folder, write_whole
from isonomy.common.keys.certificates import SERVER, Authority, issue
from isonomy.common.keys.identity import Identity
from isonomy.common.kits import users
from isonomy.common.kits.kit import Kit, write_kit
from isonomy.common.kits.request import KitRequest
from isonomy.common.kits.services import server_compose, server_unit
from isonomy.server.config import ServerConfig


@dataclass(frozen=True)
class Address:
    """Where a server listens, and how the parties call it."""

    name: str
    host: str = "0.0.0.0"  # noqa: S104  (the parties come from other machines)
    door_port: int = 9093
    relay_port: int = 9095
    advertise: str = ""


def make_home(
    home: Path, authority: Authority, address: Address, ips: Sequence[str], *, give: bool = False
) -> None:
    """Make a server's home: its certificate, the token key and server.toml.

    `give`: as root, make the server's user and give the home to it.
    """
    private_folder(home, home=True)
    issue(authority, home / "tls", address.name, SERVER, [address.name], ips)
    Identity.generate().save(home / "token.key")
    text = (
        f'name = "{address.name}"\n\n[door]\nhost = "{address.host}"\n'
        f'port = {address.door_port}\n\n[relay]\nhost = "{address.host}"\n'
        f'port = {address.relay_port}\nadvertise = "{address.advertise}"\n'
    )
    write_whole(home / "server.toml", text.encode())
    ServerConfig.load(home / "server.toml")
    if give and users.is_root():
        users.make_accounts(users.SERVER)
        users.give_folder(home, users.SERVER)


def make_kits(
    config: ServerConfig,
    authority: Authority,
    requests: Sequence[KitRequest],
    folder: Path,
    *,
    replace: bool,
) -> list[Path]:
    """Write a kit for each request and let its node in; returns the kits' paths.

    The server's own unit and compose file are put below its home.
    """
    folder.mkdir(parents=True, exist_ok=True)
    door = f"{config.relay.advertise}:{config.door.port}"
    paths = []
    for request in requests:
        others = [each for each in requests if each is not request]
        path = write_kit(authority, request, others, server=config.name, door=door, folder=folder)
        paths.append(path)
    with users.acting_as_owner(config.home):
        kit_folder = private_folder(config.home / "kit")
        for request, path in zip(requests, paths, strict=True):
            node = kit_folder / f"{request.card.name}-node.pem"
            write_whole(node, Kit.load(path).files["node.pem"])
            config.register(node, replace=replace)
        for name, text in server_units(config.home).items():
            write_whole(kit_folder / name, text.encode())
        owner = config.home.stat()
        compose = server_compose(str(config.home), owner.st_uid, owner.st_gid)
        write_whole(kit_folder / "compose.yaml", compose.encode())
    return paths


def server_units(home: Path) -> dict[str, str]:
    """Return the server's unit, for the programs of this environment."""
    programs, python = Path(sys.executable).parent, Path(sys.base_prefix).resolve()
    return server_unit(str(home), str(programs), str(python))
