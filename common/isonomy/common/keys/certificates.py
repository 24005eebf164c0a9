"""TLS on every hop, both ways: an authority of our own, short certificates, renewal.

    Authority.create(folder, passphrase)       folder/ca.key (sealed, 0600), folder/ca.pem
    make_request(folder, name, role)           party: folder/tls.key (0600), tls.csr
    sign_request(authority, request, folder)   operator: folder/tls.pem, ca.pem, from a tls.csr
    install(folder, certificate, ca)           party: tls.pem and ca.pem beside its key
    issue(authority, folder, name, role, …)    all of it at once, on one machine
    renew(authority, folder)                   a new tls.pem for the same key, name and role

A party's key is made where it is used; the operator sees the request, which holds the public half.

    role (OU)            good for
    company, regulator   the relay: a party's daemon or script
    node                 the door: a party's Flower node, and nothing else of the party
    server               being the relay and the door; no client

A certificate only admits its holder; the keys that the plan pins decide who may say what
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
from typing import Any, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import CertificateError, ConfigError, VerificationError
from isonomy.common.base.private_files import create_private, private_folder, write_whole
from isonomy.common.keys.party import PARTY_NAME

AUTHORITY_DAYS, CERTIFICATE_DAYS = 3650, 397
CLOCK_SKEW = timedelta(minutes=5)
MAX_PEM_BYTES = 1 << 16
MIN_PASSPHRASE_CHARS = 12
SCRYPT_LOG_N = 17  # 128 MiB and a third of a second for each guess at the passphrase
PARTIES, NODE, SERVER = ("company", "regulator"), "node", "server"
_KIT = b"isonomy/kit/v1\0"
_CURVES = ("secp256r1", "secp384r1")
_UNREADABLE = (
    *(ValueError, TypeError, UnsupportedAlgorithm),
    *(x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType),
)


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


@dataclass(frozen=True)
class Authority:
    """Who signs certificates. The key is in memory for one command, and sealed on the disk."""

    ca: bytes
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, folder: Path, passphrase: str) -> Self:
        """Make an authority in a folder that has none: ca.key, sealed, and ca.pem."""
        if len(passphrase) < MIN_PASSPHRASE_CHARS:
            raise ConfigError(f"a passphrase has at least {MIN_PASSPHRASE_CHARS} characters")
        private_folder(folder, home=True)
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Isonomy authority")])
        certificate = (
            _builder(name, key.public_key(), name, key.public_key(), AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(sign_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        sealing = serialization.BestAvailableEncryption(_sealing_key(certificate, passphrase))
        _write_key(folder / "ca.key", key, sealing)
        write_whole(folder / "ca.pem", _pem(certificate))
        return cls(_pem(certificate), key)

    @classmethod
    def open(cls, folder: Path, passphrase: str) -> Self:
        """Unseal an authority's key; CertificateError if the passphrase is another."""
        ca, sealed = _read(folder / "ca.pem"), _read(folder / "ca.key")
        secret = _sealing_key(_load_certificate(folder / "ca.pem", ca), passphrase)
        try:
            key = serialization.load_pem_private_key(sealed, secret)
        except (ValueError, TypeError):
            text = f"{folder / 'ca.key'} does not open with this passphrase"
            raise CertificateError(text) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise CertificateError(f"{folder / 'ca.key'} is not an elliptic-curve key")
        return cls(ca, key)

    def sign(self, message: bytes) -> bytes:
        """Sign the list of a kit's files. No certificate begins with the same bytes."""
        return self.key.sign(_KIT + message, ec.ECDSA(hashes.SHA256()))


def _sealing_key(certificate: x509.Certificate, passphrase: str) -> bytes:
    """Return what the key file is encrypted with.

    PKCS8 derives its key by 2,048 rounds of PBKDF2, which is little against guessing; scrypt comes
    before that. The salt need not be secret, only different for each authority.
    """
    scrypt = Scrypt(_key_hash(certificate.public_key()), 32, n=1 << SCRYPT_LOG_N, r=8, p=1)
    return scrypt.derive(passphrase.encode()).hex().encode()


def verify_by_authority(ca: bytes, message: bytes, signature: bytes) -> None:
    """Raise VerificationError unless the authority of this certificate signed the message."""
    public: Any = _load_certificate(Path("ca.pem"), ca).public_key()
    try:
        public.verify(signature, _KIT + message, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise VerificationError("the authority's signature does not fit these files") from None


def issue(
    authority: Authority,
    folder: Path,
    name: str,
    role: str,
    dns_names: Sequence[str] = (),
    ip_addresses: Sequence[str] = (),
) -> TlsFiles:
    """Make a key and a certificate; never overwrite a key.

    Names and addresses are for a server's certificate. A client's is good for nothing else: no
    party can pass for the server.
    """
    try:
        addresses = [x509.IPAddress(ipaddress.ip_address(text)) for text in ip_addresses]
    except ValueError:
        raise ConfigError(
            "an IP address cannot be read; write it as 192.0.2.1 or 2001:db8::1"
        ) from None
    private_folder(folder)
    files = TlsFiles.of(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    _write_key(files.key, key)
    names = [*(x509.DNSName(name) for name in dns_names), *addresses]
    _certify(authority, files, key.public_key(), _subject(name, role), names)
    return files


def renew(authority: Authority, folder: Path) -> TlsFiles:
    """Make a fresh certificate for the same key, name, role and addresses; needs no private key."""
    files = TlsFiles.of(folder)
    old = _load_certificate(files.cert, _read(files.cert))
    _check_issuer(old, _load_certificate(files.ca, authority.ca), files.cert)
    try:
        names = list(old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        names = []
    _certify(authority, files, old.public_key(), old.subject, names)
    return files


@dataclass(frozen=True)
class Holder:
    """Who a certificate says that its holder is. TLS, or `read_issued`, has verified it."""

    name: str
    role: str
    public_key: bytes  # in PEM form, as Flower has it in its headers

    @classmethod
    def of(cls, certificate: bytes) -> Holder:
        """Read a certificate in PEM or DER form; CertificateError if its subject is not ours."""
        path = Path("certificate")
        loaded = _load_certificate(path, certificate)
        name, role = _name_and_role(loaded.subject, path)
        public = loaded.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return cls(name, role, public)


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

    An existing key stays: the request then leads to a renewal.
    """
    private_folder(folder)
    path = TlsFiles.of(folder).key
    if path.exists():
        key = _load_key(path, _read(path))
    else:
        key = ec.generate_private_key(ec.SECP256R1())
        _write_key(path, key)
    request = x509.CertificateSigningRequestBuilder().subject_name(_subject(name, role))
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
        return cls.parse(_read(path), path)

    @classmethod
    def parse(cls, pem: bytes, path: Path) -> Request:
        """Read a request from bytes, which came in that file. Total, as `load`."""
        try:
            request = x509.load_pem_x509_csr(pem)
            public, genuine = request.public_key(), request.is_signature_valid
            subject = request.subject
        except _UNREADABLE:
            raise CertificateError(f"{path} is not a certificate request in PEM form") from None
        if not genuine or not isinstance(public, ec.EllipticCurvePublicKey):
            raise CertificateError(f"{path} is not signed by an elliptic-curve key of its sender")
        name, role = _name_and_role(subject, path)
        if public.curve.name not in _CURVES or role not in (*PARTIES, NODE):
            raise CertificateError(f"{path} was not made by `tls-request` or `node-request`")
        return cls(name, role, public)

    @property
    def fingerprint(self) -> str:
        return _spoken(self.public)


def sign_request(authority: Authority, request: Request, folder: Path) -> TlsFiles:
    """Make folder/tls.pem and folder/ca.pem, to send back.

    Only name, role and key come from the request: it gets a client's certificate, whatever it says.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = TlsFiles.of(folder)
    write_whole(files.cert, certify(authority, request))
    write_whole(files.ca, authority.ca)
    return files


def certify(authority: Authority, request: Request) -> bytes:
    """Return the certificate for a request, in PEM form."""
    return _certificate(authority, request.public, _subject(request.name, request.role), [])


def install(folder: Path, certificate: Path, ca: Path) -> TlsFiles:
    """Put a signed certificate beside the key of its request. Raises before anything changes."""
    files = TlsFiles.of(folder)
    ca_pem, pem, _ = read_issued(TlsFiles(ca, certificate, files.key))
    write_whole(files.ca, ca_pem)
    write_whole(files.cert, pem)
    return files


def read_issued(files: TlsFiles) -> tuple[bytes, bytes, bytes]:
    """Read the three files; CertificateError unless the authority issued the certificate."""
    check_issued(files.ca, files.cert)
    return files.read()


def check_issued(ca: Path, certificate: Path) -> bytes:
    """Return a certificate; CertificateError unless this authority issued it."""
    pem = _read(certificate)
    issuer = _load_certificate(ca, _read(ca))
    _check_issuer(_load_certificate(certificate, pem), issuer, certificate)
    return pem


def _check_issuer(certificate: x509.Certificate, issuer: x509.Certificate, path: Path) -> None:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        raise CertificateError(f"{path} was not issued by this authority") from None


def spoken_authority(ca: bytes) -> str:
    """Return the same for a certificate in bytes."""
    return _spoken(_load_certificate(Path("ca.pem"), ca).public_key())


def authority_fingerprint(ca: Path) -> str:
    """Return what operator and parties compare by voice: the authority that names them."""
    return _spoken(_load_certificate(ca, _read(ca)).public_key())


def _spoken(public: Any) -> str:
    """Return 128 bits of a key's hash, in eight groups of four hexadecimal digits."""
    digest = _key_hash(public).hex()[:32]
    return " ".join(digest[i : i + 4] for i in range(0, 32, 4))


def _subject(name: str, role: str) -> x509.Name:
    if role != SERVER and not re.fullmatch(PARTY_NAME, name):
        raise CertificateError(
            "a party's name in a certificate has lower-case letters, digits, '.', '_' and '-'"
        )
    return x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, name),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role),
        ]
    )


def _name_and_role(subject: x509.Name, path: Path) -> tuple[str, str]:
    """Return what `_subject` put in; CertificateError for any other subject."""
    parts = [(part.oid, str(part.value)) for part in subject]
    if [oid for oid, _ in parts] != [NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME]:
        raise CertificateError(f"{path} does not hold one name and one role")
    (_, name), (_, role) = parts
    _subject(name, role)  # only names that could have been written
    return name, role


# --- How certificates are made ------------------------------------------------------------------


def _certify(
    authority: Authority,
    files: TlsFiles,
    public: Any,
    subject: x509.Name,
    names: Sequence[x509.GeneralName],
) -> None:
    write_whole(files.cert, _certificate(authority, public, subject, names))
    write_whole(files.ca, authority.ca)


def _certificate(
    authority: Authority, public: Any, subject: x509.Name, names: Sequence[x509.GeneralName]
) -> bytes:
    """Return a certificate in PEM form: a server's if it has names, else a client's."""
    ca = _load_certificate(Path("ca.pem"), authority.ca)
    usage = ExtendedKeyUsageOID.SERVER_AUTH if names else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = (
        _builder(ca.subject, ca.public_key(), subject, public, CERTIFICATE_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _pem(builder.sign(authority.key, hashes.SHA256()))


def _builder(issuer: x509.Name, issuer_key: Any, subject: x509.Name, public: Any, days: int) -> Any:
    now = datetime.now(UTC)
    # From Python 3.13 on, TLS is strict about RFC 5280: both keys must be named.
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(signer, critical=False)
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


def _load_certificate(path: Path, raw: bytes) -> x509.Certificate:
    """Return the certificate in these bytes, PEM or DER; CertificateError for anything else."""
    is_pem = raw.startswith(b"-----")
    try:
        load = x509.load_pem_x509_certificate if is_pem else x509.load_der_x509_certificate
        certificate = load(raw)
        # The library parses these only when they are asked for: now, or in the middle of use.
        _ = (certificate.subject, certificate.extensions, certificate.not_valid_after_utc)
        public = certificate.public_key()
    except _UNREADABLE:
        raise CertificateError(f"{path} is not a certificate in PEM form") from None
    if not isinstance(public, ec.EllipticCurvePublicKey):
        raise CertificateError(f"{path} is not for an elliptic-curve key")
    return certificate


def _load_key(path: Path, pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError):
        raise CertificateError(f"{path} is not an unencrypted private key in PEM form") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(f"{path} is not an elliptic-curve key")
    return key


def _write_key(
    path: Path,
    key: ec.EllipticCurvePrivateKey,
    sealing: serialization.KeySerializationEncryption | None = None,
) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        sealing or serialization.NoEncryption(),
    )
    create_private(path, pem)


def _pem(signed: x509.Certificate | x509.CertificateSigningRequest) -> bytes:
    return signed.public_bytes(serialization.Encoding.PEM)
