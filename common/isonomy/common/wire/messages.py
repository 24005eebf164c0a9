"""Checked types for every frame that crosses, and total parsers for them.

Each parser checks the size first, then protobuf, then that the bytes are canonical (serialising
again gives the very same bytes), then every field. Whatever a peer sends, the outcome is a checked
message or a ProtocolError. `messages` is the only reader of the generated classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar, get_args

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from isonomy.common.base.canonical import HASH_BYTES, hash_bytes
from isonomy.common.base.errors import (
    REFUSAL_CODES,
    BudgetExceeded,
    CapacityError,
    ConfigError,
    InspectionFailed,
    IsonomyError,
    ModelsDiffer,
    ProtocolError,
    error_from_wire,
    wire_code,
)
from isonomy.common.crypto.params import QUERY_SETS, Seeded
from isonomy.common.people.cohort import MAX_GROUPS
from isonomy.common.privacy.declarations import (
    CONTENT_KINDS,
    CONTENT_NAMES,
    PLAIN,
    Declaration,
    Plain,
    Unknowns,
)
from isonomy.common.privacy.queries import PROTOCOL_VERSION, Kind, Mechanism, Query, Shape
from isonomy.common.wire.envelopes import MAX_TEXT, fixed_field, text_field
from isonomy.wire.v1 import sums_pb2 as wire

MAX_FRAME_BYTES = 1 << 26
MAX_REFUSAL_TEXT = 1024
ATTEMPT_BYTES, SIGNATURE_BYTES = 16, 64
ANSWER_DOMAIN = "isonomy/answer/v1"  # what the regulator signs answers under
MAX_ATTRIBUTES = 16
MAX_POSITIONS = max(params.max_people for params in QUERY_SETS.values())
MAX_OPENING_BYTES = (1 << 31) - 1  # what AES-GCM seals in one go
OPENING_PART_BYTES = 1 << 22


class _Signed:
    """A message whose sender signs all of it but the signature."""

    def signed_bytes(self) -> bytes:
        message: Any = self
        return encode(replace(message, signature=b""))


@dataclass(frozen=True)
class ColumnsHeader:
    """The regulator opens an attempt: a key that lives for this query only."""

    query_id: str
    attempt: bytes
    query_hash: bytes
    block: int
    blocks: int
    indicators: int
    zero: Seeded


@dataclass(frozen=True)
class Column:
    """One encrypted indicator column of one block of people."""

    block: int
    indicator: int
    column: Seeded


@dataclass(frozen=True)
class SumHeader:
    """The company's request; binds columns, commitment and every answer ciphertext."""

    query_id: str
    attempt: bytes
    query_hash: bytes
    columns_hash: bytes
    commitment: bytes
    parts_hash: bytes
    parts: int


@dataclass(frozen=True)
class SumPart:
    """One answer ciphertext."""

    index: int
    ciphertext: bytes


@dataclass(frozen=True)
class Answer(_Signed):
    """Released values, as they stand in the ledger, signed."""

    query_id: str
    plan: bytes
    request_hash: bytes
    values: NDArray[np.int64]
    units: int
    sequence: int
    ledger_head: bytes
    signature: bytes


@dataclass(frozen=True)
class OpeningDemand(_Signed):
    """The regulator's coin fell: this request is answered once its opening was seen.

    By pads `seed` and `millionths` say whose rows are opened (pads.draw), and `cells_hash` what
    arrived of them. Otherwise the three are empty, and the whole request is opened.
    """

    query_id: str
    plan: bytes
    request_hash: bytes
    auditor: bytes
    signature: bytes
    seed: bytes = b""
    millionths: int = 0
    cells_hash: bytes = b""


@dataclass(frozen=True)
class OpeningHeader(_Signed):
    """A sealed opening follows, in parts."""

    query_id: str
    request_hash: bytes
    size: int
    parts: int
    box_hash: bytes
    signature: bytes


@dataclass(frozen=True)
class OpeningPart:
    """A piece of the sealed box."""

    index: int
    body: bytes


@dataclass(frozen=True)
class KeyRequest:
    """The company asks for the keys of an attribute, from a group on."""

    plan: bytes
    cohort: bytes
    attribute: str
    first: int
    points: bytes


@dataclass(frozen=True)
class KeyHeader:
    """The regulator's reply to it; parts follow."""

    request_hash: bytes
    point: bytes


@dataclass(frozen=True)
class KeyPart:
    """Masked indicators of some people."""

    index: int
    body: bytes


def opening_parts(size: int) -> int:
    """How many parts a sealed box of `size` bytes has."""
    return -(-size // OPENING_PART_BYTES)


@dataclass(frozen=True)
class Refusal:
    """Why there is no answer: a wire code (base/errors.py) and a text without secrets."""

    query_id: str
    code: str
    text: str

    @classmethod
    def of(cls, query_id: str, error: IsonomyError) -> Refusal:
        """Return the refusal for an error. Texts about this side's disk and settings stay here."""
        text = str(error)[:MAX_REFUSAL_TEXT]
        public = ProtocolError | BudgetExceeded | CapacityError | InspectionFailed | ModelsDiffer
        if not isinstance(error, public):
            text = (
                "the request could not be answered for a reason on the regulator's side. Send the "
                "same request again later: it is debited once, whenever it is answered."
            )
        return cls(query_id, wire_code(error), text)

    @property
    def reason(self) -> str:
        """Kind and text, for this side's own log."""
        return f"{self.code}: {self.text}"

    def error(self) -> IsonomyError:
        """Return the error that the code names; ProtocolError if a refusal may not name it."""
        return error_from_wire(self.code, self.text, REFUSAL_CODES)


Message = (
    Query
    | ColumnsHeader
    | Column
    | SumHeader
    | SumPart
    | Answer
    | Refusal
    | OpeningDemand
    | OpeningHeader
    | OpeningPart
    | KeyRequest
    | KeyHeader
    | KeyPart
)
M = TypeVar("M", bound=Message)


_KINDS: dict[str, Any] = {
    "query": Query,
    "columns_header": ColumnsHeader,
    "column": Column,
    "sum_header": SumHeader,
    "sum_part": SumPart,
    "answer": Answer,
    "refusal": Refusal,
    "opening_demand": OpeningDemand,
    "opening_header": OpeningHeader,
    "opening_part": OpeningPart,
    "key_request": KeyRequest,
    "key_header": KeyHeader,
    "key_part": KeyPart,
}
_NAMES: dict[Any, str] = {kind: name for name, kind in _KINDS.items()}
# Fields have the same names and checks in every message (sums.proto).
_FIELDS = {kind: tuple(field.name for field in fields(kind)) for kind in _NAMES}
_HASHES = ("plan", "query_hash", "columns_hash", "commitment", "parts_hash", "request_hash")
_SIZES = {
    **dict.fromkeys((*_HASHES, "ledger_head", "box_hash"), HASH_BYTES),
    "attempt": ATTEMPT_BYTES,
    "signature": SIGNATURE_BYTES,
    **dict.fromkeys(("auditor", "cohort", "point"), 32),
}


def frame_hash(frame: bytes) -> bytes:
    """The hash that names a frame."""
    return hash_bytes("isonomy/frame/v1", frame)


def frames_hash(frames: Iterable[bytes], *, hashed: bool = False) -> bytes:
    """One hash over a sequence of frames: their number, order and bytes.

    Streams keep each frame's hash instead of the frame, and say `hashed`.
    """
    return hash_bytes("isonomy/frames/v1", *(frames if hashed else map(frame_hash, frames)))


# --- Checked -> bytes ----------------------------------------------------------------------------


def encode(message: Message) -> bytes:
    """Canonical bytes of a message."""
    content = _query_fields(message) if isinstance(message, Query) else dict(vars(message))
    if isinstance(message, ColumnsHeader):
        content["zero"] = vars(message.zero)
    elif isinstance(message, Column):
        content["column"] = vars(message.column)
    elif isinstance(message, Answer):
        content["values"] = message.values.astype("<i8").tobytes()
    frame = wire.Frame(**{_NAMES[type(message)]: content})
    return frame.SerializeToString(deterministic=True)


def _query_fields(query: Query) -> dict[str, Any]:
    """A query as it travels: real numbers as their IEEE-754 bits."""
    content: dict[str, Any] = dict(vars(query))
    content.pop("_array", None)  # what `position_array` has cached
    bits = np.array([content.pop("norm"), *content.pop("weights")], "<f8").view("<u8").tolist()
    declaration: dict[str, Any] | None = None
    if query.declaration != PLAIN:
        declared = query.declaration
        declaration = {"strategy": declared.strategy, "notion": declared.notion}
        if isinstance(declared.content, Unknowns):
            raise ConfigError("the release of unknowns is the regulator's own; no query asks it")
        if not isinstance(declared.content, Plain):
            declaration[CONTENT_NAMES[type(declared.content)]] = vars(declared.content)
    content |= {"protocol": PROTOCOL_VERSION, "norm_bits": bits[0], "weight_bits": bits[1:]}
    return {**content, "positions": query.positions or b"", "declaration": declaration}


# --- Bytes -> checked ----------------------------------------------------------------------------


def decode(frame: bytes, expected: type[M]) -> M:
    """The checked message in a frame. A Refusal instead of what was expected is raised."""
    message = decode_any(frame)
    if isinstance(message, expected):
        return message
    if isinstance(message, Refusal):
        raise message.error()
    raise ProtocolError(f"expected a frame of type {_NAMES[expected]}, got {_NAMES[type(message)]}")


# A SumPart has up to half a megabyte. Its canonical bytes are its head and its body, so both can be
# had without the parser's four copies: a tenth of both parties' time in a query by pads.


def encode_part(index: int, *pieces: memoryview) -> bytes:
    """The same as `encode(SumPart(index, joined pieces))`."""
    return b"".join((_part_head(index, sum(map(len, pieces))), *pieces))


def decode_part(frame: bytes, index: int, size: int) -> bytes | memoryview:
    """The body of part `index`, which should have `size` bytes; whether it has is not checked."""
    head = _part_head(index, size)
    if len(frame) == len(head) + size and frame.startswith(head):
        return memoryview(frame)[len(head) :]
    part = decode(frame, SumPart)
    if part.index != index:
        raise ProtocolError(f"expected part {index}, got part {part.index}")
    return part.ciphertext


def _part_head(index: int, size: int) -> bytes:
    """What comes before the body of a SumPart, in a Frame (field 5)."""
    number = b"\x08" + _varint(index) if index else b""  # field 1; zero is left out
    body = b"\x12" + _varint(size)  # field 2
    return b"".join((b"\x2a", _varint(len(number) + len(body) + size), number, body))


def _varint(number: int) -> bytes:
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


def decode_any(frame: bytes) -> Message:
    """The checked message in a frame, whatever its type.

    Sizes and residues of ciphertexts are not looked at here, but in crypto.params, before SEAL.
    """
    if len(frame) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame has at most {MAX_FRAME_BYTES} bytes; got {len(frame)}")
    parsed = wire.Frame()
    try:
        parsed.ParseFromString(bytes(frame))
    except DecodeError:
        raise ProtocolError("a frame could not be parsed: truncated or not ours") from None
    parsed.DiscardUnknownFields()  # else they would come back and look canonical
    name = parsed.WhichOneof("body")
    if name is None or parsed.SerializeToString(deterministic=True) != frame:
        raise ProtocolError("a frame is empty or not in canonical form")
    body, kind = getattr(parsed, name), _KINDS[name]
    if kind is Query:
        return _query(body)
    content: dict[str, Any] = {}
    for field in _FIELDS[kind]:
        value = content[field] = getattr(body, field)
        if field in _SIZES:
            fixed_field(value, _SIZES[field], field)
        elif isinstance(value, str):
            limit = MAX_REFUSAL_TEXT if field == "text" else MAX_TEXT
            text_field(value, field, limit=limit, empty=kind is Refusal and field == "query_id")
        elif field in ("zero", "column"):
            if not value.body or not value.seed:  # the sizes are checked against the parameters
                raise ProtocolError(f"{field} has no content")
            content[field] = Seeded(value.body, value.seed)
    if kind is Answer:
        if len(body.values) % 8 or not body.values:
            raise ProtocolError("an answer holds whole 64-bit values")
        content["values"] = np.frombuffer(body.values, "<i8").astype(np.int64)
    elif kind is OpeningDemand:
        sizes = (len(body.seed), len(body.cells_hash), body.millionths > 0)
        if sizes not in ((0, 0, False), (HASH_BYTES, HASH_BYTES, True)):
            raise ProtocolError("a demand names a draw and its cells, or the whole request")
    elif kind is OpeningHeader:
        if not 0 < body.size <= MAX_OPENING_BYTES or body.parts != opening_parts(body.size):
            raise ProtocolError(
                f"an opening has 1 to {MAX_OPENING_BYTES} bytes, in parts of one size"
            )
    elif kind is OpeningPart and not 0 < len(body.body) <= OPENING_PART_BYTES:
        raise ProtocolError(f"a part of an opening has 1 to {OPENING_PART_BYTES} bytes")
    message: Message = kind(**content)
    return message


def _query(body: Any) -> Query:
    """The checked query of a frame."""
    if body.protocol != PROTOCOL_VERSION:
        raise ProtocolError(
            f"the peer speaks protocol {body.protocol}, this is {PROTOCOL_VERSION}; "
            "install matching versions on both sides"
        )
    if not 1 <= len(body.attributes) <= MAX_ATTRIBUTES or len(body.weight_bits) > MAX_GROUPS:
        raise ProtocolError("a query names 1 to 16 attributes and at most 4096 weights")
    for name in body.attributes:
        text_field(name, "attribute")
    for field, choice in (("kind", Kind), ("shape", Shape), ("mechanism", Mechanism)):
        if getattr(body, field) not in get_args(choice):
            raise ProtocolError(f"{field} must be one of {', '.join(get_args(choice))}")
    if body.parameters not in QUERY_SETS:
        raise ProtocolError(f"unknown parameter set; known: {', '.join(QUERY_SETS)}")
    reals = np.array([body.norm_bits, *body.weight_bits], "<u8").view("<f8")
    norm, *weights = reals.tolist()
    if not np.isfinite(reals).all():
        raise ProtocolError("norm and weights must be finite")
    if norm <= 0 or body.columns < 1 or body.noise < 1:
        raise ProtocolError("norm, columns and noise must be positive")
    return Query(
        query_id=text_field(body.query_id, "query_id"),
        plan=fixed_field(body.plan, HASH_BYTES, "plan"),
        purpose=text_field(body.purpose, "purpose", empty=True),
        kind=body.kind,
        shape=body.shape,
        attributes=tuple(body.attributes),
        columns=body.columns,
        mechanism=body.mechanism,
        noise=body.noise,
        norm=norm,
        weights=tuple(weights),
        positions=_checked_positions(body.positions) if body.positions else None,
        parameters=body.parameters,
        declaration=_declaration(body.declaration) if body.HasField("declaration") else PLAIN,
        triangular=body.triangular,
    )


def _checked_positions(raw: bytes) -> bytes:
    if len(raw) % 4 or len(raw) // 4 > MAX_POSITIONS:
        raise ProtocolError(f"positions must be at most {MAX_POSITIONS} whole 32-bit numbers")
    positions = np.frombuffer(raw, "<u4")
    if (positions[1:] <= positions[:-1]).any():
        raise ProtocolError("positions must be ascending and distinct: each person once")
    return raw


def _declaration(body: Any) -> Declaration:
    """The declaration of a query; ProtocolError if its fields do not hold."""
    name = body.WhichOneof("content") or "plain"
    content: dict[str, Any] = {}
    for field in fields(CONTENT_KINDS[name]):
        value = getattr(getattr(body, name), field.name)
        content[field.name] = tuple(value) if field.name == "totals" else value
    try:
        declaration = Declaration(CONTENT_KINDS[name](**content), body.strategy, body.notion)
    except ConfigError as error:
        raise ProtocolError(f"the query's declaration does not hold: {error}") from None
    if declaration == PLAIN:
        raise ProtocolError("a declaration that says nothing is left out: a query has one form")
    return declaration
