"""The three messages of an inspection: demand, header of an opening, part of its sealed box.

Apart from `messages`, which is where everybody imports them from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from isonomy.common.base.canonical import HASH_BYTES
from isonomy.common.base.errors import ProtocolError
from isonomy.common.base.wire_fields import fixed_field, text_field
from isonomy.wire.v1 import sums_pb2 as wire

KEY_BYTES, SIGNATURE_BYTES = 32, 64
MAX_OPENING_BYTES = (1 << 31) - 1  # what AES-GCM seals in one go
OPENING_PART_BYTES = 1 << 22


@dataclass(frozen=True)
class OpeningDemand:
    """The regulator's coin fell: this request is answered once its opening was seen."""

    query_id: str
    plan: bytes
    request_hash: bytes
    auditor: bytes
    signature: bytes

    def signed_bytes(self) -> bytes:
        unsigned = wire.Frame(opening_demand=build_demand(replace(self, signature=b"")))
        return unsigned.SerializeToString(deterministic=True)


@dataclass(frozen=True)
class OpeningHeader:
    """A sealed opening follows, in parts."""

    query_id: str
    request_hash: bytes
    size: int
    parts: int
    box_hash: bytes
    signature: bytes

    def signed_bytes(self) -> bytes:
        unsigned = wire.Frame(opening_header=build_header(replace(self, signature=b"")))
        return unsigned.SerializeToString(deterministic=True)


@dataclass(frozen=True)
class OpeningPart:
    """A piece of the sealed box."""

    index: int
    body: bytes


def opening_parts(size: int) -> int:
    """How many parts a sealed box of `size` bytes has."""
    return -(-size // OPENING_PART_BYTES)


def build_demand(demand: OpeningDemand) -> wire.OpeningDemand:
    """A demand for the wire."""
    return wire.OpeningDemand(**vars(demand))


def read_demand(body: Any) -> OpeningDemand:
    """A demand from the wire, checked."""
    return OpeningDemand(
        query_id=text_field(body.query_id, "query_id"),
        plan=fixed_field(body.plan, HASH_BYTES, "plan"),
        request_hash=fixed_field(body.request_hash, HASH_BYTES, "request_hash"),
        auditor=fixed_field(body.auditor, KEY_BYTES, "auditor"),
        signature=fixed_field(body.signature, SIGNATURE_BYTES, "signature"),
    )


def build_header(header: OpeningHeader) -> wire.OpeningHeader:
    """A header for the wire."""
    return wire.OpeningHeader(**vars(header))


def read_header(body: Any) -> OpeningHeader:
    """A header from the wire, checked."""
    if not 0 < body.size <= MAX_OPENING_BYTES or body.parts != opening_parts(body.size):
        raise ProtocolError(f"an opening has 1 to {MAX_OPENING_BYTES} bytes, in parts of one size")
    return OpeningHeader(
        query_id=text_field(body.query_id, "query_id"),
        request_hash=fixed_field(body.request_hash, HASH_BYTES, "request_hash"),
        size=body.size,
        parts=body.parts,
        box_hash=fixed_field(body.box_hash, HASH_BYTES, "box_hash"),
        signature=fixed_field(body.signature, SIGNATURE_BYTES, "signature"),
    )


def build_part(part: OpeningPart) -> wire.OpeningPart:
    """A part for the wire."""
    return wire.OpeningPart(index=part.index, body=part.body)


def read_part(body: Any) -> OpeningPart:
    """A part from the wire, checked."""
    if not 0 < len(body.body) <= OPENING_PART_BYTES:
        raise ProtocolError(f"a part of an opening has 1 to {OPENING_PART_BYTES} bytes")
    return OpeningPart(body.index, body.body)
