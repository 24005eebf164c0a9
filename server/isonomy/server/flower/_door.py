"""The door: the only way in for parties' nodes. Mutual TLS, and an ASGI filter before Flower's app.

A request passes if all of this holds, else the answer is 403 and Flower does not see it:

    (1) it is a POST on one of the fleet routes that a node needs
    (2) the certificate that TLS verified has the role "node"
    (3) it has the key that is registered under its name now
    (4) Flower's header has this key, too, so that Flower's node is the certificate's
    (5) the body is small, comes soon, and speaks for no other node

Of a node with (2) and (3), `GET /` is answered with 204: `isonomy preflight` asks so.

TLS and HTTP are uvicorn's, which Flower brings.
"""

from __future__ import annotations

import asyncio
import binascii
import ssl
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, cast

import uvicorn
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from google.protobuf.message import DecodeError
from uvicorn.protocols.http.h11_impl import H11Protocol

from isonomy.common.base.errors import IsonomyError
from isonomy.common.keys.certificates import NODE, Holder
from isonomy.server.config import ServerConfig
from isonomy.server.relay.connections import Strangers

ACTIVATE, PUSH = "/v1/fleet/activate-node", "/v1/fleet/push-messages"
ROUTES = frozenset(
    {
        ACTIVATE,
        PUSH,
        "/v1/fleet/deactivate-node",
        "/v1/fleet/send-node-heartbeat",
        "/v1/fleet/pull-messages",
        "/v1/fleet/pull-object",
        "/v1/fleet/push-object",
        "/v1/fleet/confirm-message-received",
    }
)
MAX_BODY_BYTES = 1 << 22
BODY_S = 20.0
IDLE_S = 15  # a connection without a request ends
MAX_CONNECTIONS_OF_ONE = 8  # by the key in the certificate
_HEADER = FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode()
_CERTIFICATE = "isonomy-certificate"

Admit = Callable[[str, bytes], None]


class Refused(Exception):  # noqa: N818  (reads as the event it is)
    """Why a request does not pass; for the log, not for the caller."""


class Door:
    """The filter. `admit` makes a registered node known to Flower."""

    def __init__(
        self,
        app: Any,
        config: ServerConfig,
        admit: Admit,
        log: Any,
        on_refusal: Callable[[], None] = lambda: None,
    ) -> None:
        self._app, self._config, self._admit, self._log = app, config, admit, log
        self._on_refusal = on_refusal

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, or answer it with 403."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            if (scope["method"], scope["path"]) == ("GET", "/"):  # `isonomy preflight` looks
                self._log.info("preflight", party=self._node(scope).name)
                await _answer(send, 204)
                return
            holder = self._check(scope)
            body = await _read(receive)
            _check_body(scope["path"], body)
            if scope["path"] == ACTIVATE:
                self._admit(holder.name, holder.public_key)
        except (Refused, IsonomyError, TimeoutError) as error:
            self._on_refusal()
            self._log.warning("door refused", path=scope["path"][:80], reason=str(error))
            await _answer(send, 403)
            return
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Any:
            return parts.pop() if parts else await receive()

        await self._app(scope, again, send)

    def _check(self, scope: Any) -> Holder:
        if scope["method"] != "POST" or scope["path"] not in ROUTES:
            raise Refused("no route for nodes")  # (1)
        holder = self._node(scope)
        values = [value for name, value in scope["headers"] if name == _HEADER]
        try:
            if len(values) != 1 or b64decode(values[0], validate=True) != holder.public_key:
                raise Refused(f"{holder.name} shows Flower another key")  # (4)
        except binascii.Error:
            raise Refused(f"{holder.name} shows Flower no key") from None
        return holder

    def _node(self, scope: Any) -> Holder:
        """Return whose certificate TLS has verified: a registered node's."""
        holder = Holder.of(scope["state"][_CERTIFICATE])
        if holder.role != NODE:
            raise Refused(f"{holder.name} came with a certificate of a {holder.role}")  # (2)
        if holder.public_key != self._config.node_key(holder.name):
            raise Refused(f"{holder.name} has no node with this key")  # (3)
        return holder


async def _answer(send: Any, status: int) -> None:
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _read(receive: Any) -> bytes:
    body, more = b"", True
    async with asyncio.timeout(BODY_S):
        while more:
            part = await receive()
            if part["type"] != "http.request":
                raise Refused("the caller hung up")
            body, more = body + part.get("body", b""), part.get("more_body", False)
            if len(body) > MAX_BODY_BYTES:
                raise Refused("the body is too large")
    return body


def _check_body(path: str, body: bytes) -> None:
    """Flower checks who pushes a reply, but not whose reply it is."""
    if path == PUSH:
        try:
            request = PushMessagesRequest.FromString(body)
        except DecodeError:
            raise Refused("the body is no message") from None
        sources = {message.metadata.src_node_id for message in request.messages_list}
        if sources != {request.node.node_id}:
            raise Refused("a reply in another node's name")  # (5)


class _Protocol(H11Protocol):
    """uvicorn's HTTP/1.1, which also tells the filter whose certificate TLS has verified."""

    _of_one: ClassVar[Counter[bytes]] = Counter()
    _certificate = b""

    def connection_made(self, transport: Any) -> None:
        """Note the certificate; an idle connection ends, and so does one too many."""
        super().connection_made(transport)
        self._certificate = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        self.app_state = {**self.app_state, _CERTIFICATE: self._certificate}
        self._of_one[self._certificate] += 1
        if self._of_one[self._certificate] > MAX_CONNECTIONS_OF_ONE:
            transport.close()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it off."""
        super().connection_lost(exc)
        self._of_one[self._certificate] -= 1
        if not self._of_one[self._certificate]:
            del self._of_one[self._certificate]


class DoorServer(uvicorn.Server):
    """uvicorn with mutual TLS 1.3; `ready` is called when it listens."""

    def __init__(self, door: Door, config: ServerConfig, ready: Callable[[], None]) -> None:
        settings = uvicorn.Config(
            door,
            host=config.door.host,
            port=config.door.port,
            http=_Protocol,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=2,
            ssl_certfile=str(config.tls.cert),
            ssl_keyfile=str(config.tls.key),
            ssl_ca_certs=str(config.tls.ca),
            ssl_cert_reqs=ssl.CERT_REQUIRED,
        )
        settings.load()
        cast(ssl.SSLContext, settings.ssl).minimum_version = ssl.TLSVersion.TLSv1_3
        super().__init__(settings)
        self._ready, self._strangers = ready, Strangers(config.door.port)

    async def startup(self, sockets: Any = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def on_tick(self, counter: int) -> bool:
        """Twice a second, hang up on those who connect and do not finish TLS."""
        if counter % 5 == 0:
            peers = {item.client for item in self.server_state.connections}
            self._strangers.hang_up({peer for peer in peers if peer}, time.monotonic())
        return await super().on_tick(counter)
