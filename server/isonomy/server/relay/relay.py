"""The relay as a gRPC server: mutual TLS, one stream per party, the rules of state.py.

Two threads serve a stream: one reads and applies the rules under one lock, the other writes what is
queued for the party. A party that breaks a rule gets a typed ErrorNote and loses its stream; the
others hear that it did, and why.

The thread `relay-keeper` writes a checkpoint a few times a second while something passes, ends
silent streams and hangs up on strangers. Trouble passes. Where no checkpoint can be written, nobody
is let in, and the party tries again; sessions go on, and what passed is written once that works.

The log names streams, parties, plans and queries, and never holds a payload, a token or a secret.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Self

import grpc  # type: ignore[import-untyped]

from isonomy.common.agreements.agreement import PlanPublic
from isonomy.common.base.canonical import MAX_INTEGER
from isonomy.common.base.errors import (
    MAX_NOTE_CHARS,
    CertificateError,
    ConfigError,
    IsonomyError,
    OversizedMessage,
    PortInUse,
    SessionClosed,
    StorageError,
    wire_code,
    wire_text,
)
from isonomy.common.base.logs import logger
from isonomy.common.base.malloc import reuse_freed_memory
from isonomy.common.base.private_files import private_folder, write_private
from isonomy.common.keys.certificates import PARTIES, Holder, TlsFiles, key_fingerprint
from isonomy.common.keys.identity import Identity
from isonomy.common.node.node import free_port
from isonomy.common.session.sealed_links import WINDOW_BYTES
from isonomy.common.session.tickets import SessionRole, Ticket, is_address, sign_token
from isonomy.common.session.tls_channels import server_credentials
from isonomy.common.wire.envelopes import (
    MAX_ENVELOPE_BYTES,
    SEQUENCED,
    SERVER,
    SERVICE_METHOD,
    Close,
    Envelope,
    ErrorNote,
    dump,
    parse,
)
from isonomy.server.config import ServerConfig
from isonomy.server.relay._state import Checkpoint, RelayState
from isonomy.server.relay.connections import (
    HANDSHAKE_S,
    MAX_CONNECTIONS,
    Strangers,
    peer_of,
    reserve_descriptors,
)
from isonomy.server.relay.metrics import RelayMetrics

TICKET_LIFE_S = 600
GRACE_S = 0.5  # for streams to end by themselves when the relay stops
# Of one sender, for one party. Who keeps to the window stays below it, even if it came back and
# sends its window again: nobody is blamed for another sender, nor for a reader that is slow.
MAX_QUEUED_BYTES = 2 * WINDOW_BYTES + 2 * MAX_ENVELOPE_BYTES
MAX_STREAMS = 32
MAX_STREAMS_OF_ONE = 4  # by the name in the certificate: a new one, and old ones about to end
SILENCE_S = 60.0  # a party that sends nothing, not even a sign of life, is not there
LOOK_S = 0.25  # between two looks at connections, streams and an unwritten checkpoint
MAX_PAUSE_S = 30.0  # between two tries to write it
_END = b""

OPTIONS = (
    ("grpc.so_reuseport", 0),  # a second relay on the port must fail, not share it
    ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
    ("grpc.max_receive_message_length", 2 * MAX_ENVELOPE_BYTES),
    ("grpc.max_send_message_length", 2 * MAX_ENVELOPE_BYTES),
    ("grpc.http2.lookahead_bytes", 1 << 23),
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)


class _Stream:
    """What is queued for one stream."""

    def __init__(self, context: Any) -> None:
        self.certificate, self.peer = _certificate_name(context), peer_of(context.peer())
        self.cancel, self.heard_at = context.cancel, time.monotonic()
        self._queue: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
        self._queued: Counter[str] = Counter()  # bytes, by sender
        self._lock = threading.Lock()

    def put(self, raw: bytes, sender: str = SERVER) -> None:
        with self._lock:
            if self._queued[sender] > MAX_QUEUED_BYTES:
                raise OversizedMessage("more was sent than the window allows; wait for the other")
            self._queued[sender] += len(raw)
        self._queue.put((sender, raw))

    def end(self) -> None:
        self._queue.put(("", _END))

    def drain(self, first_s: float) -> Iterator[bytes]:
        """Yield what is queued, until the end; nothing if nothing comes within `first_s`."""
        timeout_s: float | None = first_s
        with suppress(queue.Empty):
            while (item := self._queue.get(timeout=timeout_s))[1] != _END:
                timeout_s = None
                sender, raw = item
                yield raw
                with self._lock:
                    self._queued[sender] -= len(raw)


class RelayServer:
    """A relay for one plan."""

    def __init__(
        self,
        address: str,
        tls: TlsFiles,
        plan_public: PlanPublic,
        token_key: Identity,
        state_dir: Path,
        *,
        advertise: str | None = None,
        log: Any = None,
        metrics: RelayMetrics | None = None,
    ) -> None:
        self._address, self._tls, self._plan = address, tls, plan_public
        self._token_key = token_key
        self._log = (log or logger("server", least="warning")).bind(
            plan=plan_public.hash.hex()[:16]
        )
        if advertise is not None and not is_address(advertise):
            raise ConfigError(f"a relay is advertised as host:port, not as {advertise!r}")
        self._advertise, self._metrics = advertise, metrics or RelayMetrics()
        self._relay_key = key_fingerprint(tls.read()[1])
        try:
            private_folder(state_dir)
        except OSError as error:
            raise ConfigError(f"cannot make the folder {state_dir}: {error.strerror}") from None
        self._file = state_dir / "relay.json"
        self._state = RelayState(plan_public, token_key.public, self._relay_key)
        if self._file.exists():
            self._state.restore(Checkpoint.load(self._file))
        self._lock = threading.Lock()
        self._streams: dict[int, _Stream] = {}
        self._numbers = count(1)
        self._stopped = threading.Event()
        self._keeper = threading.Thread(target=self._keep_order, name="relay-keeper", daemon=True)
        self._unsaved = False  # something has passed since the last checkpoint
        self._failing = False  # the last checkpoint could not be written
        self._started = self._attended_at = time.monotonic()
        self._server: Any = None
        self.port = 0

    @classmethod
    def of(
        cls,
        config: ServerConfig,
        plan: PlanPublic,
        log: Any,
        *,
        metrics: RelayMetrics | None = None,
    ) -> Self:
        """Return the relay of a plan, as the server's configuration has it."""
        port = config.relay.port or free_port(config.relay.host)
        return cls(
            f"{config.relay.host}:{port}",
            config.tls,
            plan,
            Identity.load(config.token_key),
            config.state_folder(plan),
            advertise=f"{config.relay.advertise}:{port}",
            log=log,
            metrics=metrics,
        )

    # --- Life ------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Listen. PortInUse if somebody else does, ConfigError if too few files may be open."""
        reserve_descriptors()
        pool = ThreadPoolExecutor(MAX_STREAMS, thread_name_prefix="relay")
        self._server = grpc.server(pool, options=OPTIONS, maximum_concurrent_rpcs=MAX_STREAMS)
        handler = grpc.stream_stream_rpc_method_handler(self._session)  # bytes in, bytes out
        service, method = SERVICE_METHOD.strip("/").split("/")
        generic = grpc.method_handlers_generic_handler(service, {method: handler})
        self._server.add_generic_rpc_handlers((generic,))
        try:
            self.port = self._server.add_secure_port(self._address, server_credentials(self._tls))
        except RuntimeError:
            self.port = 0
        if not self.port:
            raise PortInUse(
                f"the relay cannot listen on {self._address}: the port is taken, or the address is "
                "not this machine's. Stop the process that holds it, or choose another port."
            )
        reuse_freed_memory()
        self._server.start()
        self._keeper.start()
        self._log.info("relay listens", port=self.port)
        return self

    def stop(self) -> None:
        """End all streams and write a last checkpoint."""
        with self._lock:
            for stream in self._streams.values():
                stream.end()
        self._stopped.set()
        if self._server is not None:
            self._server.stop(GRACE_S).wait()
        with self._lock:
            self._checkpoint(sync=True)
        self._metrics.connected.set(0)
        self._log.info("relay stopped")

    def end(self, reason: str) -> None:
        """Tell everybody who is connected that the session is over, and why."""
        self._log.info("session ended by the server", reason=reason)
        with self._lock:
            for party in self._state.present():
                self._tell(party, SessionClosed(reason), reason, fatal=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    # --- For the ServerApp -----------------------------------------------------------------------

    @property
    def address(self) -> str:
        """The address at which parties reach the relay."""
        return self._advertise or f"{self._address.rpartition(':')[0]}:{self.port}"

    def issue_ticket(self, role: SessionRole, party: str) -> Ticket:
        """Return a ticket for one session of one party of the plan."""
        card = self._plan.cards.get(party)
        if card is None or card.role != role:
            raise ConfigError(f"the plan has no {role} called {party!r}")
        expires = min(int(time.time()) + TICKET_LIFE_S, MAX_INTEGER)
        token = sign_token(
            self._token_key,
            plan_hash=self._plan.hash,
            role=role,
            party=party,
            relay_key=self._relay_key,
            expires=expires,
        )
        name = self._plan.relay_name
        return Ticket(self.address, name, token, self._plan.hash, role, party, expires)

    def closed(self) -> dict[str, str]:
        """Return who has closed the session, with which code."""
        with self._lock:
            return dict(self._state.closed)

    def passed(self) -> tuple[int, int]:
        """Return how many messages and bytes have passed."""
        with self._lock:
            return self._state.passed.envelopes, self._state.passed.size

    def present(self) -> frozenset[str]:
        """Return who is connected now."""
        with self._lock:
            return frozenset(self._state.present())

    @property
    def unattended_s(self) -> float:
        """How long no party has been connected."""
        with self._lock:
            return 0.0 if self._state.present() else time.monotonic() - self._attended_at

    def summary(self) -> dict[str, Any]:
        """Return what passed so far: sizes and counts, and the head of the chain."""
        with self._lock:
            passed = self._state.passed
            return {
                "plan": self._plan.hash.hex(),
                "present": list(self._state.present()),
                "closed": dict(self._state.closed),
                "envelopes": passed.envelopes,
                "bytes": passed.size,
                "by_purpose": dict(passed.by_purpose),
                "chain_head": passed.head.hex(),
                "seconds": round(time.monotonic() - self._started, 3),
            }

    # --- One stream ------------------------------------------------------------------------------

    def _session(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        number, stream = next(self._numbers), _Stream(context)
        name = stream.certificate
        with self._lock:
            same = sum(other.certificate == name for other in self._streams.values())
            if same < MAX_STREAMS_OF_ONE:
                self._streams[number] = stream
        if same >= MAX_STREAMS_OF_ONE:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams of one party")
        try:
            # However the stream ends, the writer must wake up and end, too.
            if not context.add_callback(stream.end):
                stream.end()
            reader = threading.Thread(
                target=self._read, args=(number, stream, requests), daemon=True
            )
            reader.start()
            yield from stream.drain(HANDSHAKE_S)  # every Hello is answered: nothing means no Hello
        finally:
            self._leave(number)

    def _read(self, number: int, stream: _Stream, requests: Iterator[bytes]) -> None:
        party = ""
        try:
            party = self._admit(number, stream, parse(next(requests, b"")))
            for raw in requests:
                envelope = parse(raw)
                with self._lock:
                    stream.heard_at = time.monotonic()
                    outgoing = self._state.pass_on(number, envelope, raw)
                    if outgoing is None:
                        continue
                    target = self._streams.get(outgoing.stream)
                    if target is not None:
                        target.put(outgoing.raw, party)
                    if isinstance(envelope.body, SEQUENCED):
                        self._note_passed(envelope, len(outgoing.raw))
        except StorageError as error:  # not let in: nothing may be lost, so the party comes back
            self._log.error("not admitted", stream=number, reason=str(error))
        except IsonomyError as error:
            self._refuse(number, stream, party, error)
        except grpc.RpcError:
            pass  # the connection broke; the party comes back
        except Exception:
            # A foreign text may hold anything, so it stays in the log; no party is left waiting.
            self._log.error("relay failed", party=party, stream=number, exc_info=True)
            self._refuse(number, stream, party, IsonomyError("the relay failed; see its log"))
        finally:
            self._leave(number)
            stream.end()

    def _note_passed(self, envelope: Envelope, size: int) -> None:
        """Enter a message into the chain. Holds the lock."""
        if isinstance(envelope.body, Close):
            self._log.info("session closed", party=envelope.sender, code=envelope.body.code)
        self._log.debug(
            "envelope passed",
            sender=envelope.sender,
            recipient=envelope.recipient,
            kind=type(envelope.body).__name__,
            purpose=envelope.purpose,
            query=envelope.query_id,
            sequence=envelope.sequence,
            bytes=size,
        )
        self._state.note(envelope, size)
        self._metrics.passed(envelope.purpose, size)
        self._unsaved = True

    def _checkpoint(self, *, sync: bool) -> bool:
        """Write what passed; returns whether that worked. Holds the lock.

        It is for our own records: who was admitted is on disk already, so nothing depends on it
        that a party relies on.
        """
        try:
            self._save(sync=sync)
        except StorageError as error:
            if not self._failing:
                self._log.error("checkpoint failed; will be tried again", reason=str(error))
            self._failing = True
        return not self._failing

    def _keep_order(self) -> None:
        """Look after what no message of a party brings about, until the relay stops."""
        strangers, pause_s, next_try = Strangers(self.port), LOOK_S, 0.0
        while not self._stopped.wait(LOOK_S):
            now = time.monotonic()
            with self._lock:
                peers = {stream.peer for stream in self._streams.values()}
                self._end_silent(now)
                self._metrics.connected.set(len(self._state.present()))
                if self._state.present():
                    self._attended_at = now
                if self._unsaved and now >= next_try:
                    # Once somebody has closed, it must survive a power cut, not only a kill.
                    written = self._checkpoint(sync=bool(self._state.closed))
                    pause_s = LOOK_S if written else min(2 * pause_s, MAX_PAUSE_S)
                    next_try = now + pause_s
            with suppress(OSError):  # no descriptor is left to look at them
                if many := strangers.hang_up(peers, now):
                    self._metrics.strangers.inc(many)
                    self._log.warning("hung up on strangers", connections=many)

    def _end_silent(self, now: float) -> None:
        for number, stream in self._streams.items():
            if now - stream.heard_at > SILENCE_S:
                self._log.warning("silent stream ended", stream=number)
                stream.cancel()  # it may be stuck with what its party does not read

    def _admit(self, number: int, stream: _Stream, hello: Envelope) -> str:
        with self._lock:
            older = self._state.stream_of(hello.sender)
            resumed = self._state.has_session(hello.sender)
            reply = self._state.admit(number, hello, stream.certificate, int(time.time()))
            if older is not None and older in self._streams:
                # If a broken stream's process came back, nobody reads this any more. If a second
                # process took the place of a living one, the first must not come back for ever.
                text = "another process of this party joined the session; only one can"
                note = self._note(hello.sender, "AdmissionRefused", text, fatal=True)
                self._streams[older].put(note)
                self._streams[older].end()
            # On disk before the party hears of it: a used token stays used.
            self._save(sync=True)
            stream.put(reply)
        self._metrics.joined.inc()
        event = "session resumed" if resumed else "session opened"
        self._log.info(event, party=hello.sender, stream=number)
        return hello.sender

    def _refuse(self, number: int, stream: _Stream, party: str, error: IsonomyError) -> None:
        """Tell the party why, and the others that it was cut off."""
        code, text = wire_code(error), wire_text(error)
        self._metrics.refusals.labels(code).inc()
        self._log.warning("refused", party=party, stream=number, code=code, reason=str(error))
        stream.put(self._note(party or "party", code, text, fatal=True))
        if party:
            with self._lock:
                for other in self._state.present(but=party):
                    report = f"the relay ended {party}'s stream: {text}"
                    self._tell(other, error, report, fatal=False)

    def _tell(self, party: str, error: IsonomyError, text: str, *, fatal: bool) -> None:
        """Send a note to a party that is connected. Holds the lock."""
        stream = self._streams.get(self._state.stream_of(party) or 0)
        if stream is not None:
            stream.put(self._note(party, wire_code(error), text[:MAX_NOTE_CHARS], fatal=fatal))

    def _note(self, recipient: str, code: str, text: str, *, fatal: bool) -> bytes:
        body = ErrorNote(code, text, fatal)
        return dump(Envelope(SERVER, recipient, self._plan.hash, body))

    def _leave(self, number: int) -> None:
        with self._lock:
            self._state.leave(number)
            stream = self._streams.pop(number, None)
        if stream is not None:
            self._log.info("stream ended", stream=number, certificate=stream.certificate)

    def _save(self, *, sync: bool) -> None:
        write_private(self._file, self._state.checkpoint().to_json(), sync=sync)
        self._unsaved = False
        if self._failing:
            self._failing = False
            self._log.info("checkpoint is written again")


def _certificate_name(context: Any) -> str:
    """Return the party's name in the certificate that TLS has verified; "" if it is a node's."""
    with suppress(LookupError, CertificateError):
        holder = Holder.of(context.auth_context()["x509_pem_cert"][0])
        return holder.name if holder.role in PARTIES else ""
    return ""
