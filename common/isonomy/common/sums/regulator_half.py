"""The regulator's half of the encrypted exchange: frames in, frames out, no transport.

One query:

    columns(Query)                →  ColumnsHeader, Column …     a fresh key, encrypted indicators
    answer(SumHeader, SumPart …)  →  Answer                      decrypt, noise, record, sign
                              or  →  OpeningDemand               the coin fell: show it first
    open(OpeningHeader, …)        →  Answer                      after the inspection

That is how a plan by homomorphic encryption goes (`EncryptedColumns`). Under a plan by pads the
first call transfers keys, once, and every query is the second call alone (pads/regulator.py). What
both have in common is in `RegulatorHalf`.

The key of an attempt lives in memory from the first call to the second, and is gone after it,
whether the second call succeeds or not. Nothing is decrypted before the whole request is here and
holds (number, order, form and hash of its parts). Nothing after the first decryption depends on
what came out: neither whether the request is refused nor how long it takes (he.QueryKey). So what
gets no answer and no record tells nothing either.

Between the second and the third call the decrypted sums wait in memory. Nothing of them leaves, and
they are gone if the process ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from tempfile import SpooledTemporaryFile
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import (
    AttemptLost,
    InspectionFailed,
    IsonomyError,
    ProtocolError,
    ReplayRefused,
    StorageError,
)
from isonomy.common.crypto.he import QueryKey
from isonomy.common.crypto.params import Layout, centre, check_answer
from isonomy.common.keys.identity import Identity
from isonomy.common.ledger.records import DebitRecord
from isonomy.common.privacy.queries import Query, Shapes
from isonomy.common.sums.company_half import Reply, hashing, read_reply
from isonomy.common.sums.noise_and_budget import Authorised, Custodian
from isonomy.common.sums.sealed_opening import opening_limit
from isonomy.common.wire.messages import (
    ANSWER_DOMAIN,
    ATTEMPT_BYTES,
    MAX_OPENING_BYTES,
    Answer,
    Column,
    ColumnsHeader,
    OpeningDemand,
    OpeningHeader,
    Refusal,
    SumHeader,
    decode,
    decode_part,
    encode,
    frame_hash,
    frames_hash,
)

MAX_OPEN_ATTEMPTS = 8
SPOOL_BYTES = 1 << 26  # of a request's ciphertexts in memory; more of them wait on disk


@dataclass
class _Attempt:
    authorised: Authorised
    key: QueryKey
    attempt: bytes
    query_hash: bytes
    columns_hash: bytes = b""  # set when the last column has left
    destroyed: bool = False


@dataclass(frozen=True)
class RowsRead:
    """What an inspection by rows needs of a request by pads: who was drawn, and what came of them.

    `pads_hold`: the company committed to the pads that the regulator has, of every person.
    """

    seed: bytes
    millionths: int
    cells_hash: bytes
    drawn: int
    pads_hold: bool


@dataclass(frozen=True, repr=False)
class Read:
    """A complete request: its query, and its (sums, m) exact or masked sums modulo `modulus`."""

    authorised: Authorised
    sums: NDArray[np.int64]
    modulus: int
    rows: RowsRead | None = None  # by pads, under a plan with an auditor


@dataclass(frozen=True, repr=False)
class _Pending:
    """A request whose opening was demanded: read, not yet answered."""

    request_hash: bytes
    read: Read


class Inspector(Protocol):
    """Who decides about inspections: inspection.desk, if the plan has an auditor."""

    def check_query(self, query: Query, shapes: Shapes) -> None:
        """Raise if no new query may be asked now."""

    def check_request(self, query_id: str, request_hash: bytes) -> OpeningDemand | None:
        """The demand that stands against this request; raise if another one stands in its way."""

    def draw(
        self, query_id: str, request_hash: bytes, rows: RowsRead | None
    ) -> OpeningDemand | None:
        """Toss the coin for a complete request, or demand the rows that were drawn."""

    def judge(self, header: OpeningHeader, frames: Iterator[bytes], max_bytes: int) -> None:
        """Look at an opening of so many bytes at most; raise unless it may now be answered."""


CheckQuery = Callable[[Query, Shapes], None]


class RegulatorCarrier(Protocol):
    """How indicators and rows meet: EncryptedColumns here, or pads.regulator.PadCarrier."""

    def columns(self, frame: bytes, check: CheckQuery) -> Iterator[bytes]:
        """What the company gets before it sends its rows. Raises before the first frame."""

    def read(self, header: SumHeader, frames: Iterator[bytes], check: CheckQuery) -> Read:
        """A complete request, checked."""


class RegulatorHalf:
    """Answers blind group sums for one plan."""

    def __init__(
        self,
        custodian: Custodian,
        identity: Identity,
        inspector: Inspector | None = None,
        carrier: RegulatorCarrier | None = None,
    ) -> None:
        self._custodian, self._identity, self._inspector = custodian, identity, inspector
        self._carrier = carrier or EncryptedColumns(custodian)
        self._pending: dict[str, _Pending] = {}
        # Round and λ after the dual step that a query was; None if it was not one.
        self.multipliers = custodian.dual.after.get

    def columns(self, frame: bytes) -> Iterator[bytes] | Refusal:
        """What the carrier sends before there is a request, as it is read; or a refusal.

        Everything is checked before this returns.
        """
        try:
            return self._carrier.columns(frame, self._check_query)
        except IsonomyError as error:
            return Refusal.of("", error)

    def _check_query(self, query: Query, shapes: Shapes) -> None:
        if self._inspector is not None:
            self._inspector.check_query(query, shapes)

    def answer(self, frames: Iterable[bytes]) -> Answer | OpeningDemand | Refusal:
        """The signed answer to a complete request; or a demand to open it; or a refusal."""
        query_id = ""
        try:
            stream = iter(frames)
            header_frame = next(stream, b"")
            header = decode(header_frame, SumHeader)
            query_id, request_hash = header.query_id, frame_hash(header_frame)
            record = self._custodian.stored(query_id, request_hash)
            if record is not None:
                return sign_answer(self._identity, record)
            # A demand that was made before stands: neither side's restart makes it go away.
            inspector, demand = self._inspector, None
            if inspector is not None:
                demand = inspector.check_request(query_id, request_hash)
            if demand is not None:
                return demand
            # A request that was demanded before, and whose verdict has come in since, waits here.
            pending = self._pending.pop(query_id, None)
            if pending is None or pending.request_hash != request_hash:
                read = self._carrier.read(header, stream, self._check_query)
                pending = _Pending(request_hash, read)
                demand = inspector.draw(query_id, request_hash, read.rows) if inspector else None
            if demand is not None:
                self._pending[query_id] = pending
                return demand
            record = self._release(pending.read, request_hash)
            return sign_answer(self._identity, record)
        except IsonomyError as error:
            return Refusal.of(query_id, error)

    def open(self, frames: Iterable[bytes]) -> Answer | Refusal:
        """The signed answer to a request, now that its opening is here; or a refusal."""
        query_id = ""
        try:
            stream = iter(frames)
            header = decode(next(stream, b""), OpeningHeader)
            query_id = header.query_id
            record = self._custodian.stored(query_id, header.request_hash)
            if record is None:
                record = self._opened(header, stream)
            return sign_answer(self._identity, record)
        except IsonomyError as error:
            return Refusal.of(query_id, error)

    def _opened(self, header: OpeningHeader, frames: Iterator[bytes]) -> DebitRecord:
        if self._inspector is None:
            raise ProtocolError("no opening was demanded: the plan names no auditor")
        pending = self._pending.get(header.query_id)
        try:
            self._inspector.judge(header, frames, _opening_limit(pending))
        except InspectionFailed:
            self._pending.clear()  # nobody will ever ask for them again
            raise
        self._pending.pop(header.query_id, None)
        if pending is None or pending.request_hash != header.request_hash:
            # It passed, but we restarted meanwhile: it is asked again, and inspected again.
            raise attempt_lost()
        return self._release(pending.read, pending.request_hash)

    def _release(self, read: Read, request_hash: bytes) -> DebitRecord:
        place = (read.authorised, request_hash, read.sums)
        return self._custodian.release(*place, modulus=read.modulus)


class EncryptedColumns:
    """The homomorphic carrier: indicators leave encrypted, sums come back encrypted."""

    def __init__(self, custodian: Custodian) -> None:
        self._custodian = custodian
        self._attempts: dict[str, _Attempt] = {}

    # --- The first call ------------------------------------------------------------------------

    def columns(self, frame: bytes, check: CheckQuery) -> Iterator[bytes]:
        """Authorise a query and open an attempt at it, with a key of its own.

        Returns the encrypted indicator columns, block by block as they are read.
        """
        query = decode(frame, Query)
        if self._custodian.was_answered(query.query_id):
            raise ReplayRefused(
                f"query {query.query_id!r} was answered before; send the stored request to get "
                "the same answer again"
            )
        authorised = self._custodian.authorise(query)
        check(query, authorised.shapes)
        # A crash may have lost the other side's memory of an attempt: the newest one counts.
        self._forget(query.query_id)
        while len(self._attempts) >= MAX_OPEN_ATTEMPTS:
            self._forget(next(iter(self._attempts)))
        # Fresh for each attempt: a key that has decrypted once never decrypts again.
        key = QueryKey(authorised.shapes.layout.params)
        attempt = _Attempt(authorised, key, os.urandom(ATTEMPT_BYTES), frame_hash(frame))
        self._attempts[query.query_id] = attempt
        return self._columns(attempt)

    def _columns(self, attempt: _Attempt) -> Iterator[bytes]:
        authorised, hashes = attempt.authorised, list[bytes]()
        everybody = slice(0, len(authorised.codes[0]))
        frames = column_frames(
            authorised, attempt.key, attempt.attempt, attempt.query_hash, everybody
        )
        for frame in hashing(frames, hashes):
            yield frame
            # Before the next column is encrypted: the key may have gone while this one travelled.
            if attempt.destroyed:
                error = ProtocolError("this attempt was replaced by a newer one")
                yield encode(Refusal.of(authorised.query.query_id, error))
                return
        attempt.columns_hash = frames_hash(hashes, hashed=True)

    # --- The second call -----------------------------------------------------------------------

    def read(self, header: SumHeader, frames: Iterator[bytes], check: CheckQuery) -> Read:
        """Decrypt a complete request under the key of its attempt, which is gone afterwards."""
        attempt = self._attempts.get(header.query_id)
        # Compare first: an old header must not cost a newer attempt its key.
        if attempt is None or attempt.attempt != header.attempt:
            raise attempt_lost()
        shapes = attempt.authorised.shapes
        params = shapes.layout.params
        try:
            if header.query_hash != attempt.query_hash:
                raise ProtocolError("the request answers another query than the one it names")
            if not attempt.columns_hash or header.columns_hash != attempt.columns_hash:
                raise ProtocolError("the request was not made from the columns that were sent")
            # Every part is here and checked before the first is decrypted: whoever could have parts
            # decrypted and then be refused would have free, unseen decryptions. Ciphertexts are no
            # secret, so what does not fit into memory waits in an unnamed file.
            with SpooledTemporaryFile(max_size=SPOOL_BYTES) as spool:
                for body in request_parts(header, frames, [params.answer_bytes] * shapes.parts):
                    check_answer(params, body)
                    spool.write(body)
                spool.seek(0)
                parts = iter(partial(spool.read, params.answer_bytes), b"")
                sums = decrypt_sums(attempt.authorised, attempt.key, parts)
        except OSError as error:
            raise StorageError(f"no room for a request's ciphertexts: {error.strerror}") from None
        finally:
            self._forget(header.query_id)
        return Read(attempt.authorised, sums, params.plain_modulus)

    def _forget(self, query_id: str) -> None:
        attempt = self._attempts.pop(query_id, None)
        if attempt is not None:
            attempt.destroyed = True
            attempt.key.destroy()


def request_parts(
    header: SumHeader, frames: Iterator[bytes], sizes: Sequence[int]
) -> Iterator[bytes | memoryview]:
    """The bodies of a request's parts, in order. The caller compares their sizes.

    When the last one was read: ProtocolError unless this was all, and the very bytes that the
    header names.
    """
    expected = len(sizes)
    if header.parts != expected:
        raise ProtocolError(f"the query has {expected} parts; the request announces {header.parts}")
    hashes = []
    for index, size in enumerate(sizes):
        frame = next(frames, None)
        if frame is None:
            raise ProtocolError(f"the request ends after {index} of {expected} parts")
        body = decode_part(frame, index, size)
        hashes.append(frame_hash(frame))
        yield body
    if next(frames, None) is not None:
        raise ProtocolError("more parts came after the last one that the request announces")
    if frames_hash(hashes, hashed=True) != header.parts_hash:
        raise ProtocolError("the parts are not those that the request's header binds")


def _opening_limit(pending: _Pending | None) -> int:
    """The size of the largest honest opening; after our restart nobody knows it."""
    if pending is None:
        return MAX_OPENING_BYTES
    read = pending.read
    return opening_limit(read.authorised.query, read.authorised.shapes, by_rows=bool(read.rows))


def attempt_lost() -> AttemptLost:
    """What a request hears whose key is gone."""
    return AttemptLost(
        "no key is open for this attempt: it was answered, replaced or lost in a restart. Ask for "
        "columns again."
    )


def column_frames(
    authorised: Authorised, key: QueryKey, attempt: bytes, query_hash: bytes, people: slice
) -> Iterator[bytes]:
    """A header and the encrypted indicators of some of the people asked about, block by block."""
    shapes, layout = authorised.shapes, authorised.shapes.layout
    count = people.stop - people.start
    part = Layout(layout.params, count, layout.columns, layout.block)
    yield encode(
        ColumnsHeader(
            query_id=authorised.query.query_id,
            attempt=attempt,
            query_hash=query_hash,
            block=part.block,
            blocks=part.blocks,
            indicators=shapes.indicators,
            zero=key.encrypt_zero(),
        )
    )
    for index in range(part.blocks):
        block = part.block_slice(index)
        members_of = authorised.indicators(
            slice(people.start + block.start, people.start + block.stop)
        )
        for number, members in enumerate(members_of):
            yield encode(Column(index, number, key.encrypt_column(members)))


def decrypt_sums(
    authorised: Authorised, key: QueryKey, parts: Iterable[bytes]
) -> NDArray[np.int64]:
    """(sums, m) declared coefficients, and nothing else, of every part. Cannot be refused."""
    shapes, layout = authorised.shapes, authorised.shapes.layout
    sums = np.empty((shapes.sums, layout.columns), dtype=np.int64)
    for index, part in enumerate(parts):
        number, position = divmod(index, layout.parts)
        columns, declared = layout.declared(position)
        sums[number, columns] = key.decrypt(part)[declared]
    return readable_sums(authorised, sums)


def readable_sums(
    authorised: Authorised, sums: NDArray[np.int64], modulus: int | None = None
) -> NDArray[np.int64]:
    """Residues modulo t (or another modulus) as they go to the noise: blind ones centred, open ones
    cut as well.

    Open sums are cut to what honest rows can make them (public n and C only). Cut, not refused:
    whether a refusal comes would depend on the exact sum, and a company could ask that for free.
    Cutting moves no two sums further apart, so the noise still covers it. Nor does the wrap at t/2,
    next to which a company can shift a sum: what lies beyond t/4 is first reflected there, so that
    both sides of the wrap meet at 0.
    """
    t = modulus or authorised.shapes.layout.params.plain_modulus
    sums = centre(sums, t)
    if authorised.query.kind == "blind":
        return sums
    sums = np.where(np.abs(sums) > t // 4, np.sign(sums) * (t // 2) - sums, sums)
    limit = len(authorised.codes[0]) * authorised.query.params.row_bound
    return np.clip(sums, -limit, limit)


def sign_answer(identity: Identity, record: DebitRecord) -> Answer:
    """The answer of a ledger record, signed."""
    unsigned = Answer(
        query_id=record.query_id,
        plan=record.plan,
        request_hash=record.request_hash,
        values=np.frombuffer(record.answer, "<i8").astype(np.int64),
        units=record.units,
        sequence=record.seq,
        ledger_head=record.hash,
        signature=b"",
    )
    signature = identity.sign(ANSWER_DOMAIN, unsigned.signed_bytes())
    return replace(unsigned, signature=signature)


class DirectPort:
    """The regulator in the company's own process: both halves, every frame, no transport."""

    def __init__(self, half: RegulatorHalf) -> None:
        self.half = half

    def columns(self, query_id: str, query_frame: bytes) -> Iterator[bytes]:
        columns = self.half.columns(query_frame)
        return iter([encode(columns)]) if isinstance(columns, Refusal) else columns

    def answer(self, query_id: str, frames: Iterable[bytes]) -> Reply:
        return read_reply(encode(self.half.answer(frames)))

    def open(self, query_id: str, frames: Iterable[bytes]) -> Reply:
        return read_reply(encode(self.half.open(frames)))

    def multipliers(self, query_id: str) -> tuple[float, ...] | None:
        state = self.half.multipliers(query_id)
        return None if state is None else state[1]
