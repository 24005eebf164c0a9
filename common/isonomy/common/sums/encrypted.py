"""The encrypted channel of one company: a regulator who is reached by frames only.

    Query →  ← columns     SumHeader, SumPart … →     ← Answer
                           ← OpeningDemand, sometimes: signature and auditor checked
                           OpeningHeader, OpeningPart … →    sealed to the auditor

(company_half.py has the steps that several companies share.)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from isonomy.common.base.errors import ConfigError, ProtocolError
from isonomy.common.crypto.blinding import SEED_BYTES, Seeds
from isonomy.common.keys.identity import Identity, verify_signature
from isonomy.common.privacy.queries import Query
from isonomy.common.sums.channel import Capabilities, Prepared, Released, Terms
from isonomy.common.sums.company_half import CompanyHalf, mask_values
from isonomy.common.sums.openings import MemoryOpenings, OpeningStore, StoredRequest
from isonomy.common.sums.sealed_opening import DEMAND_DOMAIN, opening_frames, seal_opening
from isonomy.common.wire.messages import (
    Answer,
    OpeningDemand,
    Refusal,
    decode_any,
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
        raise ProtocolError("expected an answer or a demand")
    return Reply(frame, message)


class RegulatorPort(Protocol):
    """The regulator as the company reaches it: in this process, or through a session."""

    def columns(self, query_id: str, query_frame: bytes) -> Iterable[bytes]: ...
    def answer(self, query_id: str, frames: Iterable[bytes]) -> Reply: ...
    def open(self, query_id: str, frames: Iterable[bytes]) -> Reply: ...
    def multipliers(self, query_id: str) -> tuple[float, ...] | None: ...


class EncryptedChannel:
    """Blind group sums through encryption, for a company that is alone in its plan."""

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
    ) -> None:
        self.terms = terms
        self.capabilities = Capabilities("encrypted", record_private, individual)
        self._port, self._regulator_key = port, regulator_key
        self._auditor, self._identity = auditor, identity  # who may open, and who signs it
        self._inspected = inspection_millionths > 0  # did our owner agree to demands at all?
        if openings is None:
            openings = MemoryOpenings(columns=bool(auditor))
        if auditor and not openings.keeps_columns:
            raise ConfigError(
                "the plan names an auditor, and a demanded query can be opened only with its "
                "columns: open the store with columns=True"
            )
        self.half = CompanyHalf(terms, regulator_key, openings)

    def exchange(self, prepared: Prepared) -> Released:
        """Ask, or ask again: a stored request gets the answer that it had."""
        return self.half.exchange(prepared, self._attempt, self._send)

    def _attempt(self, prepared: Prepared, query_frame: bytes) -> StoredRequest:
        query = prepared.query
        columns = self._port.columns(query.query_id, query_frame)
        stored_columns = self.half.openings.keep_columns(query.query_id, columns)
        shapes = self.half.shapes(query)
        product = self.half.multiply(prepared, query_frame, stored_columns, lambda block: shapes)
        seeds = Seeds.derive(os.urandom(SEED_BYTES))
        return self.half.store(prepared, query_frame, product, seeds, frames_hash)

    def _send(self, prepared: Prepared, request: StoredRequest) -> Released:
        query = prepared.query
        reply = self._port.answer(query.query_id, iter(request.frames))
        if isinstance(reply.message, OpeningDemand):
            opening = self._opening(query, request, reply.message)
            reply = self._port.open(query.query_id, opening)
        answer = reply.message
        if not isinstance(answer, Answer):
            raise ProtocolError("the regulator demands an opening that it has already had")
        shapes = self.half.shapes(query)
        values = self.half.check(answer, query, shapes, frame_hash(request.frames[0]))
        if query.kind == "blind":
            values = values - mask_values(shapes, request.opening.seeds)
        receipt = self.half.settle(request, answer, reply.frame)
        return Released(values, prepared.public_total, receipt)

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
        request_name = (query.query_id, self.terms.plan, frame_hash(request.frames[0]))
        if (demand.query_id, demand.plan, demand.request_hash) != request_name:
            raise ProtocolError("the regulator demands the opening of another request than this")
        if not self._auditor or demand.auditor != self._auditor or self._identity is None:
            raise ProtocolError("the regulator demands an opening for a key that the plan lacks")
        if not self._inspected:
            raise ProtocolError("the regulator demands an opening, and the plan's rate is 0")
        columns, plan = self.half.openings.columns(query.query_id), self.terms.plan
        sealed = seal_opening(self._auditor, plan, query.query_id, request, columns, self._identity)
        return opening_frames(sealed)

    def confirm_multipliers(self, query_id: str, values: tuple[float, ...]) -> None:
        """Both sides compute λ. The next query would be refused if they differ; say it now."""
        expected = self._port.multipliers(query_id)
        if expected is not None and expected != values:
            raise ProtocolError("the regulator holds other multipliers λ than follow from answers")

    def close(self, error: BaseException | None = None) -> None:
        """Nothing is open here: a session has its own end (federation.joining)."""
