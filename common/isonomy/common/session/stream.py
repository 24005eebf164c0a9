"""One stream to the relay, made again whenever it breaks: gRPC, threads and the clock.

A background thread connects, reads, and reconnects with back-off; gRPC's own thread writes what is
queued, and a sign of life when nothing is. Only the handler knows what the bytes mean.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import grpc  # type: ignore[import-untyped]

from isonomy.common.base.errors import IsonomyError, OversizedMessage
from isonomy.common.keys.certificates import TlsFiles
from isonomy.common.session.tls_channels import client_credentials, diagnose
from isonomy.common.wire.envelopes import MAX_ENVELOPE_BYTES, SERVICE_METHOD

_END = b""


@dataclass(frozen=True)
class Timing:
    """Seconds. The defaults suit real networks; tests use shorter ones."""

    heartbeat_s: float = 2.0
    silence_s: float = 15.0  # without a message from the relay: then the stream is dead
    backoff_s: float = 0.2
    max_backoff_s: float = 10.0
    absence_s: float = 600.0  # how long another party, or the relay, may stay away
    flush_s: float = 5.0  # how long `close` waits for its last message to arrive


Outbox = queue.SimpleQueue[bytes]
"""What waits to be written to one stream; empty bytes end it."""


class StreamHandler(Protocol):
    """The user of a stream. Every call comes from the stream's own threads."""

    def on_connecting(self) -> tuple[str, bytes]:
        """Return the relay's address now, and the first message."""

    def on_message(self, raw: bytes, outbox: Outbox) -> None:
        """A message came. An IsonomyError ends the stream for good."""

    def on_idle(self, outbox: Outbox) -> None:
        """Nothing was written for a while: send a sign of life."""

    def on_lost(self) -> None:
        """The stream broke; a new one will be tried unless `on_end` follows."""

    def on_end(self, error: IsonomyError) -> bool:
        """Another stream would fail alike. Returns True if there is another ticket to try."""


class RelayStream:
    """Keeps up a stream to the relay until `stop`, or until trying again is useless."""

    def __init__(
        self, handler: StreamHandler, tls: TlsFiles, relay_name: str, timing: Timing
    ) -> None:
        self._handler, self._tls, self._relay_name = handler, tls, relay_name
        self._timing = timing
        self._stopped = threading.Event()
        self._outbox: Outbox | None = None
        self._call: Any = None
        self._heard_at = 0.0
        self._address = ""
        self._thread = threading.Thread(target=self._run, name="session", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write what is queued, then end."""
        self._stopped.set()
        outbox = self._outbox
        if outbox is not None:
            outbox.put(_END)
        if threading.current_thread() is not self._thread:
            self._thread.join(self._timing.flush_s)
        self.interrupt()

    def interrupt(self) -> None:
        """Break the stream, so that it is made anew (or, after `stop`, not)."""
        call = self._call
        if call is not None:
            call.cancel()

    def _run(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            self._heard_at = 0.0
            try:
                self._try_once()
            except IsonomyError as error:
                if not self._handler.on_end(error):
                    return
            except Exception as error:  # so that no caller waits for a dead thread
                self._handler.on_end(IsonomyError(f"the session failed: {type(error).__name__}"))
                raise
            # A stream that was heard proves that the relay is there: pauses are short again.
            failures = 1 if self._heard_at else failures + 1
            longest = self._timing.backoff_s * 2.0 ** min(failures, 16)
            longest = min(self._timing.max_backoff_s, longest)
            # Spread, so that the parties of a restarted relay do not all come at once. Not secret.
            self._stopped.wait(random.uniform(longest / 2, longest))  # noqa: S311

    def _try_once(self) -> None:
        """One stream from beginning to end; raises only if another one would not help."""
        try:
            self._once()
        except grpc.RpcError as error:
            hopeless = self._hopeless(error)
            if hopeless is not None:
                raise hopeless from None

    def _once(self) -> None:
        self._address, first = self._handler.on_connecting()
        outbox: Outbox = queue.SimpleQueue()
        outbox.put(first)
        credentials = client_credentials(self._tls)
        options = channel_options(self._relay_name, self._timing)
        # The scheme is fixed here: alone, "unix:1" would be a file and "dns:1" a host called 1.
        target = f"dns:///{self._address}"
        with grpc.secure_channel(target, credentials, options) as channel:
            self._outbox = outbox
            self._call = call = channel.stream_stream(SERVICE_METHOD)(self._outgoing(outbox))
            # In a network that drops everything, a connection neither succeeds nor fails.
            first_word = threading.Timer(self._timing.silence_s, call.cancel)
            first_word.daemon = True
            first_word.start()
            if self._stopped.is_set():
                outbox.put(_END)
            try:
                for raw in call:
                    first_word.cancel()
                    self._heard_at = time.monotonic()
                    self._handler.on_message(raw, outbox)
            finally:
                first_word.cancel()
                outbox.put(_END)
                self._handler.on_lost()
                call.cancel()

    def _outgoing(self, outbox: Outbox) -> Iterator[bytes]:
        start = time.monotonic()
        while True:
            try:
                raw = outbox.get(timeout=self._timing.heartbeat_s)
            except queue.Empty:
                silent = time.monotonic() - max(start, self._heard_at)
                if silent > self._timing.silence_s:
                    self.interrupt()
                    return
                self._handler.on_idle(outbox)
                continue
            if raw == _END:
                return
            yield raw

    def _hopeless(self, error: Any) -> IsonomyError | None:
        """Return the error of a stream that would be refused for ever; None if it only broke."""
        full = error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        if full and "larger than max" in (error.details() or ""):  # else: too many streams just now
            return OversizedMessage("the relay takes no message of this size")
        if error.code() == grpc.StatusCode.UNAVAILABLE and not self._heard_at:
            with suppress(OSError):
                return diagnose(self._tls, self._address, self._relay_name)
        return None


def channel_options(relay_name: str, timing: Timing | None = None) -> list[tuple[str, Any]]:
    """Return gRPC's settings for a party's channel."""
    # Only gRPC notices silence in the middle of a message: it then pings the relay, which accepts
    # at most one ping per second.
    sign_of_life_ms = max(2000, round(1000 * (timing or Timing()).silence_s * 2 / 3))
    return [
        # The certificate must bear the name that the plan gives the relay, whatever the address.
        ("grpc.ssl_target_name_override", relay_name),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),  # our own back-off, not one shared with old channels
        ("grpc.max_receive_message_length", 2 * MAX_ENVELOPE_BYTES),
        ("grpc.max_send_message_length", 2 * MAX_ENVELOPE_BYTES),
        ("grpc.http2.lookahead_bytes", 1 << 23),
        ("grpc.http2.max_frame_size", 1 << 20),
        ("grpc.keepalive_time_ms", sign_of_life_ms),
        ("grpc.keepalive_timeout_ms", sign_of_life_ms),
    ]
