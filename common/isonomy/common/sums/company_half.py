"""The company's half of the encrypted exchange: frames, no transport.

Query →                                what is asked, priced before it leaves
← ColumnsHeader, Column …              multiplied with the rows as they arrive, then dropped
SumHeader, SumPart … →                 blinded, committed to, stored before they leave
← OpeningDemand                        sometimes: signature and auditor checked
OpeningHeader, OpeningPart … →         sealed to the auditor
← Answer                               signature, price and shape checked

`CompanyHalf` has the steps that a company takes alone or with others, and what lasts from query to
query: the openings, and how far the regulator's ledger has come. `EncryptedChannel` is the channel
of a company that is alone in its plan; that of several companies is in pooled/channel.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal, Protocol

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
from isonomy.common.crypto.he import SumBuilder
from isonomy.common.crypto.params import Seeded
from isonomy.common.keys.identity import Identity, verify_signature
from isonomy.common.privacy.queries import Query, Shapes, shapes_of
from isonomy.common.sums.channel import Capabilities, Carrier
from isonomy.common.sums.openings import (
    NONCE_BYTES,
    MemoryOpenings,
    Opening,
    OpeningStore,
    StoredRequest,
)
from isonomy.common.sums.question import Prepared, Receipt, Released, Terms
from isonomy.common.sums.sealed_opening import (
    DEMAND_DOMAIN,
    Shown,
    opening_frames,
    seal_opening,
    show_columns,
)
from isonomy.common.sums.spread_products import SpreadBuilder, sum_builder
from isonomy.common.wire.messages import (
    ANSWER_DOMAIN,
    Answer,
    Column,
    ColumnsHeader,
    OpeningDemand,
    Refusal,
    SumHeader,
    SumPart,
    decode,
    decode_any,
    encode,
    frame_hash,
    frames_hash,
)


@dataclass(frozen=True)
class Reply:
    """An answer or a demand, parsed once, with the bytes that are kept of it."""

    frame: bytes
    message: Answer | OpeningDemand


def read_reply(frame: bytes) -> Reply:
    """Parse what came; a refusal is raised as the error that it names."""
    message = decode_any(frame)
    if isinstance(message, Refusal):
        raise message.error()
    if not isinstance(message, Answer | OpeningDemand):
        raise ProtocolError(
            "expected an answer or a demand from the regulator, got another message"
        )
    return Reply(frame, message)


class RegulatorPort(Protocol):
    """The regulator as the company reaches it: in this process, or through a session."""

    def columns(self, query_id: str, query_frame: bytes) -> Iterable[bytes]: ...
    def answer(self, query_id: str, frames: Iterable[bytes]) -> Reply: ...
    def open(self, query_id: str, frames: Iterable[bytes]) -> Reply: ...
    def multipliers(self, query_id: str) -> tuple[float, ...] | None: ...


@dataclass(frozen=True)
class Product:
    """The columns of one attempt, multiplied with the rows."""

    attempt: bytes
    builder: SumBuilder | SpreadBuilder
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
        return shapes_of(query, counts, self.terms.people)

    def exchange(
        self,
        prepared: Prepared,
        attempt: Callable[[Prepared, bytes], StoredRequest],
        send: Callable[[Prepared, StoredRequest], Released],
    ) -> Released:
        """Ask, or ask again: a stored request gets the answer that it had. Returns that answer."""
        query_id, query_frame = prepared.query.query_id, encode(prepared.query)
        request = self.openings.find(query_id)
        if request is None:
            return send(prepared, attempt(prepared, query_frame))
        opening = replace(request.opening, query_frame=query_frame, rows=prepared.rows)
        if opening.commitment() != request.header.commitment:
            raise ReplayRefused(
                f"query {query_id!r} asked something else before the restart. A resumed run must "
                "ask the same questions in the same order: fix its seeds, or begin a new plan."
            )
        request = replace(request, opening=opening)  # rows are not kept without an auditor
        try:
            return send(prepared, request)
        except AttemptLost:
            if request.answer is not None:
                raise VerificationError(
                    f"the regulator answered query {query_id!r} before and now has no record of "
                    "it: its ledger went back. Stop, and compare ledger heads."
                ) from None
            # No record and no key any more: nothing was answered, so a new attempt is free.
            return send(prepared, attempt(prepared, query_frame))

    def multiply(
        self,
        prepared: Prepared,
        query_frame: bytes,
        columns: Iterable[bytes],
        shapes_for: Callable[[int], Shapes] | None = None,
    ) -> Product:
        """Multiply the rows with the regulator's columns, block by block as they arrive.

        `shapes_for` gives the shapes for the block size that the regulator announces; without it,
        they are the query's own.
        """
        query, hashes = prepared.query, list[bytes]()
        stream = hashing(columns, hashes)
        header = decode(next(stream, b""), ColumnsHeader)
        if (header.query_id, header.query_hash) != (query.query_id, frame_hash(query_frame)):
            raise ProtocolError("the columns belong to another query")
        shapes = prepared.shapes if shapes_for is None else shapes_for(header.block)
        layout = shapes.layout
        announced = (header.block, header.blocks, header.indicators)
        if announced != (layout.block, layout.blocks, shapes.indicators):
            raise ProtocolError("the regulator cut the people into other blocks than we did")
        builder = sum_builder(shapes, header.zero)
        for index in range(layout.blocks):
            columns_of_block = block_columns(stream, index, shapes.indicators)
            builder.add_block(index, prepared.rows, columns_of_block)
        if next(stream, None) is not None:
            raise ProtocolError("more columns came after the last block")
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

    def accept(
        self,
        reply: Reply,
        request: StoredRequest,
        query: Query,
        shapes: Shapes,
        request_hash: bytes,
    ) -> tuple[NDArray[np.int64], Receipt]:
        """Check an answer, and keep it: its signature, price, shape, and that it stays the same.

        Returns its (sums, m) values, and the receipt.
        """
        answer, query_id = reply.message, query.query_id
        if not isinstance(answer, Answer):
            raise ProtocolError("the regulator demands an opening, and none is due")
        signed = answer.signed_bytes()
        verify_signature(self._regulator_key, ANSWER_DOMAIN, signed, answer.signature)
        if (answer.query_id, answer.plan) != (query_id, self.terms.plan):
            raise ProtocolError("the answer belongs to another query or plan")
        if answer.request_hash != request_hash:
            raise ProtocolError("the answer was given to another request")
        if answer.units != shapes.units:
            raise BudgetExceeded("the regulator debited another price than this query costs")
        if len(answer.values) != shapes.sums * shapes.layout.columns:
            raise ProtocolError("the answer has another shape than the query")
        if request.answer not in (None, reply.frame):
            raise VerificationError(
                f"the regulator answers query {query_id!r} differently than before. Stop, and show "
                "it its first answer: it is stored and signed."
            )
        if request.answer is None:
            # A stored answer may come in any order: its bytes are known. A new one comes last.
            if answer.sequence <= self._last_sequence:
                raise VerificationError(
                    "the regulator's ledger went back: this answer's record comes before the last "
                    "one. Stop, and compare ledger heads with the regulator."
                )
            self.openings.acknowledge(query_id, request, reply.frame)
        self._last_sequence = max(self._last_sequence, answer.sequence)
        receipt = Receipt(query_id, answer.units, answer.sequence, answer.ledger_head)
        return answer.values.reshape(shapes.sums, shapes.layout.columns), receipt


class CompanyCarrier(Protocol):
    """How rows and indicators meet: ColumnProducts here, or pads.company.PadRows."""

    @property
    def name(self) -> Carrier: ...

    def attempt(self, prepared: Prepared, query_frame: bytes) -> StoredRequest:
        """Make a request and store it before anything of it leaves."""

    def frames(self, prepared: Prepared, request: StoredRequest) -> Iterable[bytes]:
        """What travels of a stored request: the same bytes whenever it is sent."""

    def unmask(
        self, prepared: Prepared, request: StoredRequest, values: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """(sums, m) released integers of a checked answer."""

    def show(self, query: Query, request: StoredRequest, demand: OpeningDemand) -> Shown:
        """What the auditor gets of a request whose opening was demanded."""

    def renew(self) -> bool:
        """After a lost attempt: whether a new one can now succeed."""

    def begin(self) -> None:
        """Begin beside the caller what every question needs; `wait` waits for its end."""

    def wait(self) -> None: ...


class ColumnProducts:
    """The homomorphic carrier: the regulator's encrypted columns, multiplied with the rows."""

    name: Literal["encrypted"] = "encrypted"

    def __init__(self, port: RegulatorPort, half: CompanyHalf) -> None:
        self._port, self._half = port, half

    def attempt(self, prepared: Prepared, query_frame: bytes) -> StoredRequest:
        query, half = prepared.query, self._half
        columns = self._port.columns(query.query_id, query_frame)
        if half.openings.inspected:
            columns = half.openings.keep_columns(query.query_id, columns)
        product = half.multiply(prepared, query_frame, columns)
        seeds = Seeds(os.urandom(SEED_BYTES), os.urandom(SEED_BYTES))
        return half.store(prepared, query_frame, product, seeds, frames_hash)

    def frames(self, prepared: Prepared, request: StoredRequest) -> Iterable[bytes]:
        return request.frames

    def unmask(
        self, prepared: Prepared, request: StoredRequest, values: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        if prepared.query.kind == "open":
            return values
        return values - mask_values(prepared.shapes, request.opening.seeds)

    def show(self, query: Query, request: StoredRequest, demand: OpeningDemand) -> Shown:
        if demand.seed:
            raise ProtocolError("the regulator demands rows, and this plan opens whole requests")
        columns = self._half.openings.columns(query.query_id)
        return show_columns(query.query_id, request, columns)

    def renew(self) -> bool:
        return False  # the key of an attempt is gone for good; the caller decides about another

    def begin(self) -> None:
        """Columns belong to one question each."""

    def wait(self) -> None:
        """Nothing was begun."""


class EncryptedChannel:
    """Blind group sums through encryption, for a company that is alone in its plan.

    `carrier` makes the carrier from port and half; without it, homomorphic encryption carries.
    """

    def __init__(
        self,
        port: RegulatorPort,
        terms: Terms,
        *,
        regulator_key: bytes,
        openings: OpeningStore | None = None,
        auditor: bytes = b"",
        inspection_millionths: int = 0,
        identity: Identity | None = None,
        record_private: bool = False,
        individual: bool = False,
        carrier: Callable[[RegulatorPort, CompanyHalf], CompanyCarrier] = ColumnProducts,
    ) -> None:
        self.terms = terms
        self._port, self._regulator_key = port, regulator_key
        self._auditor, self._identity = auditor, identity  # who may open, and who signs it
        self._inspected = inspection_millionths > 0  # did our owner agree to demands at all?
        if openings is None:
            openings = MemoryOpenings(inspected=bool(auditor))
        if auditor and not openings.inspected:
            raise ConfigError(
                "the plan names an auditor, and a demanded query can be opened only with its rows "
                "and columns: open the store with inspected=True"
            )
        self.half = CompanyHalf(terms, regulator_key, openings)
        self._carrier = carrier(port, self.half)
        self.capabilities = Capabilities(self._carrier.name, record_private, individual)

    def begin(self) -> None:
        """Begin what every question needs. The caller may ask at once, or do something else."""
        self._carrier.begin()

    def exchange(self, prepared: Prepared) -> Released:
        """Ask, or ask again: a stored request gets the answer that it had."""
        self._carrier.wait()
        try:
            return self.half.exchange(prepared, self._carrier.attempt, self._send)
        except AttemptLost:
            if not self._carrier.renew():
                raise
            return self.half.exchange(prepared, self._carrier.attempt, self._send)

    def _send(self, prepared: Prepared, request: StoredRequest) -> Released:
        query = prepared.query
        frames = self._carrier.frames(prepared, request)
        reply = self._port.answer(query.query_id, iter(frames))
        if isinstance(reply.message, OpeningDemand):
            opening = self.opening(query, request, reply.message)
            reply = self._port.open(query.query_id, opening)
        request_hash = frame_hash(request.frames[0])
        values, receipt = self.half.accept(reply, request, query, prepared.shapes, request_hash)
        values = self._carrier.unmask(prepared, request, values)
        return Released(values, prepared.public_total, receipt)

    def opening(
        self,
        query: Query,
        request: StoredRequest,
        demand: OpeningDemand,
        pool: tuple[bytes, bytes] | None = None,
    ) -> Iterator[bytes]:
        """Our rows and seeds, for the auditor whom our owner approved, and nobody else.

        `pool`: of a query of several companies, the hash of their joint request, and what an
        opening of our part shows besides (pool_masks.PoolPart).
        Where the plan's rate is 0 nothing is opened on demand: the owner reads that no query is
        inspected while it runs, and opens by file what they want to show.
        """
        verify_signature(
            self._regulator_key, DEMAND_DOMAIN, demand.signed_bytes(), demand.signature
        )
        request_hash = pool[0] if pool else frame_hash(request.frames[0])
        request_name = (query.query_id, self.terms.plan, request_hash)
        if (demand.query_id, demand.plan, demand.request_hash) != request_name:
            raise ProtocolError(
                "the regulator demands the opening of another request than this one"
            )
        if not self._auditor or demand.auditor != self._auditor or self._identity is None:
            raise ProtocolError(
                "the regulator demands an opening for a key that is not in the plan"
            )
        if not self._inspected:
            raise ProtocolError("the regulator demands an opening, and the plan's rate is 0")
        shown, place = self._carrier.show(query, request, demand), (self.terms.plan, query.query_id)
        if pool is not None:
            shown = replace(shown, pool=pool[1])
        sealed = seal_opening(
            self._auditor, *place, shown, self._identity, encode(demand), request_hash
        )
        return opening_frames(sealed)

    def confirm_multipliers(self, query_id: str, values: tuple[float, ...]) -> None:
        """Both sides compute λ. The next query would be refused if they differ; say it now."""
        expected = self._port.multipliers(query_id)
        if expected is not None and expected != values:
            raise ProtocolError(
                "the regulator's multipliers λ are not those that its answers imply"
            )

    def close(self, error: BaseException | None = None) -> None:
        """The last answer is on disk; a session has its own end (federation.joining)."""
        self.half.openings.settle()


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


def part_frames(builder: SumBuilder | SpreadBuilder, seeds: Seeds, *, blind: bool) -> list[bytes]:
    """The blinded answer ciphertexts as frames."""
    return list(map(encode, map(SumPart, count(), builder.finish(seeds, blind=blind))))


def mask_values(shapes: Shapes, seeds: Seeds) -> NDArray[np.int64]:
    """(sums, m) masks at the declared coefficients."""
    layout = shapes.layout
    masks = np.empty((shapes.sums, layout.columns), dtype=np.int64)
    for index in range(shapes.parts):
        number, part = divmod(index, layout.parts)
        columns, declared = layout.declared(part)
        mask = expand_mask(layout.params, seeds.mask, index)
        masks[number, columns] = mask[declared].view(np.int64)
    return masks


def hashing(frames: Iterable[bytes], hashes: list[bytes]) -> Iterator[bytes]:
    """The frames as they come; `hashes` gets one more with each."""
    for frame in frames:
        hashes.append(frame_hash(frame))
        yield frame
