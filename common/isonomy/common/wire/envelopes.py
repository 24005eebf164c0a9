"""Checked types for everything that crosses a session's stream, and a total parser for them.

Whatever arrives, the outcome is a checked `Envelope` or a typed ProtocolError: the size is looked
at first, then protobuf, then every field. (Unlike frames, envelopes need not be canonical: what is
sealed or signed is `Envelope.header()`, built here from checked fields, never the bytes received.)
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from hashlib import sha256
from typing import Any, Literal, cast, get_args

import numpy as np
from google.protobuf.message import DecodeError

from isonomy.common.base.canonical import HASH_BYTES, hash_bytes
from isonomy.common.base.errors import (
    MAX_NOTE_CHARS,
    OversizedMessage,
    ProtocolError,
    TruncatedMessage,
    VersionMismatch,
)
from isonomy.wire.v1 import session_pb2 as wire

SESSION_PROTOCOL = 1
SERVICE_METHOD = "/isonomy.wire.v1.Relay/Session"
SERVER = "server"
_SIZE_BYTES = 4
CHUNK_BYTES = 1 << 19  # measured: 2 MB through relay and TLS is fastest in pieces of this size
MAX_CHUNKS = 1 << 8  # of one frame: 128 MiB, twice what messages.MAX_FRAME_BYTES allows
MAX_ENVELOPE_BYTES = 2 * CHUNK_BYTES + 8192  # a payload, the relay's total beside it, the header
MAX_NAME, MAX_TEXT, MAX_PARTIES = 64, 128, 16
KEY_BYTES, SIGNATURE_BYTES, SECRET_BYTES, LINK_BYTES, MAX_TOKEN = 32, 64, 32, 16, 1024

Purpose = Literal[
    "",
    "query",
    "columns",
    "sum",
    "alone",
    "pads",
    "answer",
    "dual",
    "opening",
    "joint",
    "align",
    "round",
]
PURPOSES = frozenset(get_args(Purpose))
SIGNED_PURPOSES = frozenset({"sum"})  # travel in the clear, because the server adds them


@dataclass(frozen=True, repr=False)
class Hello:
    """The first message: version, token, and the secret that the party chose for coming back."""

    role: str
    token: bytes
    resume_secret: bytes
    protocol: int = SESSION_PROTOCOL


@dataclass(frozen=True)
class HelloReply:
    """The relay lets the party in."""

    present: tuple[str, ...] = ()
    protocol: int = SESSION_PROTOCOL


@dataclass(frozen=True)
class PlanAgreement:
    """A party's fresh key under the plan, signed."""

    ephemeral: bytes
    reply_wanted: bool
    signature: bytes


@dataclass(frozen=True, repr=False)
class Data:
    """One chunk of a frame."""

    exchange: int
    frame: int
    last: bool
    chunk: int
    chunks: int
    payload: bytes | memoryview  # as received: a view of the bytes that came
    digest: bytes = b""
    signature: bytes = b""
    summed: bool = False
    total: bytes = b""


@dataclass(frozen=True)
class Heartbeat:
    """A sign of life; from the relay, with who is connected."""

    present: tuple[str, ...] = ()


@dataclass(frozen=True)
class ErrorNote:
    """Why the relay refuses, or what it reports about others."""

    code: str
    text: str
    fatal: bool = True


@dataclass(frozen=True)
class Close:
    """The end of a session, with its reason."""

    code: str
    text: str
    signature: bytes = b""


Body = Hello | HelloReply | PlanAgreement | Data | Heartbeat | ErrorNote | Close
SEQUENCED = (Data, Close)


@dataclass(frozen=True)
class Envelope:
    """A body with its address and its place in the order."""

    sender: str
    recipient: str
    plan: bytes
    body: Body
    sequence: int = 0
    ack: int = 0
    link: bytes = b""
    query_id: str = ""
    purpose: Purpose = ""

    def header(self) -> bytes:
        """Return a hash of every field that gives a payload its meaning; it is signed or sealed.

        Not in it: `ack` (it changes when an envelope is sent again) and what the relay adds.
        """
        place = (0, 0, 0, 0, 0)
        if isinstance(self.body, Data):
            data = self.body
            place = (data.exchange, data.frame, int(data.last), data.chunk, data.chunks)
        texts = (self.sender, self.recipient, self.query_id, self.purpose, _NAMES[type(self.body)])
        numbers = struct.pack(">6Q", self.sequence, *place)
        parts = (self.plan, self.link, numbers, *map(str.encode, texts))
        return hash_bytes("isonomy/envelope/v1", *parts)


def payload_digest(payload: bytes | memoryview) -> bytes:
    """Return the hash that a chunk in the clear carries."""
    return sha256(payload).digest()


# --- Single fields, of frames too ----------------------------------------------------------------


def text_field(value: str, field: str, *, limit: int = MAX_TEXT, empty: bool = False) -> str:
    """Printable text of at most `limit` characters; none at all only if `empty` allows it."""
    if len(value) > limit or (not value and not empty) or not value.isprintable():
        raise ProtocolError(f"{field} must be 1 to {limit} printable characters")
    return value


def fixed_field(value: bytes, size: int, field: str, *, empty: bool = False) -> bytes:
    """Bytes of exactly that size; none at all only if `empty` allows it."""
    if len(value) != size and (value or not empty):
        raise ProtocolError(f"{field} must have {size} bytes; got {len(value)}")
    return value


# --- Bytes -> checked ----------------------------------------------------------------------------


def parse(raw: bytes) -> Envelope:
    """Return the checked envelope in these bytes: size ‖ protobuf ‖ payload (session.proto)."""
    if len(raw) > MAX_ENVELOPE_BYTES:
        raise OversizedMessage(f"a message of {len(raw)} bytes; at most {MAX_ENVELOPE_BYTES}")
    end = _SIZE_BYTES + int.from_bytes(raw[:_SIZE_BYTES], "big")
    if len(raw) < end:
        raise TruncatedMessage("a message could not be parsed: it is shorter than it says")
    try:
        message = wire.Envelope.FromString(raw[_SIZE_BYTES:end])
    except DecodeError:
        raise TruncatedMessage("a message could not be parsed: truncated, or not ours") from None
    name = message.WhichOneof("body")
    if name is None:
        raise TruncatedMessage("a message has no body: truncated, or from another version")
    payload = memoryview(raw)[end:]  # no copy: it may be half a megabyte
    body = _data(message.data, payload) if name == "data" else _body(name, getattr(message, name))
    sequenced = isinstance(body, SEQUENCED)
    if payload and name != "data":
        raise ProtocolError(f"a {name} carries a payload where none belongs")
    # Numbers decide about order and nonces: a message must not have one by accident, nor lack it.
    if (message.sequence > 0) != sequenced:
        raise ProtocolError(f"a {name} has a sequence number where none belongs, or none")
    if message.purpose not in PURPOSES:
        raise ProtocolError("a message has a purpose that this version does not know")
    return Envelope(
        sender=text_field(message.sender, "sender", limit=MAX_NAME),
        recipient=text_field(message.recipient, "recipient", limit=MAX_NAME),
        plan=fixed_field(message.plan, HASH_BYTES, "plan"),
        body=body,
        sequence=message.sequence,
        ack=message.ack,
        link=fixed_field(message.link, LINK_BYTES, "link", empty=not sequenced),
        query_id=text_field(message.query_id, "query_id", empty=True),
        purpose=cast(Purpose, message.purpose),
    )


def _data(data: wire.Data, payload: memoryview) -> Data:
    if not 0 <= data.chunk < data.chunks <= MAX_CHUNKS:
        raise ProtocolError(f"a frame has 1 to {MAX_CHUNKS} chunks, numbered from 0")
    if len(payload) > CHUNK_BYTES + 64 or len(data.total) > CHUNK_BYTES:
        raise OversizedMessage(f"a payload and a total have at most {CHUNK_BYTES} bytes each")
    # A sealed payload carries AES-GCM's tag; one in the clear this hash, which is signed.
    digest = fixed_field(data.digest, HASH_BYTES, "digest", empty=True)
    if digest and not data.summed and payload_digest(payload) != digest:
        raise TruncatedMessage("a chunk does not have the hash that it carries")
    return Data(
        exchange=data.exchange,
        frame=data.frame,
        last=data.last,
        chunk=data.chunk,
        chunks=data.chunks,
        payload=payload,
        digest=digest,
        signature=fixed_field(data.signature, SIGNATURE_BYTES, "signature", empty=True),
        summed=data.summed,
        total=data.total,
    )


def _body(name: str, message: Any) -> Body:
    """Return any other body. Its fields have the same names here and in session.proto."""
    kind = _KINDS[name]
    # The first field of a Hello is its version: in another one, the rest may mean anything.
    values = {field.name: getattr(message, field.name) for field in fields(kind)}
    if "protocol" in values and values["protocol"] != SESSION_PROTOCOL:
        raise VersionMismatch(
            f"the other side speaks session protocol {values['protocol']}, this is "
            f"{SESSION_PROTOCOL}; install matching versions of isonomy on all machines"
        )
    for key, value in values.items():
        if key in _SIZES:
            fixed_field(value, _SIZES[key], key)
        elif key in _LIMITS:
            text_field(value, key, limit=_LIMITS[key], empty=key == "text")
        elif key == "token" and len(value) > MAX_TOKEN:
            raise OversizedMessage(f"a token has at most {MAX_TOKEN} bytes; got {len(value)}")
        elif key == "present":
            if len(value) > MAX_PARTIES:
                raise OversizedMessage("a list of more parties than a plan can have")
            values[key] = tuple(text_field(name, "party", limit=MAX_NAME) for name in value)
    return kind(**values)


_SIZES = {"resume_secret": SECRET_BYTES, "ephemeral": KEY_BYTES, "signature": SIGNATURE_BYTES}
_LIMITS = {"role": MAX_NAME, "code": MAX_NAME, "text": MAX_NOTE_CHARS}
_KINDS: dict[str, type[Body]] = {
    "hello": Hello,
    "hello_reply": HelloReply,
    "plan_agreement": PlanAgreement,
    "data": Data,
    "heartbeat": Heartbeat,
    "error_note": ErrorNote,
    "close": Close,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


# --- Checked -> bytes ----------------------------------------------------------------------------


def dump(envelope: Envelope) -> bytes:
    """Return an envelope's bytes. The fields have the same names here and in session.proto."""
    values: dict[str, Any] = dict(vars(envelope))
    body: Body = values.pop("body")
    values[_NAMES[type(body)]] = content = dict(vars(body))
    payload = content.pop("payload") if isinstance(body, Data) else b""
    head = wire.Envelope(**values).SerializeToString()
    return b"".join((len(head).to_bytes(_SIZE_BYTES, "big"), head, payload))


# --- Multipliers ---------------------------------------------------------------------------------


def dump_dual(round_number: int, multipliers: tuple[float, ...]) -> bytes:
    """Return multipliers as IEEE bits: both sides compare them exactly."""
    bits = np.array(multipliers, "<f8").view("<u8").tolist()
    values = wire.DualValues(round=round_number, multiplier_bits=bits)
    return values.SerializeToString(deterministic=True)


def parse_dual(raw: bytes) -> tuple[int, tuple[float, ...]]:
    """Return the round and its multipliers."""
    values = wire.DualValues()
    try:
        values.ParseFromString(raw)
    except DecodeError:
        raise TruncatedMessage("multipliers could not be parsed") from None
    multipliers = np.array(values.multiplier_bits, "<u8").view("<f8")
    # A NaN equals nothing, not even itself: both sides would hold different λ for ever.
    if not np.isfinite(multipliers).all():
        raise ProtocolError("multipliers must be finite")
    return values.round, tuple(multipliers.tolist())
