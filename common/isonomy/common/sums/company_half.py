"""What a company does for one encrypted query, alone or with others: frames, no transport.

Query →                                what is asked, priced before it leaves
← ColumnsHeader, Column …              multiplied with the rows as they arrive, then dropped
SumHeader, SumPart … →                 blinded, committed to, stored before they leave
← Answer                               signature, price and shape checked

`CompanyHalf` holds what lasts from query to query: the openings, and how far the regulator's ledger
has come. The channels (encrypted.py, pooled/channel.py) decide about masks, totals and openings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import (
    AttemptLost,
    BudgetExceeded,
    ProtocolError,
    ReplayRefused,
    VerificationError,
)
from isonomy.common.crypto.blinding import Seeds, expand_mask
from isonomy.common.crypto.ciphertexts import Seeded
from isonomy.common.crypto.he import SumBuilder
from isonomy.common.keys.identity import verify_signature
from isonomy.common.privacy.queries import Query, Shapes, cost_of, shapes_of
from isonomy.common.sums.channel import Prepared, Receipt, Released, Terms
from isonomy.common.sums.openings import NONCE_BYTES, Opening, OpeningStore, StoredRequest
from isonomy.common.wire.messages import (
    ANSWER_DOMAIN,
    Answer,
    Column,
    ColumnsHeader,
    SumHeader,
    SumPart,
    decode,
    encode,
    frame_hash,
    frames_hash,
)


@dataclass(frozen=True)
class Product:
    """The columns of one attempt, multiplied with the rows."""

    attempt: bytes
    builder: SumBuilder
    columns_hash: bytes


class CompanyHalf:
    """The company's memory of a plan: stored requests, and the last ledger record it heard of."""

    def __init__(self, terms: Terms, regulator_key: bytes, openings: OpeningStore) -> None:
        self.terms, self.openings = terms, openings
        self._regulator_key = regulator_key
        self._last_sequence = -1

    def shapes(self, query: Query) -> Shapes:
        """Blocks and ciphertexts of a query about this company's people."""
        counts = self.terms.group_counts(query.attributes)
        return shapes_of(query, counts, len(self.terms.cohort))

    def exchange(
        self,
        prepared: Prepared,
        attempt: Callable[[Prepared, bytes], StoredRequest],
        send: Callable[[Prepared, StoredRequest], Released],
    ) -> Released:
        """Ask, or ask again: a stored request gets the answer that it had. Returns that answer."""
        query_frame = encode(prepared.query)
        request = self.stored(prepared, query_frame)
        if request is not None:
            try:
                return send(prepared, request)
            except AttemptLost:
                if request.answer is not None:
                    raise VerificationError(
                        f"the regulator answered query {prepared.query.query_id!r} before and now "
                        "has no record of it: its ledger went back. Stop, and compare ledger heads."
                    ) from None
                # No record and no key any more: nothing was answered, so a new attempt is free.
        return send(prepared, attempt(prepared, query_frame))

    def stored(self, prepared: Prepared, query_frame: bytes) -> StoredRequest | None:
        """A request that was stored under this id before a break, if it asked the same."""
        query_id = prepared.query.query_id
        request = self.openings.find(query_id)
        if request is None:
            return None
        same_rows = np.array_equal(request.opening.rows, prepared.rows)
        if not same_rows or request.opening.query_frame != query_frame:
            raise ReplayRefused(
                f"query {query_id!r} asked something else before the restart. A resumed run must "
                "ask the same questions in the same order: fix its seeds, or begin a new plan."
            )
        return request

    def multiply(
        self,
        prepared: Prepared,
        query_frame: bytes,
        columns: Iterable[bytes],
        shapes_for: Callable[[int], Shapes],
    ) -> Product:
        """Multiply the rows with the regulator's columns, block by block as they arrive.

        `shapes_for` gives the shapes for the block size that the regulator announces.
        """
        query, hashes = prepared.query, list[bytes]()
        stream = _hashing(columns, hashes)
        header = decode(next(stream, b""), ColumnsHeader)
        if (header.query_id, header.query_hash) != (query.query_id, frame_hash(query_frame)):
            raise ProtocolError("the columns belong to another query")
        shapes = shapes_for(header.block)
        layout = shapes.layout
        announced = (header.block, header.blocks, header.indicators)
        if announced != (layout.block, layout.blocks, shapes.indicators):
            raise ProtocolError("the regulator cut the people into other blocks than we did")
        builder = SumBuilder(layout, sums=shapes.sums, zero=header.zero)
        for index in range(layout.blocks):
            columns_of_block = block_columns(stream, index, shapes.indicators)
            add_block(builder, prepared.rows, index, columns_of_block)
        if next(stream, None) is not None:
            raise ProtocolError("the columns go on after their last block")
        return Product(header.attempt, builder, frames_hash(hashes, hashed=True))

    def store(
        self,
        prepared: Prepared,
        query_frame: bytes,
        product: Product,
        seeds: Seeds,
        hash_parts: Callable[[list[bytes]], bytes],
    ) -> StoredRequest:
        """Blind the sums, commit to them, and put the request on disk before it leaves."""
        query = prepared.query
        opening = Opening(query_frame, prepared.rows, seeds, os.urandom(NONCE_BYTES))
        parts = part_frames(product.builder, seeds, blind=query.kind == "blind")
        header = SumHeader(
            query_id=query.query_id,
            attempt=product.attempt,
            query_hash=frame_hash(query_frame),
            columns_hash=product.columns_hash,
            commitment=opening.commitment(),
            parts_hash=hash_parts(parts),
            parts=len(parts),
        )
        request = StoredRequest(opening, header, (encode(header), *parts))
        self.openings.save(query.query_id, request)
        return request

    def check(
        self, answer: Answer, query: Query, shapes: Shapes, request_hash: bytes
    ) -> NDArray[np.int64]:
        """(sums, m) values of an answer that is signed, priced and shaped as it must be."""
        signed = answer.signed_bytes()
        verify_signature(self._regulator_key, ANSWER_DOMAIN, signed, answer.signature)
        if (answer.query_id, answer.plan) != (query.query_id, self.terms.plan):
            raise ProtocolError("the answer belongs to another query or plan")
        if answer.request_hash != request_hash:
            raise ProtocolError("the answer was given to another request")
        cost = cost_of(query.shape, self.terms.group_counts(query.attributes), query.params)
        if answer.units != cost.units(query.mechanism, query.noise):
            raise BudgetExceeded("the regulator debited another price than the query has")
        if answer.sequence <= self._last_sequence:
            raise VerificationError(
                "the regulator's ledger went back: this answer's record comes before the last "
                "one. Stop, and compare ledger heads with the regulator."
            )
        if len(answer.values) != shapes.sums * shapes.layout.columns:
            raise ProtocolError("the answer has another shape than the query")
        return answer.values.reshape(shapes.sums, shapes.layout.columns)

    def settle(self, request: StoredRequest, answer: Answer, frame: bytes) -> Receipt:
        """Keep a checked answer; VerificationError if the same request was answered otherwise."""
        query_id = answer.query_id
        if request.answer not in (None, frame):
            raise VerificationError(
                f"the regulator answers query {query_id!r} differently than before. Stop, and show "
                "it its first answer: it is stored and signed."
            )
        if request.answer is None:
            self.openings.acknowledge(query_id, frame)
        self._last_sequence = answer.sequence
        return Receipt(query_id, answer.units, answer.sequence, answer.ledger_head)


def add_block(
    builder: SumBuilder, rows: NDArray[np.int32], index: int, columns: Iterable[Seeded]
) -> None:
    """Multiply one block of people in: (n, m) rows for group sums, (k−1, n, m) for weighted."""
    people = builder.layout.block_slice(index)
    if rows.ndim == 2:
        builder.add_block(rows[people], columns)
    else:
        builder.add_weighted_block([differences[people] for differences in rows], columns)


def block_columns(frames: Iterator[bytes], block: int, indicators: int) -> Iterator[Seeded]:
    """The columns of one block, one at a time as they arrive, in order."""
    for indicator in range(indicators):
        column = decode(next(frames, b""), Column)
        if (column.block, column.indicator) != (block, indicator):
            raise ProtocolError(
                f"expected column {indicator} of block {block}, "
                f"got column {column.indicator} of block {column.block}"
            )
        yield column.column


def part_frames(builder: SumBuilder, seeds: Seeds, *, blind: bool) -> list[bytes]:
    """The blinded answer ciphertexts as frames."""
    parts = builder.finish(seeds, blind=blind)
    return [encode(SumPart(index, part)) for index, part in enumerate(parts)]


def mask_values(shapes: Shapes, seeds: Seeds) -> NDArray[np.int64]:
    """(sums, m) masks at the declared coefficients."""
    layout = shapes.layout
    masks = np.empty((shapes.sums, layout.columns), dtype=np.int64)
    for index in range(shapes.parts):
        number, part = divmod(index, layout.parts)
        mask = expand_mask(layout.params, seeds.mask, index)
        masks[number, layout.part_slice(part)] = mask[layout.declared(part)].view(np.int64)
    return masks


def _hashing(frames: Iterable[bytes], hashes: list[bytes]) -> Iterator[bytes]:
    for frame in frames:
        hashes.append(frame_hash(frame))
        yield frame
