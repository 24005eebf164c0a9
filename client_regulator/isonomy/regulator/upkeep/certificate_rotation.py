"""A new TLS key and certificate, side by side with the ones in use until it is complete.

    tls.next/    key and request, from `rotate certificate` on
    tls/         what the daemon uses; changed by `tls-install`, in one step per file

A certificate only lets this regulator connect to the relay (certificates.py), so the ledger, the
plans and the identity are not affected.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from cryptography import x509

from isonomy.common.base.errors import CertificateError, ConfigError
from isonomy.common.base.private_files import fsync_folder, write_private
from isonomy.common.keys.certificates import TlsFiles, make_request
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.vault.sealed_file import shred


def request_certificate(config: RegulatorConfig) -> Path:
    """A new key and the request that goes to the server's operator."""
    folder = config.home / "tls.next"
    if folder.exists():
        raise ConfigError(
            f"{folder} holds a request that was made before; install its certificate, or remove "
            "the folder"
        )
    return make_request(folder, config.name, "regulator")


def install_certificate(config: RegulatorConfig, certificate: Path, authority: Path) -> str:
    """Install a signed certificate beside its key. Returns its last day.

    Raises before anything changes.
    """
    folder = config.home / "tls.next"
    waiting = folder / "tls.key"
    key = waiting if waiting.exists() else config.tls.key
    trial = TlsFiles(authority, certificate, key)
    ca_pem, pem, secret = trial.read()  # the certificate is for this key, and has not expired
    _check_issuer(certificate, pem, authority, ca_pem)
    config.tls_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # A kill between these lines leaves a certificate for another key. `doctor` says so, and the
    # same command repairs it, because the new key stays in tls.next until the end.
    write_private(config.tls.key, secret)
    write_private(config.tls.cert, pem)
    write_private(config.tls.ca, ca_pem)
    if key == waiting:
        shred(waiting)
        shutil.rmtree(folder, ignore_errors=True)
        fsync_folder(folder)
    ends = x509.load_pem_x509_certificate(pem).not_valid_after_utc
    return f"{ends:%Y-%m-%d}"


def _check_issuer(path: Path, pem: bytes, authority: Path, ca_pem: bytes) -> None:
    try:
        issuer = x509.load_pem_x509_certificate(ca_pem)
        x509.load_pem_x509_certificate(pem).verify_directly_issued_by(issuer)
    except Exception:  # several kinds, none of which tells the officer more
        raise CertificateError(f"{path} was not issued by the authority in {authority}") from None
