"""The commands `request`, `install` and `seal-keys` of both parties, and `preflight`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.base.command_line import confirm, prompt
from isonomy.common.base.errors import VerificationError
from isonomy.common.base.output import emit, say
from isonomy.common.base.private_files import read_secret
from isonomy.common.keys.certificates import spoken_authority
from isonomy.common.keys.party import PartyKeys, fingerprint
from isonomy.common.keys.sealed_keys import read_key, seal_key
from isonomy.common.kits.install import UNITS, check_kit, check_places, install_kit, start_units
from isonomy.common.kits.kit import Kit
from isonomy.common.kits.preflight import ProblemsFound, examine
from isonomy.common.kits.request import make_request_file
from isonomy.common.kits.services import units as service_units
from isonomy.common.kits.users import acting_as_owner

NodeFolder = Annotated[
    Path | None,
    typer.Option(
        "--node", help="A folder for the Flower node's key: also write NAME.request for a kit."
    ),
]


def request_again(
    home: Annotated[Path, typer.Option(help="This party's home.")],
    node: Annotated[Path, typer.Option(help="The Flower node's folder.")],
) -> None:
    """Write NAME.request for the server's operator, from the keys that this home has.

    Use it for a home that was set up without --node, or after the node's key was lost and removed:
    a new one is made. Read the fingerprint out to the operator.

    \b
    Examples:
    isonomy-company request --home /srv/company --node /srv/node
    isonomy-regulator request --home /srv/regulator --node /srv/node
    """
    keys = PartyKeys.load(home / "keys")
    path = Path(f"{keys.name}.request")
    request = make_request_file(keys, home, node, path)
    facts = {"request": path, "fingerprint": request.fingerprint}
    emit(facts, f"Made {path}; fingerprint {request.fingerprint}")


def install_command(
    kit_file: Annotated[Path, typer.Argument(metavar="KIT", help="NAME.kit.zip.")],
    home: Annotated[Path, typer.Option(help="This party's home.")],
    node: Annotated[Path, typer.Option(help="The Flower node's folder.")],
    start: Annotated[
        bool, typer.Option("--start", help="Install the services and start them, as root.")
    ] = False,
    units: Annotated[Path, typer.Option(help="Where systemd looks for units.")] = UNITS,
    authority: Annotated[
        str, typer.Option(help="The authority's fingerprint, as the operator read it out.")
    ] = "",
) -> None:
    """Install the kit that the server's operator made for this party.

    The kit's signature is checked, and everything in it depends on the authority: compare its
    fingerprint with what the operator reads out, or give that as --authority. A newer kit of the
    same authority, for a renewal, is taken without a question. With --start, the services are made
    from these folders and the server's address; those in the kit are only for reading.

    \b
    Examples:
    isonomy-company install company.kit.zip --home /srv/company --node /srv/node --start
    isonomy-regulator install regulator.kit.zip --home /srv/regulator --node /srv/node --start
    """
    kit = Kit.load(kit_file)
    home, node = home.resolve(), node.resolve()
    check_kit(kit, home, node)  # what is wrong shows before a question is asked
    say(f"Kit of {kit.facts.name} for the server {kit.facts.server}")
    for card in kit.cards():
        say(f"  {card.name} ({card.role}): {fingerprint(card)}")
    places = check_places(kit.facts, home, node)
    spoken = spoken_authority(kit.files["ca.pem"])
    if authority and "".join(authority.split()) != "".join(spoken.split()):
        raise VerificationError(
            f"this kit is of another authority, {spoken}; ask the operator for the right kit"
        )
    known = home / "tls" / "ca.pem"
    same = known.exists() and known.read_bytes() == kit.files["ca.pem"]
    confirm(f"Is the authority {spoken}?", yes=bool(authority) or same)
    install_kit(kit, home, node)
    services = "No service was started."
    if start:
        services = start_units(service_units(places, kit.facts.door), units)
    facts = {"name": kit.facts.name, "server": kit.facts.server, "authority": spoken}
    text = f"Installed the certificates of {kit.facts.name} and its node.\n{services}"
    emit({**facts, "services": services}, text)


def seal_keys(
    home: Annotated[Path, typer.Option(help="This party's home.")],
    passphrase_file: Annotated[
        Path | None, typer.Option(help="File with the new passphrase; without, it is asked for.")
    ] = None,
) -> None:
    """Encrypt this party's identity and sealing keys with a passphrase, or change it.

    From then on every command that signs asks for it, once, or reads it from the file that
    ISONOMY_KEY_PASSPHRASE_FILE names. The keys stay the same, so plans and reports stay valid.
    Without the passphrase the keys are lost.

    \b
    Examples:
    isonomy-company seal-keys --home /srv/company
    isonomy-regulator seal-keys --home /srv/regulator --passphrase-file /root/passphrase
    """
    paths = [home / "keys" / name for name in ("identity.key", "sealing.key")]
    with acting_as_owner(home):
        for path in paths:
            read_key(path)  # both open, or nothing changes
    if passphrase_file is not None:
        passphrase = read_secret(passphrase_file)
    else:
        text = "New passphrase of the keys"
        passphrase = prompt(text, hide_input=True, confirmation_prompt=True)
    with acting_as_owner(home):
        for path in paths:
            seal_key(path, passphrase)
    emit({"sealed": paths}, f"Sealed {' and '.join(map(str, paths))}")


def preflight(
    home: Annotated[Path, typer.Argument(help="The home of a company, a regulator or a server.")],
    node: Annotated[Path | None, typer.Option(help="The Flower node's folder.")] = None,
) -> None:
    """Say what will fail on this machine before it fails, and how to fix it. Changes nothing.

    It looks at versions, permissions, the node's group, certificates, disk, ports or proxy, the
    server's door and both clocks. Run it as root: no single user may read both folders.

    \b
    Examples:
    isonomy preflight /srv/company --node /srv/node
    isonomy preflight /srv/isonomy
    """
    findings = examine(home, node)
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:4}  {finding.check:12}  {finding.text}")
        if finding.fix:
            lines.append(f"{'':20}-> {finding.fix}")
    emit({"findings": [vars(finding) for finding in findings]}, "\n".join(lines))
    if any(finding.level == "fail" for finding in findings):
        raise ProblemsFound("this machine is not ready; the lines that say `fail` tell why")
