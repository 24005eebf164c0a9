"""Upkeep: the doctor's findings, backup, certificate, and rotations with their consequences."""

from __future__ import annotations

from pathlib import Path

from starlette.responses import Response
from starlette.routing import Route

from isonomy.common.base.errors import ConfigError
from isonomy.common.keys.certificates import Request, authority_fingerprint
from isonomy.common.keys.party import Card, fingerprint
from isonomy.regulator.console.call import Call, act, page
from isonomy.regulator.console.render import TEXTS
from isonomy.regulator.serving.officer import ask
from isonomy.regulator.serving.status import read_status
from isonomy.regulator.upkeep.backup import backups_made, make_backup
from isonomy.regulator.upkeep.doctor import examine
from isonomy.regulator.upkeep.rotation import (
    install_certificate,
    request_certificate,
    rotate_identity,
    rotate_vault,
)
from isonomy.regulator.vault.unlock import MIN_PASSPHRASE_CHARS, Secret

UPLOADS = ("/upkeep/certificate",)


def upkeep(call: Call) -> Response:
    """The page."""
    config = call.config
    status, card = read_status(config), Card.load(config.keys_folder / "card.json")
    request = _request_path(config.home)
    return call.show(
        "upkeep.html.j2",
        findings=examine(config),
        fingerprint=fingerprint(card),
        authority=authority_fingerprint(config.tls.ca) if config.tls.ca.exists() else "",
        request=Request.load(request).fingerprint if request.exists() else "",
        backups=backups_made(config),
        open_plans=sum(plan["is_open"] for plan in status["plans"]),
        is_up=status["daemon"] is not None,
        has_unlock_file=config.unlock_file is not None,
        least=MIN_PASSPHRASE_CHARS,
    )


def backup(call: Call) -> Response:
    """Write a backup to a new file outside the home."""
    config, typed = call.config, call.form["file"].strip()
    path = Path(typed)
    if not path.is_absolute() or config.home.resolve() in path.resolve().parents:
        raise ConfigError(TEXTS["upkeep"]["backup_place"])
    done = make_backup(config, path, call.actor.secret())
    text = TEXTS["upkeep"]["backed_up"]
    return call.go("/upkeep", text.format(files=done.files, file=done.backup, records=done.records))


def ask_certificate(call: Call) -> Response:
    """Make a new key and its request; the old certificate works until the new one is installed."""
    request = request_certificate(call.config)
    return call.go("/upkeep#certificate", TEXTS["upkeep"]["requested"].format(request=request))


def download_request(call: Call) -> Response:
    """The request for the server's operator."""
    path = _request_path(call.config.home)
    headers = {"Content-Disposition": 'attachment; filename="tls.csr"'}
    return Response(path.read_bytes(), media_type="application/octet-stream", headers=headers)


def download_card(call: Call) -> Response:
    """The card for the companies."""
    path = call.config.keys_folder / "card.json"
    headers = {"Content-Disposition": 'attachment; filename="card.json"'}
    return Response(path.read_bytes(), media_type="application/octet-stream", headers=headers)


def install(call: Call) -> Response:
    """Install the certificate that the operator signed."""
    files = call.form.files
    if set(files) != {"tls.pem", "ca.pem"}:
        raise ConfigError(TEXTS["upkeep"]["two_files"])
    config = call.config
    until = install_certificate(config, files["tls.pem"], files["ca.pem"])
    authority = authority_fingerprint(config.tls.ca)
    text = TEXTS["upkeep"]["installed"].format(until=until, authority=authority)
    return call.go("/upkeep#certificate", text)


def identity(call: Call) -> Response:
    """Replace the identity."""
    if call.form["sure"] != "yes":
        raise ConfigError(TEXTS["upkeep"]["not_sure"])
    done = rotate_identity(call.config)
    text = TEXTS["upkeep"]["rotated"].format(new=done.fingerprint, card=done.card)
    return call.go("/upkeep", f"{text} {done.record}")


def vault(call: Call) -> Response:
    """Give the vault another passphrase."""
    config, new = call.config, call.form["new"]
    if config.unlock_file is not None:
        raise ConfigError(TEXTS["upkeep"]["by_file"])
    if new != call.form["new_again"] or len(new) < MIN_PASSPHRASE_CHARS:
        raise ConfigError(TEXTS["upkeep"]["new_twice"].format(least=MIN_PASSPHRASE_CHARS))
    rotate_vault(config, call.actor.open_vault, lambda: Secret(new.encode()))
    return call.go("/upkeep", TEXTS["upkeep"]["resealed"])


def clock(call: Call) -> Response:
    """Go on after a clock that was wrong, by the officer's word."""
    ask(call.config, {"type": "clock"})
    return call.go("/upkeep", TEXTS["upkeep"]["clock_accepted"])


def _request_path(home: Path) -> Path:
    """Return the request that waits for its certificate."""
    later = home / "tls.next" / "tls.csr"
    return later if later.exists() else home / "tls" / "tls.csr"


ROUTES = [
    Route("/upkeep", page(upkeep)),
    Route("/upkeep/tls.csr", page(download_request)),
    Route("/upkeep/card.json", page(download_card)),
    Route("/upkeep/backup", act(backup, upkeep), methods=["POST"]),
    Route("/upkeep/request", act(ask_certificate, upkeep), methods=["POST"]),
    Route("/upkeep/certificate", act(install, upkeep), methods=["POST"]),
    Route("/upkeep/identity", act(identity, upkeep), methods=["POST"]),
    Route("/upkeep/vault", act(vault, upkeep), methods=["POST"]),
    Route("/upkeep/clock", act(clock, upkeep), methods=["POST"]),
]
