"""TLS on every hop, both ways: an authority of our own, short certificates, renewal.

    make_authority(folder)                     folder/ca.key (0600), folder/ca.pem
    make_request(folder, name, role)           party: folder/tls.key (0600), tls.csr
    sign_request(authority, request, folder)   server: folder/tls.pem, ca.pem, from a tls.csr
    install(folder, certificate, ca)           party: tls.pem and ca.pem beside its key
    issue(authority, folder, name, …)          all of it at once, on one machine
    renew(authority, folder)                   a new tls.pem for the same key and names

A party's key is made where it is used; the server sees the request, which holds the public half.

A certificate only admits a party to the relay; the keys that the plan pins decide who may say what
(docs/design.md, section 5). Renewal keeps the key, so that tokens bound to the relay's key stay
valid.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import CertificateError, ConfigError
from isonomy.common.base.private_files import create_private, write_whole
from isonomy.common.keys.party import PARTY_NAME

AUTHORITY_DAYS, CERTIFICATE_DAYS = 3650, 397
CLOCK_SKEW = timedelta(minutes=5)
MAX_PEM_BYTES = 1 << 16
_CURVES = ("secp256r1", "secp384r1")


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
        """Return the three files, checked as far as one party can check them alone."""
        ca, cert, key = (_read(path) for path in (self.ca, self.cert, self.key))
        if self.key.stat().st_mode & 0o077:
            raise CertificateError(f"{self.key} is readable by others; run: chmod 600 {self.key}")
        certificate = _load_certificate(self.cert, cert)
        if certificate.public_key() != _load_key(self.key, key).public_key():
            raise CertificateError(f"{self.cert} was not issued for the key {self.key}")
        expiry = certificate.not_valid_after_utc
        if expiry < datetime.now(UTC):
            raise CertificateError(f"{self.cert} expired on {expiry:%Y-%m-%d}; renew it")
        return ca, cert, key


def make_authority(folder: Path, common_name: str = "Isonomy authority") -> Path:
    """Make an authority in a folder that has none. Returns the path of its certificate."""
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
    write_whole(folder / "ca.pem", _pem(certificate))
    return folder / "ca.pem"


def issue(
    authority: Path,
    folder: Path,
    common_name: str,
    dns_names: Sequence[str] = (),
    ip_addresses: Sequence[str] = (),
) -> TlsFiles:
    """Make a key and a certificate for one party or relay; never overwrite a key.

    With names or addresses it is a server's certificate (relay, SuperLink). Without, it is a
    client's and good for nothing else: no party can pass for the relay.
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
    _certify(authority, files, key.public_key(), common_name, names)
    return files


def renew(authority: Path, folder: Path) -> TlsFiles:
    """Make a fresh certificate for the same key, name and addresses."""
    files = TlsFiles.of(folder)
    old = _load_certificate(files.cert, _read(files.cert))
    key = _load_key(files.key, _read(files.key))
    (common_name,) = old.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    try:
        names = list(old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        names = []
    _certify(authority, files, key.public_key(), str(common_name.value), names)
    return files


def key_fingerprint(certificate: bytes) -> bytes:
    """Return the hash of a certificate's public key: the same after a renewal."""
    return _key_hash(_load_certificate(Path("certificate"), certificate).public_key())


def _key_hash(key: Any) -> bytes:
    public = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hash_bytes("isonomy/tls-key/v1", public)


# --- A party makes its own key; the authority only sees a request ------------------------------


def make_request(folder: Path, name: str, role: str) -> Path:
    """Make folder/tls.key, and folder/tls.csr to send to the server's operator. Returns the latter.

    An existing key stays: the request then leads to a renewal. The role is for the operator to
    read; the party's card decides what it may do.
    """
    _check_name(name)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = TlsFiles.of(folder).key
    if path.exists():
        key = _load_key(path, _read(path))
    else:
        key = ec.generate_private_key(ec.SECP256R1())
        _write_key(path, key)
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, name),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role),
        ]
    )
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    signed = request.sign(key, hashes.SHA256())
    write_whole(folder / "tls.csr", _pem(signed))
    return folder / "tls.csr"


@dataclass(frozen=True)
class Request:
    """A checked request: its sender has the key. The operator asks whether the name is theirs."""

    name: str
    role: str
    public: ec.EllipticCurvePublicKey

    @classmethod
    def load(cls, path: Path) -> Request:
        """Total: whatever the file holds, a request or a CertificateError."""
        try:
            request = x509.load_pem_x509_csr(_read(path))
            public, genuine = request.public_key(), request.is_signature_valid
            names, roles = (
                [str(attribute.value) for attribute in request.subject.get_attributes_for_oid(kind)]
                for kind in (NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME)
            )
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise CertificateError(f"{path} is not a certificate request in PEM form") from None
        if not genuine or not isinstance(public, ec.EllipticCurvePublicKey):
            raise CertificateError(f"{path} is not signed by an elliptic-curve key of its sender")
        if public.curve.name not in _CURVES or len(names) != 1 or len(roles) > 1:
            raise CertificateError(f"{path} was not made by `tls-request` or `init`")
        _check_name(names[0])
        return cls(names[0], "".join(roles)[:32], public)

    @property
    def fingerprint(self) -> str:
        return _spoken(self.public)


def sign_request(authority: Path, request: Request, folder: Path) -> TlsFiles:
    """Make folder/tls.pem and folder/ca.pem, to send back.

    Only name and key come from the request: whatever it asks for, it gets a client's certificate.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = TlsFiles.of(folder)
    _certify(authority, files, request.public, request.name, [])
    return files


def install(folder: Path, certificate: Path, ca: Path) -> TlsFiles:
    """Put a signed certificate beside the key of its request. Raises before anything changes."""
    files = TlsFiles.of(folder)
    ca_pem, pem, _ = read_issued(TlsFiles(ca, certificate, files.key))
    write_whole(files.ca, ca_pem)
    write_whole(files.cert, pem)
    return files


def read_issued(files: TlsFiles) -> tuple[bytes, bytes, bytes]:
    """Read the three files; CertificateError unless the authority issued the certificate."""
    ca_pem, pem, key = files.read()
    try:
        issuer = _load_certificate(files.ca, ca_pem)
        _load_certificate(files.cert, pem).verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        text = f"{files.cert} was not issued by the authority in {files.ca}"
        raise CertificateError(text) from None
    return ca_pem, pem, key


def authority_fingerprint(ca: Path) -> str:
    """Return what operator and parties compare by voice: the authority that names them."""
    return _spoken(_load_certificate(ca, _read(ca)).public_key())


def _spoken(public: Any) -> str:
    """Return 128 bits of a key's hash, in eight groups of four hexadecimal digits."""
    digest = _key_hash(public).hex()[:32]
    return " ".join(digest[i : i + 4] for i in range(0, 32, 4))


def _check_name(name: str) -> None:
    if not re.fullmatch(PARTY_NAME, name):
        raise CertificateError(
            "a party's name in a certificate has lower-case letters, digits, '.', '_' and '-'"
        )


# --- How certificates are made ------------------------------------------------------------------


def _certify(
    authority: Path,
    files: TlsFiles,
    public: Any,
    common_name: str,
    names: Sequence[x509.GeneralName],
) -> None:
    ca_pem = _read(authority / "ca.pem")
    ca = _load_certificate(authority / "ca.pem", ca_pem)
    ca_key = _load_key(authority / "ca.key", _read(authority / "ca.key"))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    usage = ExtendedKeyUsageOID.SERVER_AUTH if names else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = (
        _builder(ca.subject, subject, public, CERTIFICATE_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    write_whole(files.cert, _pem(builder.sign(ca_key, hashes.SHA256())))
    write_whole(files.ca, ca_pem)


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
    create_private(path, pem)


def _pem(signed: x509.Certificate | x509.CertificateSigningRequest) -> bytes:
    return signed.public_bytes(serialization.Encoding.PEM)
