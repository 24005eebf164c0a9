"""TLS on every hop, both ways: an authority of our own, short certificates, renewal.

    make_authority(folder)                       folder/ca.key (0600), folder/ca.pem
    issue(authority, folder, name, …)            folder/tls.key (0600), tls.pem, ca.pem (a copy)
    renew(authority, folder)                     a new tls.pem for the same key and names

A certificate only opens the door (DESIGN.md §7): who may say what is decided by the keys that the
plan pins. Renewal keeps the key, so that tokens bound to the relay's key stay good.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from isonomy.common.canonical import hash_bytes
from isonomy.common.errors import ConfigError
from isonomy.common.session_errors import CertificateError

AUTHORITY_DAYS, CERTIFICATE_DAYS = 3650, 397
CLOCK_SKEW = timedelta(minutes=5)
MAX_PEM_BYTES = 1 << 16


@dataclass(frozen=True)
class TlsFiles:
    """Where a party's TLS material lies."""

    ca: Path
    cert: Path
    key: Path

    @classmethod
    def of(cls, folder: Path) -> TlsFiles:
        return cls(folder / "ca.pem", folder / "tls.pem", folder / "tls.key")

    def read(self) -> tuple[bytes, bytes, bytes]:
        """The three files, checked as far as one party can check them alone."""
        ca, cert, key = (_read(path) for path in (self.ca, self.cert, self.key))
        if self.key.stat().st_mode & 0o077:
            raise CertificateError(f"{self.key} is readable by others; run: chmod 600 {self.key}")
        found, secret = _load_certificate(self.cert, cert), _load_key(self.key, key)
        if found.public_key() != secret.public_key():
            raise CertificateError(f"{self.cert} was not issued for the key {self.key}")
        if found.not_valid_after_utc < datetime.now(UTC):
            raise CertificateError(
                f"{self.cert} expired on {found.not_valid_after_utc:%Y-%m-%d}; renew it"
            )
        return ca, cert, key


def make_authority(folder: Path, common_name: str = "Isonomy authority") -> Path:
    """A new authority in a folder that has none; returns the path of its certificate."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = ec.generate_private_key(ec.SECP256R1())
    _write_key(folder / "ca.key", key)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    usage = _usage(sign_certificates=True)
    certificate = (
        _builder(name, name, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    _write_certificate(folder / "ca.pem", certificate)
    return folder / "ca.pem"


def issue(
    authority: Path,
    folder: Path,
    common_name: str,
    dns_names: Sequence[str] = (),
    ip_addresses: Sequence[str] = (),
    *,
    days: int = CERTIFICATE_DAYS,
) -> TlsFiles:
    """A key and a certificate for one party or relay; never overwrites a key.

    With names or addresses it is for who listens (relay, SuperLink), without for a party that
    dials, and good for that only: no party can pass for the relay.
    """
    try:
        addresses = [x509.IPAddress(ipaddress.ip_address(text)) for text in ip_addresses]
    except ValueError:
        raise ConfigError(
            "an IP address cannot be read; write it as 192.0.2.1 or 2001:db8::1"
        ) from None
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    files = TlsFiles.of(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    _write_key(files.key, key)
    names = [*(x509.DNSName(name) for name in dns_names), *addresses]
    _certify(authority, files, key.public_key(), common_name, names, days)
    return files


def renew(authority: Path, folder: Path, *, days: int = CERTIFICATE_DAYS) -> TlsFiles:
    """A fresh certificate for the same key, name and addresses. Identity does not change."""
    files = TlsFiles.of(folder)
    old = _load_certificate(files.cert, _read(files.cert))
    key = _load_key(files.key, _read(files.key))
    (common_name,) = old.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    try:
        names = list(old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        names = []
    _certify(authority, files, key.public_key(), str(common_name.value), names, days)
    return files


def key_fingerprint(certificate: bytes) -> bytes:
    """Hash of a certificate's public key: the same after a renewal."""
    found = _load_certificate(Path("certificate"), certificate)
    public = found.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hash_bytes("isonomy/tls-key/v1", public)


# --- gRPC ----------------------------------------------------------------------------------------


def client_credentials(tls: TlsFiles) -> Any:
    """Channel credentials: our certificate shown, only our own authority trusted."""
    ca, cert, key = tls.read()
    return grpc.ssl_channel_credentials(ca, key, cert)


def server_credentials(tls: TlsFiles) -> Any:
    """Server credentials that demand a certificate from our authority of every client."""
    ca, cert, key = tls.read()
    return grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=True)


def diagnose(tls: TlsFiles, address: str, server_name: str) -> CertificateError | None:
    """Why TLS fails at this address, if it does; None if it would work. OSError: not reachable.

    gRPC calls a refused certificate "unavailable", like a server that is down; but the one is worth
    trying again and the other is not. So ask the operating system's TLS.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(tls.ca)
    context.load_cert_chain(tls.cert, tls.key)
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    where = (host.strip("[]"), int(port))
    try:
        for pause_s in (0.1, 0.0):
            if _welcome(context, where, server_name):
                return None
            time.sleep(pause_s)  # once may be a server that is just going down
    except ssl.SSLCertVerificationError as error:
        return CertificateError(
            f"the relay at {address} does not show a certificate for {server_name!r} from our "
            f"authority ({error.verify_message}); check the address and the CA file"
        )
    return CertificateError(
        f"the relay at {address} refused our certificate; it must be issued by the relay's "
        "authority and not have expired"
    )


def _welcome(context: ssl.SSLContext, where: tuple[str, int], server_name: str) -> bool:
    """Does the server speak first, as HTTP/2 servers do, once it has seen our certificate?

    In TLS 1.3 its verdict comes after our handshake: it hangs up, with or without an alert.
    """
    with (
        socket.create_connection(where, timeout=5) as plain,
        context.wrap_socket(plain, server_hostname=server_name) as secure,
    ):
        try:
            return bool(secure.recv(1))
        except TimeoutError:
            raise
        except OSError:
            return False


# --- How certificates are made ------------------------------------------------------------------


def _certify(
    authority: Path,
    files: TlsFiles,
    public: Any,
    common_name: str,
    names: Sequence[x509.GeneralName],
    days: int,
) -> None:
    ca_pem = _read(authority / "ca.pem")
    ca = _load_certificate(authority / "ca.pem", ca_pem)
    ca_key = _load_key(authority / "ca.key", _read(authority / "ca.key"))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    usage = ExtendedKeyUsageOID.SERVER_AUTH if names else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = (
        _builder(ca.subject, subject, public, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    _write_certificate(files.cert, builder.sign(ca_key, hashes.SHA256()))
    _write(files.ca, ca_pem)


def _builder(issuer: x509.Name, subject: x509.Name, public: Any, days: int) -> Any:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_PEM_BYTES)
    except OSError as error:
        raise CertificateError(f"cannot read {path}: {error.strerror}") from None


def _load_certificate(path: Path, pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise CertificateError(f"{path} is not a certificate in PEM form") from None


def _load_key(path: Path, pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError):
        raise CertificateError(f"{path} is not an unencrypted private key in PEM form") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(f"{path} is not an elliptic-curve key")
    return key


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"{path} exists already; a key is never overwritten") from None
    with os.fdopen(fd, "wb") as file:
        file.write(pem)


def _write_certificate(path: Path, certificate: x509.Certificate) -> None:
    _write(path, certificate.public_bytes(serialization.Encoding.PEM))


def _write(path: Path, data: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    partial.replace(path)  # a running relay or party never reads half a certificate
