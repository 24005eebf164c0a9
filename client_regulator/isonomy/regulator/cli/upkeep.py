"""`doctor`, `backup`, `restore` and `rotate`: from the second day on."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from isonomy.common.base.command_line import confirm
from isonomy.common.base.output import emit, say
from isonomy.common.keys.certificates import Request, authority_fingerprint
from isonomy.common.kits.preflight import ProblemsFound
from isonomy.common.ledger.reading import ledger_bar
from isonomy.regulator.cli.output import Home, UnlockFile, Yes, open_vault
from isonomy.regulator.config.config import FILE_NAME, RegulatorConfig
from isonomy.regulator.serving.ledger_story import head_bytes
from isonomy.regulator.serving.officer import ask
from isonomy.regulator.upkeep.backup import make_backup
from isonomy.regulator.upkeep.doctor import examine
from isonomy.regulator.upkeep.restore import restore as restore_home
from isonomy.regulator.upkeep.rotation import (
    finish_rotation,
    install_certificate,
    request_certificate,
    rotate_identity,
    rotate_vault,
)
from isonomy.regulator.vault.unlock import new_secret, read_secret

_MARKS = {"ok": "ok  ", "warn": "NOTE", "fail": "FIX "}


def doctor(
    home: Home = Path(),
    accept_clock: Annotated[
        bool,
        typer.Option(
            "--accept-clock", help="Confirm that the clock was wrong before and is right now."
        ),
    ] = False,
) -> None:
    """Check the whole set-up, and say how to fix what is wrong.

    The command ends with code 0 if nothing must be fixed, else with 73. It needs no passphrase and
    changes nothing, except that it finishes a rotation that was cut short. --accept-clock writes a
    record into the ledger, with your name.

    \b
    Examples:
    isonomy-regulator doctor --home /srv/regulator
    """
    config = RegulatorConfig.load(home)
    finish_rotation(config)
    if accept_clock:
        ask(config, {"type": "clock"})
    with ledger_bar():
        findings = examine(config)
    lines = []
    for finding in findings:
        lines.append(f"{_MARKS[finding.level]}  {finding.check:<13} {finding.text}")
        if finding.fix:
            lines.append(f"{'':<20} → {finding.fix}")
    bad = sum(finding.level == "fail" for finding in findings)
    fields = {"healthy": bad == 0, "findings": [asdict(finding) for finding in findings]}
    emit(fields, "\n".join(lines))
    if bad:
        raise ProblemsFound(f"fix what the lines marked FIX say ({bad})")


def backup(
    file: Annotated[Path, typer.Argument(help="A new file.")],
    home: Home = Path(),
    unlock_file: UnlockFile = None,
) -> None:
    """Write the whole home folder into one encrypted file. The daemon may go on running.

    The file opens with the vault's passphrase or unlock file. The unlock file is not in it: keep
    that elsewhere.

    \b
    Examples:
    isonomy-regulator backup /mnt/safe/regulator-2027-01-31.backup
    """
    config = RegulatorConfig.load(home)
    done = make_backup(config, file, read_secret(unlock_file or config.unlock_file))
    text = f"Wrote {done.files} files to {done.backup}; the ledger has {done.records} records."
    emit(asdict(done), text)


def restore(
    file: Annotated[Path, typer.Argument(help="A backup.")],
    home: Annotated[Path, typer.Argument(help="The home: new, empty, or the one to repair.")],
    head: Annotated[
        list[str] | None, typer.Option(help="A ledger head from a company's signed answer.")
    ] = None,
    witness: Annotated[
        list[Path] | None, typer.Option(help="A copy of witness.json from elsewhere.")
    ] = None,
    assume_spent: Annotated[
        bool,
        typer.Option("--assume-spent", help="There is no witness: close open plans, as spent."),
    ] = False,
    unlock_file: UnlockFile = None,
) -> None:
    """Put a backup in place, unless that would forget what somebody has spent.

    If the home still has its ledger, the newer of the two ledgers counts. If it is lost, a copy of
    witness.json must show that the backup is the newest state. If there is none either, use
    --assume-spent: it closes every open plan and counts its whole budget as spent. A company's
    --head can only show that a backup is too old. If the home exists, its regulator.toml says which
    officers may restore, and stays as it is.

    \b
    Examples:
    isonomy-regulator restore regulator.backup /srv/regulator --witness /mnt/other/witness.json
    """
    heads = [head_bytes(text) for text in head or []]
    if unlock_file is None and (home / FILE_NAME).exists():
        unlock_file = RegulatorConfig.load(home).unlock_file
    secret = read_secret(unlock_file)
    done = restore_home(
        file, home, secret, heads=heads, witnesses=witness or [], assume_spent=assume_spent
    )
    if done.before is not None:
        say(f"What was there before lies in {done.before}; remove it when all is well.")
        say("regulator.toml is the one that was there; the backup's was left out.")
    if done.plans_spent:
        say(f"{done.plans_spent} open plan(s) were closed; their whole budget counts as spent.")
    text = (
        f"Restored {done.home}: ledger ({done.records} records) from the {done.ledger_from}, vault "
        f"from the {done.vault_from}. The unlock file is not part of a backup.\n"
        f"Next: isonomy-regulator doctor --home {done.home}"
    )
    emit(asdict(done), text)


def tls_install(
    certificate: Annotated[Path, typer.Argument(help="The tls.pem that the operator signed.")],
    ca: Annotated[
        Path | None, typer.Option(help="The authority's ca.pem. Default: beside the certificate.")
    ] = None,
    home: Home = Path(),
) -> None:
    """Install the certificate that the server's operator signed.

    Compare the authority's fingerprint by telephone: whatever server this authority names, this
    regulator will connect to.

    \b
    Examples:
    isonomy-regulator tls-install regulator/tls.pem
    """
    config = RegulatorConfig.load(home)
    until = install_certificate(config, certificate, ca or certificate.with_name("ca.pem"))
    authority = authority_fingerprint(config.tls.ca)
    fields = {"installed": config.tls.cert, "until": until, "authority": authority}
    text = (
        f"Installed {config.tls.cert}, valid until {until}.\nThe authority's fingerprint, to "
        f"compare by telephone: {authority}\nA running daemon reads it when it is started again."
    )
    emit(fields, text)


def rotate(
    what: Annotated[
        Literal["identity", "certificate", "vault"], typer.Argument(help="What gets a new key.")
    ],
    home: Home = Path(),
    unlock_file: UnlockFile = None,
    new_unlock_file: Annotated[
        Path | None, typer.Option(help="vault: unlock by this file from now on.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Replace a key or a passphrase. The ledger stays as it is.

    identity: the keys with which this regulator signs. Close all plans first; companies need the
    new card. certificate: the key for connections. Send the request to the server's operator; the
    old certificate works until `tls-install`. vault: the passphrase or unlock file.

    \b
    Examples:
    isonomy-regulator rotate identity --yes
    isonomy-regulator rotate certificate
    isonomy-regulator rotate vault
    """
    config = RegulatorConfig.load(home)
    fields: dict[str, object]
    if what == "identity":
        say(
            "A new identity ends the old one for good: its private keys are destroyed. Companies "
            "need the new card before they make another plan. No more reports of closed "
            "plans can be written; those that exist stay valid, and are verified with the new card "
            "and the rotation's record."
        )
        confirm("Replace the identity?", yes=yes)
        done = rotate_identity(config)
        fields = asdict(done)
        text = (
            f"New fingerprint: {done.fingerprint}\nHand out {done.card} and {done.record} "
            "(signed by the old and the new identity).\nOlder reports: isonomy-regulator verify "
            f"REPORT --card {done.card} --rotation {done.record}"
        )
    elif what == "certificate":
        request = request_certificate(config)
        fields = {"request": request, "fingerprint": Request.load(request).fingerprint}
        text = (
            f"Send {request} to the server's operator and read out {fields['fingerprint']};\n"
            "then: isonomy-regulator tls-install FILE"
        )
    else:
        rotate_vault(
            config,
            lambda: open_vault(config, unlock_file),
            lambda: new_secret(new_unlock_file),
        )
        fields = {"vault": config.vault_path}
        text = (
            "The vault has its new secret. If regulator.toml names an unlock_file, correct it; "
            "backups made before still open with the old one."
        )
    emit({"what": what, **fields}, text)
