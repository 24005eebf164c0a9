"""A party's TLS key is made where it is used; the server signs a request and never sees the key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from authority_kit import PASSPHRASE, authority
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from isonomy.common.base.errors import CertificateError, IsonomyError
from isonomy.common.keys.certificates import (
    Request,
    TlsFiles,
    install,
    key_fingerprint,
    make_request,
    sign_request,
)
from isonomy.company.cli.company import app as company_app
from isonomy.server.cli import app as server_app

AUTHORITY = "authority"


def request_of(folder: Path, key: object, *names: str) -> Path:
    """A request by somebody who does not use our function."""
    kinds = (*(NameOID.COMMON_NAME for _ in names), NameOID.ORGANIZATIONAL_UNIT_NAME)
    parts = zip(kinds, (*names, "company"), strict=True)
    subject = x509.Name([x509.NameAttribute(kind, value) for kind, value in parts])
    asked = x509.SubjectAlternativeName([x509.DNSName("relay")])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    signed = builder.add_extension(asked, critical=True).sign(key, hashes.SHA256())  # type: ignore[arg-type]
    path = folder / "other.csr"
    path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    return path


class TestRequests:
    def test_signed_and_installed(self, tmp_path: Path) -> None:
        path = make_request(tmp_path / "tls", "acme", "company")
        assert (tmp_path / "tls" / "tls.key").stat().st_mode & 0o777 == 0o600
        request = Request.load(path)
        assert (request.name, request.role) == ("acme", "company")
        signed = sign_request(authority(tmp_path / AUTHORITY), request, tmp_path / "out")
        assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["ca.pem", "tls.pem"]
        files = install(tmp_path / "tls", signed.cert, signed.ca)
        files.read()
        found = x509.load_pem_x509_certificate(files.cert.read_bytes())
        (name,) = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        assert name.value == "acme"

    def test_renewal_keeps_the_key(self, tmp_path: Path) -> None:
        path = make_request(tmp_path / "tls", "acme", "company")
        key = (tmp_path / "tls" / "tls.key").read_bytes()
        first = sign_request(authority(tmp_path / AUTHORITY), Request.load(path), tmp_path / "out")
        before = first.cert.read_bytes()
        again = make_request(tmp_path / "tls", "acme", "company")
        second = sign_request(
            authority(tmp_path / AUTHORITY), Request.load(again), tmp_path / "out"
        )
        assert (tmp_path / "tls" / "tls.key").read_bytes() == key
        assert second.cert.read_bytes() != before
        assert key_fingerprint(second.cert.read_bytes()) == key_fingerprint(before)

    def test_what_a_request_asks_for_is_ignored(self, tmp_path: Path) -> None:
        """Who asks to be the relay becomes a party that dials."""
        path = request_of(tmp_path, ec.generate_private_key(ec.SECP256R1()), "acme")
        signed = sign_request(authority(tmp_path / AUTHORITY), Request.load(path), tmp_path / "out")
        found = x509.load_pem_x509_certificate(signed.cert.read_bytes()).extensions
        usage = found.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
        with pytest.raises(x509.ExtensionNotFound):
            found.get_extension_for_class(x509.SubjectAlternativeName)

    @pytest.mark.parametrize("names", [(), ("a", "b"), ("Acme",), ("a/../b",), ("acme\n",)])
    def test_names_that_no_party_has(self, tmp_path: Path, names: tuple[str, ...]) -> None:
        path = request_of(tmp_path, ec.generate_private_key(ec.SECP256R1()), *names)
        with pytest.raises(CertificateError):
            Request.load(path)

    def test_other_keys(self, tmp_path: Path) -> None:
        for key in (rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP256K1())):
            with pytest.raises(CertificateError):
                Request.load(request_of(tmp_path, key, "acme"))

    def test_a_request_for_somebody_elses_key(self, tmp_path: Path) -> None:
        """The signature in it shows that its maker has the key."""
        path = make_request(tmp_path / "tls", "acme", "company")
        found = x509.load_pem_x509_csr(path.read_bytes())
        der = bytearray(found.public_bytes(serialization.Encoding.DER))
        der[-1] ^= 1
        body = x509.load_der_x509_csr(bytes(der)).public_bytes(serialization.Encoding.PEM)
        path.write_bytes(body)
        with pytest.raises(CertificateError, match="not signed"):
            Request.load(path)

    @settings(max_examples=50)
    @given(st.binary(max_size=300))
    def test_reading_is_total(self, tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
        path = tmp_path_factory.mktemp("request") / "tls.csr"
        path.write_bytes(raw)
        with pytest.raises(CertificateError):
            Request.load(path)

    def test_a_certificate_of_another_key_or_authority(self, tmp_path: Path) -> None:
        mine = make_request(tmp_path / "mine", "acme", "company")
        theirs = make_request(tmp_path / "theirs", "acme", "company")
        for request, name in ((theirs, AUTHORITY), (mine, "other")):
            signer = authority(tmp_path / name)
            signed = sign_request(signer, Request.load(request), tmp_path / "out")
            with pytest.raises(CertificateError):
                install(tmp_path / "mine", signed.cert, tmp_path / AUTHORITY / "ca.pem")
        assert not TlsFiles.of(tmp_path / "mine").cert.exists(), "nothing was changed"


def test_by_commands(tmp_path: Path) -> None:
    """Company and server, as in docs/deploy.md: no key leaves the company's home."""
    run = CliRunner()
    home, server, ca = tmp_path / "company", tmp_path / "server", tmp_path / "operator"
    config = str(server / "server.toml")
    (tmp_path / "passphrase").write_text(PASSPHRASE)
    (tmp_path / "passphrase").chmod(0o600)
    signer = ("--authority", str(ca), "--passphrase-file", str(tmp_path / "passphrase"))

    def done(app: object, *arguments: str, **options: str) -> str:
        result = run.invoke(app, list(arguments), **options)  # type: ignore[arg-type]
        assert result.exit_code == 0, result.output
        return result.stdout

    done(server_app, "init", str(server), "--name", "relay.example", *signer)
    assert not list(server.rglob("ca.key")), "the authority's key is not the server's"
    done(company_app, "keys", "--name", "acme", "--home", str(home))
    made = json.loads(done(company_app, "tls-request", "--json", "--home", str(home)))
    out = tmp_path / "out"
    refused = run.invoke(
        server_app, ["sign", made["request"], "-o", str(out), *signer], input="n\n"
    )
    assert refused.exit_code == 1
    assert made["fingerprint"] in refused.output
    assert not out.exists()
    node = tmp_path / "node"
    done(company_app, "node-request", "--folder", str(node), "--name", "acme")
    requests = (made["request"], str(node / "tls.csr"))
    done(server_app, "sign", *requests, "-o", str(out), *signer, "--yes")
    pem = str(out / "acme" / "tls.pem")
    answer = done(company_app, "tls-install", pem, "--json", "--home", str(home))
    TlsFiles.of(home / "tls").read()
    assert len(json.loads(answer)["authority"].split()) == 8
    done(server_app, "register", str(out / "acme" / "node" / "tls.pem"), "-c", config)
    refused = run.invoke(server_app, ["register", str(out / "acme" / "tls.pem"), "-c", config])
    assert "not of a node" in str(refused.exception)
    key = (home / "tls" / "tls.key").read_bytes()
    for folder in (server, out):
        assert all(key != file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_installing_before_a_request(tmp_path: Path) -> None:
    with pytest.raises(IsonomyError, match="cannot read"):
        install(tmp_path / "tls", tmp_path / "tls.pem", tmp_path / "ca.pem")
