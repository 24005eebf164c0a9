"""Checked types for everything that crosses a session's stream, and a total parser for them.

Whatever arrives, the outcome is a checked `Envelope` or a typed ProtocolError: the size is looked
at first, then protobuf, then every field. (Unlike frames, envelopes need not be canonical: what is
sealed or signed is `Envelope.header()`, built here from checked fields, never the bytes received.)
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, cast, get_args

from google.protobuf.message import DecodeError

from isonomy.common.base.canonical import HASH_BYTES, hash_bytes
from isonomy.common.base.errors import (
    OversizedMessage,
    ProtocolError,
    TruncatedMessage,
    VersionMismatch,
)
from isonomy.common.keys.sealing import LINK_BYTES
from isonomy.common.wire import payload_view
from isonomy.wire.v1 import session_pb2 as wire

SESSION_PROTOCOL = 1
SERVICE_METHOD = "/isonomy.wire.v1.Relay/Session"
SERVER = "server"
CHUNK_BYTES = 1 << 19  # measured: 2 MB through relay and TLS is fastest in pieces of this size
MAX_CHUNKS = 1 << 8  # of one frame: 128 MiB, twice what messages.MAX_FRAME_BYTES allows
MAX_ENVELOPE_BYTES = 2 * CHUNK_BYTES + 8192  # a payload, the relay's total beside it, the header
MAX_NAME, MAX_ID, MAX_NOTE = 64, 128, 512
KEY_BYTES, SIGNATURE_BYTES, SECRET_BYTES, MAX_TOKEN = 32, 64, 32, 1024

Purpose = Literal[
    "", "query", "columns", "sum", "answer", "dual", "opening", "joint", "align", "round"
]
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


@dataclass(frozen=True, repr=False)
class DualUpdate:
    """Multipliers, sealed."""

    payload: bytes


@dataclass(frozen=True)
class Heartbeat:
    """A sign of life; from the relay, with who is connected."""

    present: tuple[str, ...] = ()


@dataclass(frozen=True)
class ErrorNote:
    """Why the relay refuses, or what it has to tell."""

    code: str
    text: str
    fatal: bool = True


@dataclass(frozen=True)
class Close:
    """The end of a session, with its reason."""

    code: str
    text: str
    signature: bytes = b""


Body = Hello | HelloReply | PlanAgreement | Data | DualUpdate | Heartbeat | ErrorNote | Close
SEQUENCED = (Data, DualUpdate, Close)


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
        """What is authenticated along with a payload: every field that gives it its meaning.

        Not in it: `ack` (it changes when an envelope is sent again) and what the relay adds.
        """
        place = (0, 0, 0, 0, 0)
        if isinstance(self.body, Data):
            data = self.body
            place = (data.exchange, data.frame, int(data.last), data.chunk, data.chunks)
        texts = (self.sender, self.recipient, self.query_id, self.purpose, type(self.body).__name__)
        numbers = struct.pack(">6Q", self.sequence, *place)
        encoded = (text.encode() for text in texts)
        return hash_bytes("isonomy/envelope/v1", self.plan, self.link, numbers, *encoded)


def payload_digest(payload: bytes | memoryview) -> bytes:
    """The hash that a chunk in the clear carries, and that the relay's chain holds of any."""
    return sha256(payload).digest()


# --- Bytes -> checked ----------------------------------------------------------------------------


def parse(raw: bytes) -> Envelope:
    """The checked envelope in these bytes."""
    if len(raw) > MAX_ENVELOPE_BYTES:
        raise OversizedMessage(
            f"a message has at most {MAX_ENVELOPE_BYTES} bytes; got {len(raw)}. Larger frames "
            "travel in chunks."
        )
    try:
        found, payload = _decoded(raw)
    except DecodeError:
        raise TruncatedMessage("a message could not be parsed: truncated, or not ours") from None
    name = found.WhichOneof("body")
    if name is None:
        raise TruncatedMessage("a message has no body: truncated, or from another version")
    if name == "hello" and found.hello.protocol != SESSION_PROTOCOL:
        # Before any other check: everything else may have another meaning in another version.
        raise version_mismatch(found.hello.protocol)
    body = _data(found.data, payload) if name == "data" else _READERS[name](getattr(found, name))
    if (found.sequence > 0) != isinstance(body, SEQUENCED):
        raise ProtocolError(f"a {name} has a sequence number where none belongs, or none")
    if found.purpose not in get_args(Purpose):
        raise ProtocolError("a message has a purpose that this version does not know")
    return Envelope(
        sender=_text(found.sender, MAX_NAME, "sender"),
        recipient=_text(found.recipient, MAX_NAME, "recipient"),
        plan=_fixed(found.plan, HASH_BYTES, "plan"),
        body=body,
        sequence=found.sequence,
        ack=found.ack,
        link=_fixed(found.link, LINK_BYTES, "link", empty=not isinstance(body, SEQUENCED)),
        query_id=_text(found.query_id, MAX_ID, "query_id", empty=True),
        purpose=cast(Purpose, found.purpose),
    )


def _decoded(raw: bytes) -> tuple[Any, bytes | memoryview]:
    """The message, and its chunk's payload: uncopied if it lies where `dump` puts it."""
    found, pieces = wire.Envelope(), payload_view.split(raw)
    if pieces is not None:
        head, place, payload = pieces
        found.ParseFromString(head)
        if found.WhichOneof("body") is None:  # else protobuf has rules for two bodies: leave it so
            found.data.ParseFromString(place)
            found.data.SetInParent()
            return found, payload
    found.ParseFromString(raw)
    return found, found.data.payload


def version_mismatch(found: int) -> VersionMismatch:
    """The refusal, in words that say what to do."""
    return VersionMismatch(
        f"the other side speaks session protocol {found}, this is {SESSION_PROTOCOL}; install "
        "matching versions of isonomy on all machines"
    )


def _text(value: str, limit: int, field: str, *, empty: bool = False) -> str:
    if len(value) > limit or (not value and not empty):
        raise ProtocolError(f"{field} must have 1 to {limit} characters; got {len(value)}")
    return value


def _fixed(value: bytes, size: int, field: str, *, empty: bool = False) -> bytes:
    if len(value) != size and not (empty and not value):
        raise ProtocolError(f"{field} must have {size} bytes; got {len(value)}")
    return value


def _limited(value: bytes, limit: int, field: str) -> bytes:
    _check_size(value, limit, field)
    return value


def _check_size(value: bytes | memoryview, limit: int, field: str) -> None:
    if len(value) > limit:
        raise OversizedMessage(f"{field} has at most {limit} bytes; got {len(value)}")


def _names(values: Any) -> tuple[str, ...]:
    if len(values) > 16:
        raise OversizedMessage("a list of more parties than a plan can have")
    return tuple(_text(value, MAX_NAME, "party") for value in values)


def _hello(body: Any) -> Hello:
    return Hello(
        role=_text(body.role, MAX_NAME, "role"),
        token=_limited(body.token, MAX_TOKEN, "token"),
        resume_secret=_fixed(body.resume_secret, SECRET_BYTES, "resume_secret"),
    )


def _hello_reply(body: Any) -> HelloReply:
    if body.protocol != SESSION_PROTOCOL:
        raise version_mismatch(body.protocol)
    return HelloReply(_names(body.present))


def _plan_agreement(body: Any) -> PlanAgreement:
    return PlanAgreement(
        _fixed(body.ephemeral, KEY_BYTES, "ephemeral"),
        body.reply_wanted,
        _fixed(body.signature, SIGNATURE_BYTES, "signature"),
    )


def _data(body: Any, payload: bytes | memoryview) -> Data:
    if not 0 <= body.chunk < body.chunks <= MAX_CHUNKS:
        raise ProtocolError(f"a frame has 1 to {MAX_CHUNKS} chunks, numbered from 0")
    _check_size(payload, CHUNK_BYTES + 64, "payload")
    # A sealed payload carries AES-GCM's tag; one in the clear this hash, which is signed.
    digest = _fixed(body.digest, HASH_BYTES, "digest", empty=True)
    if digest and not body.summed and payload_digest(payload) != digest:
        raise TruncatedMessage("a chunk does not have the hash that it carries")
    return Data(
        exchange=body.exchange,
        frame=body.frame,
        last=body.last,
        chunk=body.chunk,
        chunks=body.chunks,
        payload=payload,
        digest=digest,
        signature=_fixed(body.signature, SIGNATURE_BYTES, "signature", empty=True),
        summed=body.summed,
        total=_limited(body.total, CHUNK_BYTES, "total"),
    )


def _error_note(body: Any) -> ErrorNote:
    return ErrorNote(
        _text(body.code, MAX_NAME, "code"),
        _text(body.text, MAX_NOTE, "text", empty=True),
        body.fatal,
    )


def _close(body: Any) -> Close:
    return Close(
        _text(body.code, MAX_NAME, "code"),
        _text(body.text, MAX_NOTE, "text", empty=True),
        _fixed(body.signature, SIGNATURE_BYTES, "signature"),
    )


_READERS: dict[str, Any] = {
    "hello": _hello,
    "hello_reply": _hello_reply,
    "plan_agreement": _plan_agreement,
    "dual_update": lambda body: DualUpdate(_limited(body.payload, CHUNK_BYTES, "payload")),
    "heartbeat": lambda body: Heartbeat(_names(body.present)),
    "error_note": _error_note,
    "close": _close,
}


# --- Checked -> bytes ----------------------------------------------------------------------------

_FIELDS: dict[type[Body], str] = {
    Hello: "hello",
    HelloReply: "hello_reply",
    PlanAgreement: "plan_agreement",
    Data: "data",
    DualUpdate: "dual_update",
    Heartbeat: "heartbeat",
    ErrorNote: "error_note",
    Close: "close",
}


def dump(envelope: Envelope) -> bytes:
    """An envelope as bytes."""
    fields: dict[str, Any] = dict(vars(envelope))
    body: Body = fields.pop("body")
    if not isinstance(body, Data):
        fields[_FIELDS[type(body)]] = vars(body)
        return wire.Envelope(**fields).SerializeToString()
    head = wire.Envelope(**fields).SerializeToString()
    place = wire.Data(**{**vars(body), "payload": b""}).SerializeToString()
    return payload_view.join(head, place, body.payload)


# --- Multipliers ---------------------------------------------------------------------------------


def dump_dual(round_number: int, multipliers: tuple[float, ...]) -> bytes:
    """Multipliers as IEEE bits: what both sides compare is exact."""
    bits = [struct.unpack("<Q", struct.pack("<d", value))[0] for value in multipliers]
    values = wire.DualValues(round=round_number, multiplier_bits=bits)
    return values.SerializeToString(deterministic=True)


def parse_dual(raw: bytes) -> tuple[int, tuple[float, ...]]:
    """The round and its multipliers."""
    found = wire.DualValues()
    try:
        found.ParseFromString(raw)
    except DecodeError:
        raise TruncatedMessage("multipliers could not be parsed") from None
    values = (struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in found.multiplier_bits)
    return found.round, tuple(values)
