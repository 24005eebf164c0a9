"""The regulator's half of the encrypted exchange: frames in, frames out, no transport.

One query:

    columns(Query)            →  ColumnsHeader, Column …       a fresh key, encrypted indicators
    answer(SumHeader, SumPart …)  →  Answer                        decrypt, noise, record, sign

The key of an attempt lives in memory from the first call to the second, and is gone after it,
whether the second call succeeds or not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isonomy.common.custodian import Authorised, Custodian
from isonomy.common.errors import AttemptLost, IsonomyError, ProtocolError, ReplayRefused
from isonomy.common.he import QueryKey
from isonomy.common.identity import Identity
from isonomy.common.ledger import DebitRecord
from isonomy.common.messages import (
    ATTEMPT_BYTES,
    Answer,
    Column,
    ColumnsHeader,
    Refusal,
    SumHeader,
    SumPart,
    decode,
    encode,
    frame_hash,
    frames_hash,
)
from isonomy.common.queries import Query

ANSWER_DOMAIN = "isonomy/answer/v1"
MAX_OPEN_ATTEMPTS = 8


@dataclass
class _Attempt:
    authorised: Authorised
    key: QueryKey
    attempt: bytes
    query_hash: bytes
    columns_hash: bytes = b""  # set when the last column has left
    destroyed: bool = False


class RegulatorHalf:
    """Answers blind group sums for one plan."""

    def __init__(self, custodian: Custodian, identity: Identity) -> None:
        self._custodian, self._identity = custodian, identity
        self._attempts: dict[str, _Attempt] = {}

    def columns(self, query_frame: bytes) -> Iterator[bytes]:
        """Encrypted indicator columns for a query, block by block; or one Refusal."""
        query_id = ""
        try:
            query = decode(query_frame, Query)
            query_id = query.query_id
            yield from self._columns(query, frame_hash(query_frame))
        except IsonomyError as error:
            yield encode(Refusal.of(query_id, error))

    def answer(self, frames: Iterable[bytes]) -> bytes:
        """The signed answer to a complete request; or a Refusal."""
        query_id = ""
        try:
            stream = iter(frames)
            header_frame = next(stream, b"")
            header = decode(header_frame, SumHeader)
            query_id = header.query_id
            record = self._custodian.stored(query_id, frame_hash(header_frame))
            if record is None:
                record = self._answer(header, frame_hash(header_frame), stream)
            return encode(self._sign(record))
        except IsonomyError as error:
            return encode(Refusal.of(query_id, error))

    # --- The first call ------------------------------------------------------------------------

    def _columns(self, query: Query, query_hash: bytes) -> Iterator[bytes]:
        if self._custodian.was_answered(query.query_id):
            raise ReplayRefused(
                f"query {query.query_id!r} was answered before; send the stored request to get "
                "the same answer again"
            )
        authorised = self._custodian.authorise(query)
        # A crash may have lost the other side's memory of an attempt: the newest one counts.
        self._forget(query.query_id)
        while len(self._attempts) >= MAX_OPEN_ATTEMPTS:
            self._forget(next(iter(self._attempts)))
        # Fresh for each attempt: a key that has decrypted once never decrypts again.
        key = QueryKey(query.params)
        attempt = _Attempt(authorised, key, os.urandom(ATTEMPT_BYTES), query_hash)
        self._attempts[query.query_id] = attempt
        hashes = []
        for frame in self._column_frames(attempt):
            hashes.append(frame_hash(frame))
            yield frame
        attempt.columns_hash = frames_hash(hashes, hashed=True)

    def _column_frames(self, attempt: _Attempt) -> Iterator[bytes]:
        shapes, query = attempt.authorised.shapes, attempt.authorised.query
        yield encode(
            ColumnsHeader(
                query_id=query.query_id,
                attempt=attempt.attempt,
                query_hash=attempt.query_hash,
                block=shapes.layout.block,
                blocks=shapes.layout.blocks,
                indicators=shapes.indicators,
                zero=attempt.key.encrypt_zero(),
            )
        )
        for index in range(shapes.layout.blocks):
            people = shapes.layout.block_slice(index)
            for number, members in enumerate(attempt.authorised.indicators(people)):
                if attempt.destroyed:
                    raise ProtocolError("this attempt was replaced by a newer one")
                yield encode(Column(index, number, attempt.key.encrypt_column(members)))

    # --- The second call -----------------------------------------------------------------------

    def _answer(
        self, header: SumHeader, request_hash: bytes, frames: Iterator[bytes]
    ) -> DebitRecord:
        attempt = self._attempts.get(header.query_id)
        # Compare first: an old header must not cost a newer attempt its key.
        if attempt is None or attempt.attempt != header.attempt:
            raise AttemptLost(
                "no key is open for this attempt: it was answered, replaced or lost in a restart. "
                "Ask for columns again."
            )
        try:
            self._check_header(header, attempt)
            sums = self._decrypt(header, attempt, frames)
        finally:
            self._forget(header.query_id)
        if attempt.authorised.query.kind == "open":
            sums = self._within_range(attempt.authorised, sums)
        return self._custodian.release(attempt.authorised, request_hash, sums)

    @staticmethod
    def _check_header(header: SumHeader, attempt: _Attempt) -> None:
        if header.query_hash != attempt.query_hash:
            raise ProtocolError("the request answers another query than the one it names")
        if not attempt.columns_hash or header.columns_hash != attempt.columns_hash:
            raise ProtocolError("the request was not made from the columns that were sent")
        if header.parts != attempt.authorised.shapes.parts:
            raise ProtocolError(
                f"the query has {attempt.authorised.shapes.parts} answer ciphertexts; "
                f"the request announces {header.parts}"
            )

    @staticmethod
    def _decrypt(
        header: SumHeader, attempt: _Attempt, frames: Iterator[bytes]
    ) -> NDArray[np.int64]:
        """(sums, m) declared coefficients, and nothing else, of every part."""
        shapes = attempt.authorised.shapes
        layout, hashes = shapes.layout, []
        sums = np.empty((shapes.sums, layout.columns), dtype=np.int64)
        for index in range(shapes.parts):
            frame = next(frames, None)
            if frame is None:
                raise ProtocolError(f"the request ends after {index} of {shapes.parts} parts")
            part = decode(frame, SumPart)
            if part.index != index:
                raise ProtocolError(f"expected part {index}, got part {part.index}")
            hashes.append(frame_hash(frame))
            number, position = divmod(index, layout.parts)
            coefficients = attempt.key.decrypt(part.ciphertext)
            sums[number, layout.part_slice(position)] = layout.unpack(coefficients, position)
        if next(frames, None) is not None:
            raise ProtocolError("the request goes on after its last part")
        if frames_hash(hashes, hashed=True) != header.parts_hash:
            raise ProtocolError("the parts are not those that the request's header binds")
        return sums

    @staticmethod
    def _within_range(authorised: Authorised, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Open sums, cut to what honest rows can make them (public n and C only).

        Cut, not refused: whether a refusal comes would depend on the exact sum, and a company could
        ask that for free. Cutting moves no two sums further apart, so the noise still covers it.
        """
        limit = len(authorised.codes[0]) * authorised.query.params.row_bound
        return np.clip(sums, -limit, limit)

    def _sign(self, record: DebitRecord) -> Answer:
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
        signature = self._identity.sign(ANSWER_DOMAIN, unsigned.signed_bytes())
        return Answer(**{**vars(unsigned), "signature": signature})

    def _forget(self, query_id: str) -> None:
        attempt = self._attempts.pop(query_id, None)
        if attempt is not None:
            attempt.destroyed = True
            attempt.key.destroy()
