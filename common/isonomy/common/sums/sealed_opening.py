"""An opening on its way to the auditor: what is in the box, how it is sealed, how it travels.

    box   = seal_to(auditor's key, context, chunks)          X25519 + AES-256-GCM, keys.boxes
    context = H(plan, query id, request hash)                a box opens in its own place only
    chunks  = header, query, shape, rows, seeds, nonce, answer (if there is one), pool (of a query
              that several companies asked together: pool_masks.PoolPart), columns …

Under a plan by pads the rows are those of the people drawn, and their row keys, one chunk per
released group, take the place of the columns (pads/message.py).

In a session the box follows the regulator's demand, cut into OpeningPart frames. On disk it stands
in a file that names plan, query and request, with the regulator's signed demand if there was one:

    isonomy-opening 1 | plan | query id | request hash | demand or nothing | signature | box

The company signs what it seals, together with the demand: a box that anybody else made is no
evidence against it, and neither is one that stands under another demand than it answered. The
regulator carries such files to an auditor without being able to read them, unless the plan names
the regulator's own key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from isonomy.common.base.canonical import HASH_BYTES, hash_bytes
from isonomy.common.base.errors import CapacityError, ConfigError, ProtocolError, VerificationError
from isonomy.common.base.private_files import write_private
from isonomy.common.crypto.blinding import SEED_BYTES, Seeds
from isonomy.common.keys.boxes import open_box, seal_to
from isonomy.common.keys.identity import Identity, verify_signature
from isonomy.common.privacy.queries import Query, Shapes
from isonomy.common.sums.openings import (
    NONCE_BYTES,
    Opening,
    StoredRequest,
    array_bytes,
    cut_chunks,
    join_chunks,
)
from isonomy.common.wire.envelopes import fixed_field
from isonomy.common.wire.messages import (
    MAX_OPENING_BYTES,
    OPENING_PART_BYTES,
    OpeningHeader,
    OpeningPart,
    decode,
    encode,
    frame_hash,
    frames_hash,
    opening_parts,
)

DEMAND_DOMAIN, OPENING_DOMAIN = "isonomy/opening-demand/v1", "isonomy/opening/v1"
_MAGIC = b"isonomy-opening 1"
_SEALED_BYTES = 48  # key and tag
_FRAME_BYTES = 512  # more than a frame needs around its ciphertext
_ROW_KEY_BYTES = 32  # of one person and group, both sides


@dataclass(frozen=True, repr=False)  # no repr: rows and seeds must not reach logs
class Shown:
    """Everything that an inspection looks at, as the company shows it."""

    header_frame: bytes
    opening: Opening
    columns: list[bytes]  # by pads: row keys of each released group
    answer: bytes = b""  # the regulator's signed answer, if it gave one
    pool: bytes = b""  # PoolPart, of a query that several companies asked together


@dataclass(frozen=True, repr=False)
class SealedOpening:
    """A box and what it claims to be: the content of an opening file."""

    plan: bytes
    query_id: str
    request_hash: bytes
    box: bytes
    signature: bytes  # the company's
    demand: bytes = b""  # the regulator's signed demand, if there was one

    def header(self) -> OpeningHeader:
        size, box_hash = len(self.box), hash_bytes("isonomy/opening-box-hash/v1", self.box)
        place = (self.query_id, self.request_hash, size, opening_parts(size), box_hash)
        return OpeningHeader(*place, self.signature)

    def check_signature(self, company_key: bytes) -> None:
        """VerificationError unless the company itself sealed this box for this request."""
        check_header_signature(self.header(), company_key, self.demand)

    def save(self, path: Path) -> None:
        """All or nothing, for the owner's eyes only."""
        named = [_MAGIC, self.plan, self.query_id.encode(), self.request_hash]
        write_private(path, join_chunks([*named, self.demand, self.signature, self.box]))

    @classmethod
    def load(cls, path: Path) -> SealedOpening:
        """Total: whatever the file holds, a sealed opening or a ConfigError."""
        try:
            if path.stat().st_size > MAX_OPENING_BYTES + 4096:
                raise ValueError("too large")
            magic, plan, query_id, *rest = cut_chunks(path.read_bytes())
            request_hash, demand, signature, box = rest
            opening = cls(plan, query_id.decode(), request_hash, box, signature, demand)
        except OSError as error:
            raise ConfigError(f"cannot read the opening {path}: {error.strerror}") from None
        except (ValueError, struct.error):
            raise ConfigError(f"{path} is not an opening, or it was cut off") from None
        try:
            decode(encode(opening.header()), OpeningHeader)  # as it would travel
            fixed_field(plan, HASH_BYTES, "plan")
        except ProtocolError as error:
            raise ConfigError(f"{path} is not an opening: {error}") from None
        if magic != _MAGIC:
            raise ConfigError(f"{path} is not an opening, or from another version")
        return opening

    def open(self, key: X25519PrivateKey) -> Shown:
        """What the company put in. VerificationError or ProtocolError if it cannot be read."""
        place = _context(self.plan, self.query_id, self.request_hash)
        return _unpack(open_box(key, place, self.box))


def show_columns(query_id: str, request: StoredRequest, columns: Iterable[bytes]) -> Shown:
    """A whole request by homomorphic encryption, with the columns that were kept of it."""
    frames = list(columns)
    if frames_hash(frames) != request.header.columns_hash:
        # Shown like this, an honest request would count as a forged one.
        raise VerificationError(
            f"the columns that were kept of query {query_id!r} are not those of its request; "
            "restore the openings from a backup"
        )
    return Shown(request.frames[0], request.opening, frames, request.answer or b"")


def seal_opening(
    auditor: bytes,
    plan: bytes,
    query_id: str,
    shown: Shown,
    identity: Identity,
    demand: bytes = b"",
    request_hash: bytes = b"",
) -> SealedOpening:
    """The company's side: what it shows, for the auditor's eyes, signed with the demand.

    `request_hash`: of the joint request, where several companies asked; without, the header's.
    """
    request_hash, packed = request_hash or frame_hash(shown.header_frame), _pack(shown)
    if len(packed) + _SEALED_BYTES > MAX_OPENING_BYTES:
        raise CapacityError(f"an opening has at most {MAX_OPENING_BYTES} bytes; ask for less")
    box = seal_to(auditor, _context(plan, query_id, request_hash), packed)
    unsigned = SealedOpening(plan, query_id, request_hash, box, b"", demand)
    signature = identity.sign(OPENING_DOMAIN, _signed_bytes(unsigned.header(), demand))
    return replace(unsigned, signature=signature)


def check_header_signature(header: OpeningHeader, company_key: bytes, demand: bytes) -> None:
    """VerificationError unless the company signed this header, which binds the box by its hash."""
    signed = _signed_bytes(header, demand)
    verify_signature(company_key, OPENING_DOMAIN, signed, header.signature)


def _signed_bytes(header: OpeningHeader, demand: bytes) -> bytes:
    """The header and the demand: by pads the demand says whose rows are in the box."""
    return header.signed_bytes() + (frame_hash(demand) if demand else b"")


def opening_limit(query: Query, shapes: Shapes, *, by_rows: bool = False) -> int:
    """Bytes that an honest opening of this query has at most. `by_rows`: under a plan by pads."""
    layout, params = shapes.layout, shapes.layout.params
    rows = 4 * layout.people * layout.columns
    rows *= shapes.indicators if query.shape == "weighted" else 1
    columns = (layout.blocks * shapes.indicators + 1) * (params.column_bytes + _FRAME_BYTES)
    if by_rows:
        columns = shapes.indicators * (layout.people * _ROW_KEY_BYTES + _FRAME_BYTES)
    answer = 8 * shapes.sums * layout.columns
    return rows + columns + answer + 8 * layout.people + (1 << 20)


def check_opening_size(query: Query, shapes: Shapes, *, by_rows: bool = False) -> None:
    """CapacityError for a query that could not be opened, before anything is computed for it."""
    if opening_limit(query, shapes, by_rows=by_rows) > MAX_OPENING_BYTES:
        raise CapacityError(
            f"rows and columns of this query are more than the {MAX_OPENING_BYTES >> 20} MiB that "
            "an inspection can look at; ask about fewer people or columns at a time"
        )


# --- In a session --------------------------------------------------------------------------------


def opening_frames(sealed: SealedOpening) -> Iterator[bytes]:
    """Header and parts, as they travel."""
    header, view = sealed.header(), memoryview(sealed.box)
    yield encode(header)
    for index in range(header.parts):
        piece = view[index * OPENING_PART_BYTES : (index + 1) * OPENING_PART_BYTES]
        yield encode(OpeningPart(index, bytes(piece)))


def collect_opening(
    plan: bytes, demand: bytes, header: OpeningHeader, frames: Iterator[bytes]
) -> SealedOpening:
    """The box that a header announced; ProtocolError if what follows is something else."""
    pieces = []
    for index in range(header.parts):
        part = decode(next(frames, b""), OpeningPart)
        if part.index != index:
            raise ProtocolError(f"expected part {index} of an opening, got part {part.index}")
        pieces.append(part.body)
    box = b"".join(pieces)
    opening = SealedOpening(
        plan, header.query_id, header.request_hash, box, header.signature, demand
    )
    if opening.header() != header or next(frames, None) is not None:
        raise ProtocolError("an opening has another size or hash than it announced")
    return opening


# --- The box -------------------------------------------------------------------------------------


def _context(plan: bytes, query_id: str, request_hash: bytes) -> bytes:
    return hash_bytes("isonomy/opening-box/v1", plan, query_id.encode(), request_hash)


def _pack(shown: Shown) -> bytes:
    opening = shown.opening
    shape = np.array(opening.rows.shape, dtype="<i8").tobytes()
    secrets = opening.seeds.flood + opening.seeds.mask + opening.nonce
    rows = array_bytes(np.asarray(opening.rows))
    head = [shown.header_frame, opening.query_frame, shape]
    return join_chunks([*head, rows, secrets, shown.answer, shown.pool, *shown.columns])


def _unpack(packed: bytes) -> Shown:
    try:
        header, query, shape, rows, secrets, answer, pool, *columns = cut_chunks(packed)
        sizes = np.frombuffer(shape, "<i8").tolist()
        opening = Opening(
            query_frame=query,
            rows=np.frombuffer(rows, "<i4").astype(np.int32).reshape(sizes),
            seeds=Seeds(secrets[:SEED_BYTES], secrets[SEED_BYTES : 2 * SEED_BYTES]),
            nonce=secrets[2 * SEED_BYTES :],
        )
    except (ValueError, struct.error):
        raise ProtocolError("an opening cannot be read: it is cut off or malformed") from None
    exact = len(secrets) == 2 * SEED_BYTES + NONCE_BYTES
    if not exact or len(sizes) not in (2, 3) or min(sizes) < 1 or not columns:
        raise ProtocolError("an opening lacks rows, seeds or columns")
    return Shown(header, opening, columns, answer, pool)
