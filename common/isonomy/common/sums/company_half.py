"""The company's half of the encrypted exchange: a `GroupOracle` over frames, no transport.

Query →                                what is asked, priced before it leaves
← ColumnsHeader, Column …              multiplied with the rows as they arrive, then dropped
SumHeader, SumPart … →                 blinded, committed to, stored before they leave
← OpeningDemand, sometimes             signature and auditor checked
OpeningHeader, OpeningPart … →         what the ciphertexts were made of, sealed to the auditor
← Answer                               signature, price and shape checked; mask taken off
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import (
    AttemptLost,
    BudgetExceeded,
    ConfigError,
    ProtocolError,
    ReplayRefused,
    VerificationError,
)
from isonomy.common.crypto.blinding import SEED_BYTES, Seeds, expand_mask
from isonomy.common.crypto.ciphertexts import Seeded
from isonomy.common.crypto.he import SumBuilder
from isonomy.common.keys.identity import Identity, verify_signature
from isonomy.common.people.cohort import Cohort, group_labels
from isonomy.common.privacy.queries import Query, Shapes, cost_of, shapes_of
from isonomy.common.sums.openings import (
    NONCE_BYTES,
    MemoryOpenings,
    Opening,
    OpeningStore,
    StoredRequest,
)
from isonomy.common.sums.oracle import Asked, GroupOracle, Receipt
from isonomy.common.sums.regulator_half import ANSWER_DOMAIN
from isonomy.common.sums.sealed_opening import DEMAND_DOMAIN, opening_frames, seal_opening
from isonomy.common.wire.messages import (
    Answer,
    Column,
    ColumnsHeader,
    OpeningDemand,
    SumHeader,
    SumPart,
    decode,
    decode_any,
    encode,
    frame_hash,
    frames_hash,
)


class RegulatorPort(Protocol):
    """The regulator as the company reaches it: an object in tests, a stream in the federation."""

    def columns(self, query_frame: bytes) -> Iterable[bytes]: ...
    def answer(self, frames: Iterable[bytes]) -> bytes: ...
    def open(self, frames: Iterable[bytes]) -> bytes: ...


class EncryptedOracle(GroupOracle):
    """Blind group sums from a regulator who is reached by frames only."""

    def __init__(
        self,
        port: RegulatorPort,
        cohort: Cohort,
        groups: Mapping[str, Sequence[str]],
        *,
        plan: bytes,
        cap_units: int,
        delta: float,
        regulator_key: bytes,
        openings: OpeningStore | None = None,
        auditor: bytes = b"",
        inspection_millionths: int = 0,
        identity: Identity | None = None,
    ) -> None:
        super().__init__(cohort, groups, plan=plan, cap_units=cap_units, delta=delta)
        self._port, self._regulator_key = port, regulator_key
        self._auditor, self._identity = auditor, identity  # whom we open to, and who signs it
        self._inspected = inspection_millionths > 0  # did our owner agree to demands at all?
        if openings is None:
            openings = MemoryOpenings(columns=bool(auditor))
        if auditor and not openings.keeps_columns:
            raise ConfigError(
                "the plan names an auditor, and a demanded query can be opened only with its "
                "columns: open the store with columns=True"
            )
        self._openings: OpeningStore = openings
        self._last_sequence = -1

    def _exchange(self, asked: Asked) -> tuple[NDArray[np.int64], Receipt]:
        query = asked.query
        stored = self._stored(asked)
        if stored is not None:
            try:
                return self._send(query, stored)
            except AttemptLost:
                if stored.answer is not None:
                    raise VerificationError(
                        f"the regulator answered query {query.query_id!r} before and now has no "
                        "record of it: its ledger went back. Stop, and compare ledger heads."
                    ) from None
                # No record and no key any more: nothing was answered, so a new attempt is free.
        return self._send(query, self._attempt(asked))

    def _stored(self, asked: Asked) -> StoredRequest | None:
        """A request that was stored under this id before a break, if it asked the same."""
        stored = self._openings.find(asked.query.query_id)
        if stored is None:
            return None
        same_rows = np.array_equal(stored.opening.rows, asked.rows)
        if not same_rows or stored.opening.query_frame != encode(asked.query):
            raise ReplayRefused(
                f"query {asked.query.query_id!r} asked something else before the restart. A "
                "resumed run must ask the same questions in the same order: fix its seeds, or "
                "begin a new plan."
            )
        return stored

    # --- A new attempt -------------------------------------------------------------------------

    def _attempt(self, asked: Asked) -> StoredRequest:
        query_frame = encode(asked.query)
        attempt, builder, columns_hash = self._multiply(asked, query_frame)
        seeds = Seeds.derive(os.urandom(SEED_BYTES))
        opening = Opening(query_frame, asked.rows, seeds, os.urandom(NONCE_BYTES))
        parts = part_frames(builder, seeds, blind=asked.query.kind == "blind")
        header = SumHeader(
            query_id=asked.query.query_id,
            attempt=attempt,
            query_hash=frame_hash(query_frame),
            columns_hash=columns_hash,
            commitment=opening.commitment(),
            parts_hash=frames_hash(parts),
            parts=len(parts),
        )
        request = StoredRequest(opening, (encode(header), *parts))
        self._openings.save(asked.query.query_id, request)
        return request

    def _multiply(self, asked: Asked, query_frame: bytes) -> tuple[bytes, SumBuilder, bytes]:
        shapes = self._shapes(asked.query)
        hashes: list[bytes] = []
        columns = self._openings.keep_columns(asked.query.query_id, self._port.columns(query_frame))
        stream = _hashing(columns, hashes)
        header = decode(next(stream, b""), ColumnsHeader)
        if (header.query_id, header.query_hash) != (asked.query.query_id, frame_hash(query_frame)):
            raise ProtocolError("the columns belong to another query")
        found = (header.block, header.blocks, header.indicators)
        if found != (shapes.layout.block, shapes.layout.blocks, shapes.indicators):
            raise ProtocolError("the regulator cut the people into other blocks than we did")
        builder = SumBuilder(shapes.layout, sums=shapes.sums, zero=header.zero)
        for index in range(shapes.layout.blocks):
            add_block(builder, asked.rows, index, block_columns(stream, index, shapes.indicators))
        if next(stream, None) is not None:
            raise ProtocolError("the columns go on after their last block")
        return header.attempt, builder, frames_hash(hashes, hashed=True)

    # --- Sending and reading the answer --------------------------------------------------------

    def _send(self, query: Query, request: StoredRequest) -> tuple[NDArray[np.int64], Receipt]:
        frame = self._port.answer(iter(request.frames))
        demand = decode_any(frame)
        if isinstance(demand, OpeningDemand):
            frame = self._port.open(self._opening(query, request, demand))
        answer = decode(frame, Answer)
        shapes = self._shapes(query)
        values = self._check(answer, query, shapes, frame_hash(request.frames[0]))
        if query.kind == "blind":
            values = values - mask_values(shapes, request.opening.seeds)
        if request.answer not in (None, frame):
            raise VerificationError(
                f"the regulator answers query {query.query_id!r} differently than before. Stop, "
                "and show it its first answer: it is stored and signed."
            )
        if request.answer is None:
            self._openings.acknowledge(query.query_id, frame)
        self._last_sequence = answer.sequence
        return values, Receipt(query.query_id, answer.units, answer.sequence, answer.ledger_head)

    def _opening(
        self, query: Query, request: StoredRequest, demand: OpeningDemand
    ) -> Iterator[bytes]:
        """Our rows and seeds, for the auditor whom our owner approved, and nobody else.

        Where the plan's rate is 0 nothing is opened on demand: the owner reads that no query is
        inspected while it runs, and opens by file what they want to show.
        """
        verify_signature(
            self._regulator_key, DEMAND_DOMAIN, demand.signed_bytes(), demand.signature
        )
        asked = (query.query_id, self.plan, frame_hash(request.frames[0]))
        if (demand.query_id, demand.plan, demand.request_hash) != asked:
            raise ProtocolError("the regulator demands the opening of another request than this")
        if not self._auditor or demand.auditor != self._auditor or self._identity is None:
            raise ProtocolError("the regulator demands an opening for a key that the plan lacks")
        if not self._inspected:
            raise ProtocolError("the regulator demands an opening, and the plan's rate is 0")
        columns, place = self._openings.columns(query.query_id), (self.plan, query.query_id)
        return opening_frames(seal_opening(self._auditor, *place, request, columns, self._identity))

    def _check(
        self, answer: Answer, query: Query, shapes: Shapes, request_hash: bytes
    ) -> NDArray[np.int64]:
        verify_signature(
            self._regulator_key, ANSWER_DOMAIN, answer.signed_bytes(), answer.signature
        )
        if (answer.query_id, answer.plan) != (query.query_id, self.plan):
            raise ProtocolError("the answer belongs to another query or plan")
        if answer.request_hash != request_hash:
            raise ProtocolError("the answer was given to another request")
        cost = cost_of(query.shape, self._group_counts(query), query.params)
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

    def _group_counts(self, query: Query) -> tuple[int, ...]:
        return tuple(len(group_labels(name, self.groups)) for name in query.attributes)

    def _shapes(self, query: Query) -> Shapes:
        return shapes_of(query, self._group_counts(query), len(self.cohort))


def add_block(
    builder: SumBuilder, rows: NDArray[np.int32], index: int, columns: Iterable[Seeded]
) -> None:
    """Multiply one block of people in: (n, m) rows for group sums, (k−1, n, m) for weighted."""
    people = builder.layout.block_slice(index)
    if rows.ndim == 2:
        builder.add_block(rows[people], columns)
    else:
        builder.add_weighted_block([own[people] for own in rows], columns)


def block_columns(frames: Iterator[bytes], block: int, indicators: int) -> Iterator[Seeded]:
    """The columns of one block, one at a time as they arrive, in order."""
    for indicator in range(indicators):
        found = decode(next(frames, b""), Column)
        if (found.block, found.indicator) != (block, indicator):
            raise ProtocolError(
                f"expected column {indicator} of block {block}, "
                f"got column {found.indicator} of block {found.block}"
            )
        yield found.column


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
