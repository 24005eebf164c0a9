"""TLS for gRPC, with certificates on both sides; and why it fails, if it does."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Any

import grpc  # type: ignore[import-untyped]

from isonomy.common.base.errors import CertificateError
from isonomy.common.keys.certificates import TlsFiles


def client_credentials(tls: TlsFiles) -> Any:
    """Return channel credentials: show our certificate, trust only our own authority."""
    ca, cert, key = tls.read()
    return grpc.ssl_channel_credentials(ca, key, cert)


def server_credentials(tls: TlsFiles) -> Any:
    """Return server credentials that demand a certificate from our authority of every client."""
    ca, cert, key = tls.read()
    return grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=True)


def diagnose(tls: TlsFiles, address: str, server_name: str) -> CertificateError | None:
    """Return why TLS fails at this address, or None if it works. OSError: not reachable.

    gRPC calls a refused certificate "unavailable", as it does a server that is down. Only the
    latter is worth another try, so this asks the operating system's TLS.
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
    """Say whether the server sends anything, as HTTP/2 servers do once they accept a certificate.

    In TLS 1.3 a refusal comes after our handshake: the server hangs up, with or without an alert.
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
