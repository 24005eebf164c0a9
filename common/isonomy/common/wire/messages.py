"""Checked types for every frame that crosses, and total parsers for them.

Each parser checks the size first, then protobuf, then that the bytes are canonical (serialising
again gives the very same bytes), then every field. Whatever a peer sends, the outcome is a checked
message or a ProtocolError. `messages` is the only reader of the generated classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

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
from isonomy.common.base.wire_fields import (
    choice_field,
    double_bits,
    double_field,
    fixed_field,
    text_field,
)
from isonomy.common.crypto.ciphertexts import Seeded
from isonomy.common.crypto.params import PARAMETER_SETS
from isonomy.common.people.cohort import MAX_GROUPS
from isonomy.common.privacy.declarations import (
    PLAIN,
    Audit,
    ConstraintGradient,
    Content,
    Declaration,
    DualCounts,
    DualStep,
    Plain,
    Unknowns,
)
from isonomy.common.privacy.queries import PROTOCOL_VERSION, Kind, Mechanism, Query, Shape
from isonomy.common.wire._opening_messages import (
    MAX_OPENING_BYTES,
    OPENING_PART_BYTES,
    OpeningDemand,
    OpeningHeader,
    OpeningPart,
    build_demand,
    build_header,
    build_part,
    opening_parts,
    read_demand,
    read_header,
    read_part,
)
from isonomy.wire.v1 import sums_pb2 as wire

MAX_FRAME_BYTES = 1 << 26
MAX_REFUSAL_TEXT = 1024
ATTEMPT_BYTES, SIGNATURE_BYTES = 16, 64
ANSWER_DOMAIN = "isonomy/answer/v1"  # what the regulator signs answers under
MAX_ATTRIBUTES = 16
MAX_POSITIONS = max(params.max_people for params in PARAMETER_SETS.values())


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
class Answer:
    """Released values, as they stand in the ledger, signed."""

    query_id: str
    plan: bytes
    request_hash: bytes
    values: NDArray[np.int64]
    units: int
    sequence: int
    ledger_head: bytes
    signature: bytes

    def signed_bytes(self) -> bytes:
        return encode(replace(self, signature=b""))


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
)
M = TypeVar("M", bound=Message)


def frame_hash(frame: bytes) -> bytes:
    """The hash that names a frame."""
    return hash_bytes("isonomy/frame/v1", frame)


def frames_hash(frames: Iterable[bytes], *, hashed: bool = False) -> bytes:
    """One hash over a sequence of frames: their number, order and bytes.

    Streams keep each frame's hash instead of the frame, and say `hashed`.
    """
    return hash_bytes("isonomy/frames/v1", *(f if hashed else frame_hash(f) for f in frames))


def encode(message: Message) -> bytes:
    """Canonical bytes of a message."""
    name, build = _ENCODERS[type(message)]
    return wire.Frame(**{name: build(message)}).SerializeToString(deterministic=True)


def decode(frame: bytes, expected: type[M]) -> M:
    """The checked message in a frame. A Refusal instead of what was expected is raised."""
    body, name = _parse(frame)
    if name == "refusal" and expected is not Refusal:
        raise _refusal(body).error()
    expected_name = _ENCODERS[expected][0]
    if name != expected_name:
        raise ProtocolError(f"expected a frame of type {expected_name}, got {name}")
    return cast(M, _DECODERS[name](body))


def decode_any(frame: bytes) -> Message:
    """The checked message in a frame, whatever its type."""
    body, name = _parse(frame)
    return _DECODERS[name](body)


def _parse(frame: bytes) -> tuple[Any, str]:
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
    return getattr(parsed, name), name


# --- Each message: build and read ----------------------------------------------------------------


def _build_query(query: Query) -> wire.Query:
    positions = b"" if query.positions is None else query.position_array(0).astype("<u4").tobytes()
    return wire.Query(
        protocol=PROTOCOL_VERSION,
        query_id=query.query_id,
        plan=query.plan,
        purpose=query.purpose,
        kind=query.kind,
        shape=query.shape,
        attributes=query.attributes,
        positions=positions,
        columns=query.columns,
        mechanism=query.mechanism,
        noise=query.noise,
        norm_bits=double_bits(query.norm),
        weight_bits=[double_bits(weight) for weight in query.weights],
        parameters=query.parameters,
        declaration=_build_declaration(query.declaration),
    )


def _build_declaration(declaration: Declaration) -> wire.Declaration | None:
    """The message; None for a plain sum that says nothing more."""
    if declaration == PLAIN:
        return None
    message = wire.Declaration(strategy=declaration.strategy, notion=declaration.notion)
    match declaration.content:
        case DualCounts() as counts:
            message.dual_counts.CopyFrom(wire.DualCounts(**vars(counts)))
        case DualStep():
            message.dual_step.SetInParent()
        case ConstraintGradient(attribute, event):
            place = wire.ConstraintGradient(attribute=attribute, event=event)
            message.constraint_gradient.CopyFrom(place)
        case Audit() as audit:
            message.audit.CopyFrom(wire.Audit(**vars(audit)))
        case Unknowns():
            raise ConfigError("the release of unknowns is the regulator's own; no query asks it")
    return message


def _declaration(body: Any) -> Declaration:
    """The declaration of a query; ProtocolError if its fields do not hold."""
    content: Content = Plain()
    try:
        match body.WhichOneof("content"):
            case "dual_counts":
                rule = body.dual_counts
                totals = tuple(rule.totals)
                numbers = (rule.step, rule.bound, rule.damping)
                content = DualCounts(*numbers, rule.signed, rule.least, totals)
            case "dual_step":
                content = DualStep()
            case "constraint_gradient":
                place = body.constraint_gradient
                content = ConstraintGradient(place.attribute, place.event)
            case "audit":
                audit = body.audit
                content = Audit(audit.name, audit.cells, tuple(audit.totals), audit.selected)
        return Declaration(content, body.strategy, body.notion)
    except ConfigError as error:
        raise ProtocolError(f"the query's declaration does not hold: {error}") from None


def _query(body: Any) -> Query:
    if body.protocol != PROTOCOL_VERSION:
        raise ProtocolError(
            f"the peer speaks protocol {body.protocol}, this is {PROTOCOL_VERSION}; "
            "install matching versions on both sides"
        )
    if not 1 <= len(body.attributes) <= MAX_ATTRIBUTES or len(body.weight_bits) > MAX_GROUPS:
        raise ProtocolError("a query names 1 to 16 attributes and at most 4096 weights")
    if body.parameters not in PARAMETER_SETS:
        raise ProtocolError(f"unknown parameter set; known: {', '.join(PARAMETER_SETS)}")
    norm = double_field(body.norm_bits, "norm")
    if norm <= 0 or body.columns < 1 or body.noise < 1:
        raise ProtocolError("norm, columns and noise must be positive")
    return Query(
        query_id=text_field(body.query_id, "query_id"),
        plan=fixed_field(body.plan, HASH_BYTES, "plan"),
        purpose=text_field(body.purpose, "purpose", empty=True),
        kind=cast(Kind, choice_field(body.kind, Kind, "kind")),
        shape=cast(Shape, choice_field(body.shape, Shape, "shape")),
        attributes=tuple(text_field(name, "attribute") for name in body.attributes),
        columns=body.columns,
        mechanism=cast(Mechanism, choice_field(body.mechanism, Mechanism, "mechanism")),
        noise=body.noise,
        norm=norm,
        weights=tuple(double_field(bits, "weight") for bits in body.weight_bits),
        positions=_positions(body.positions),
        parameters=body.parameters,
        declaration=_declaration(body.declaration),
    )


def _positions(raw: bytes) -> tuple[int, ...] | None:
    if not raw:
        return None
    if len(raw) % 4 or len(raw) // 4 > MAX_POSITIONS:
        raise ProtocolError(f"positions must be at most {MAX_POSITIONS} whole 32-bit numbers")
    positions = np.frombuffer(raw, "<u4").astype(np.int64)
    if (np.diff(positions) <= 0).any():
        raise ProtocolError("positions must be ascending and distinct: each person once")
    return tuple(positions.tolist())


def _build_seeded(column: Seeded) -> wire.SeededColumn:
    return wire.SeededColumn(body=column.body, seed=column.seed)


def _seeded(body: Any) -> Seeded:
    return Seeded(body.body, body.seed)  # sizes and residues: ciphertexts.check_seeded, before SEAL


def _build_columns_header(header: ColumnsHeader) -> wire.ColumnsHeader:
    return wire.ColumnsHeader(
        query_id=header.query_id,
        attempt=header.attempt,
        query_hash=header.query_hash,
        block=header.block,
        blocks=header.blocks,
        indicators=header.indicators,
        zero=_build_seeded(header.zero),
    )


def _columns_header(body: Any) -> ColumnsHeader:
    return ColumnsHeader(
        query_id=text_field(body.query_id, "query_id"),
        attempt=fixed_field(body.attempt, ATTEMPT_BYTES, "attempt"),
        query_hash=fixed_field(body.query_hash, HASH_BYTES, "query_hash"),
        block=body.block,
        blocks=body.blocks,
        indicators=body.indicators,
        zero=_seeded(body.zero),
    )


def _build_column(column: Column) -> wire.Column:
    return wire.Column(
        block=column.block, indicator=column.indicator, column=_build_seeded(column.column)
    )


def _column(body: Any) -> Column:
    return Column(body.block, body.indicator, _seeded(body.column))


def _build_sum_header(header: SumHeader) -> wire.SumHeader:
    return wire.SumHeader(
        query_id=header.query_id,
        attempt=header.attempt,
        query_hash=header.query_hash,
        columns_hash=header.columns_hash,
        commitment=header.commitment,
        parts_hash=header.parts_hash,
        parts=header.parts,
    )


def _sum_header(body: Any) -> SumHeader:
    return SumHeader(
        query_id=text_field(body.query_id, "query_id"),
        attempt=fixed_field(body.attempt, ATTEMPT_BYTES, "attempt"),
        query_hash=fixed_field(body.query_hash, HASH_BYTES, "query_hash"),
        columns_hash=fixed_field(body.columns_hash, HASH_BYTES, "columns_hash"),
        commitment=fixed_field(body.commitment, HASH_BYTES, "commitment"),
        parts_hash=fixed_field(body.parts_hash, HASH_BYTES, "parts_hash"),
        parts=body.parts,
    )


def _build_sum_part(part: SumPart) -> wire.SumPart:
    return wire.SumPart(index=part.index, ciphertext=part.ciphertext)


def _sum_part(body: Any) -> SumPart:
    return SumPart(
        body.index, body.ciphertext
    )  # size and residues: ciphertexts.check_answer, before SEAL


def _build_answer(answer: Answer) -> wire.Answer:
    return wire.Answer(
        query_id=answer.query_id,
        plan=answer.plan,
        request_hash=answer.request_hash,
        values=answer.values.astype("<i8").tobytes(),
        units=answer.units,
        sequence=answer.sequence,
        ledger_head=answer.ledger_head,
        signature=answer.signature,
    )


def _answer(body: Any) -> Answer:
    if len(body.values) % 8 or not body.values:
        raise ProtocolError("an answer holds whole 64-bit values")
    return Answer(
        query_id=text_field(body.query_id, "query_id"),
        plan=fixed_field(body.plan, HASH_BYTES, "plan"),
        request_hash=fixed_field(body.request_hash, HASH_BYTES, "request_hash"),
        values=np.frombuffer(body.values, "<i8").astype(np.int64),
        units=body.units,
        sequence=body.sequence,
        ledger_head=fixed_field(body.ledger_head, HASH_BYTES, "ledger_head"),
        signature=fixed_field(body.signature, SIGNATURE_BYTES, "signature"),
    )


def _build_refusal(refusal: Refusal) -> wire.Refusal:
    return wire.Refusal(query_id=refusal.query_id, code=refusal.code, text=refusal.text)


def _refusal(body: Any) -> Refusal:
    return Refusal(
        query_id=text_field(body.query_id, "query_id", empty=True),
        code=text_field(body.code, "code"),
        text=text_field(body.text, "text", limit=MAX_REFUSAL_TEXT),
    )


_ENCODERS: dict[type[Any], tuple[str, Callable[[Any], Any]]] = {
    Query: ("query", _build_query),
    ColumnsHeader: ("columns_header", _build_columns_header),
    Column: ("column", _build_column),
    SumHeader: ("sum_header", _build_sum_header),
    SumPart: ("sum_part", _build_sum_part),
    Answer: ("answer", _build_answer),
    Refusal: ("refusal", _build_refusal),
    OpeningDemand: ("opening_demand", build_demand),
    OpeningHeader: ("opening_header", build_header),
    OpeningPart: ("opening_part", build_part),
}
_DECODERS: dict[str, Callable[[Any], Message]] = {
    "query": _query,
    "columns_header": _columns_header,
    "column": _column,
    "sum_header": _sum_header,
    "sum_part": _sum_part,
    "answer": _answer,
    "refusal": _refusal,
    "opening_demand": read_demand,
    "opening_header": read_header,
    "opening_part": read_part,
}

__all__ = [
    "ANSWER_DOMAIN",
    "ATTEMPT_BYTES",
    "MAX_FRAME_BYTES",
    "MAX_OPENING_BYTES",
    "OPENING_PART_BYTES",
    "Answer",
    "Column",
    "ColumnsHeader",
    "Message",
    "OpeningDemand",
    "OpeningHeader",
    "OpeningPart",
    "Refusal",
    "SumHeader",
    "SumPart",
    "decode",
    "decode_any",
    "encode",
    "frame_hash",
    "frames_hash",
    "opening_parts",
]
