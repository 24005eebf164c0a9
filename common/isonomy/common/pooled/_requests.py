"""What one company sends for a joint query, as the regulator receives it through the relay.

Totals, a header, and of each ciphertext the digest that the company signed: the relay took the
ciphertexts out, and put their sum beside the last company's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from isonomy.common.base.errors import AttemptLost, ProtocolError
from isonomy.common.crypto.params import split_total
from isonomy.common.session.sealed_links import Parcel
from isonomy.common.sums.pool_masks import PooledTotals
from isonomy.common.wire.envelopes import Purpose
from isonomy.common.wire.messages import (
    SumHeader,
    SumPart,
    decode,
)

Total = tuple[tuple[bytes, ...], bytes]  # digests of what the relay added, and the sum


@dataclass(frozen=True)
class Reply:
    """Frames for one company's exchange; `frames` may be made as they are sent."""

    company: str
    exchange: int
    purpose: Purpose
    query_id: str
    frames: Iterable[bytes]
    refusal: str = ""  # the reason, if this is one


@dataclass
class PooledRequest:
    """Totals, header, digests, and what the relay added up."""

    exchange: int
    totals: PooledTotals
    totals_frame: bytes
    header: SumHeader
    header_frame: bytes
    digests: tuple[bytes, ...]  # of its ciphertexts, in order, as the company signed them
    summed: dict[int, Total]  # the relay's totals that came with this company's envelopes


def read_request(frames: list[Parcel], companies: int) -> PooledRequest:
    """(3) as it came: totals, header, and of each part its digest, perhaps the relay's total."""
    purposes = [frame.purpose for frame in frames]
    if len(frames) < 2 or purposes != ["joint", *["sum"] * (len(frames) - 1)] or frames[1].summed:
        raise ProtocolError("a joint request is totals, a header and ciphertexts")
    totals, header = PooledTotals.parse(frames[0].payload), decode(frames[1].payload, SumHeader)
    if (totals.query_id, totals.attempt) != (header.query_id, header.attempt):
        raise ProtocolError("the totals and the header belong to different queries")
    if any(frame.query_id != header.query_id for frame in frames):
        raise ProtocolError("a request has frames of different queries")
    summed = {}
    for frame in frames[2:]:
        if not frame.summed:
            raise ProtocolError("the relay passed a ciphertext on without adding it up")
        if frame.total:
            added, total = split_total(frame.total, companies)
            part = decode(total, SumPart)
            summed[part.index] = (added, part.ciphertext)
    digests = tuple(frame.digest for frame in frames[2:])
    return PooledRequest(
        exchange=frames[0].exchange,
        totals=totals,
        totals_frame=frames[0].payload,
        header=header,
        header_frame=frames[1].payload,
        digests=digests,
        summed=summed,
    )


def relay_totals(requests: dict[str, PooledRequest], parts: int) -> list[bytes]:
    """The relay's totals in order; each came with at least one company's request.

    Each is of the very ciphertexts whose digests the companies signed: the relay says so.
    """
    ordered = [requests[name] for name in sorted(requests)]
    totals = []
    for index in range(parts):
        totals_of_part = {r.summed[index] for r in ordered if index in r.summed}
        if not totals_of_part:
            raise AttemptLost("the relay lost the ciphertexts it held; ask for columns again")
        if len(totals_of_part) > 1:
            raise AttemptLost("the relay added up twice, differently; ask for columns again")
        added, total = totals_of_part.pop()
        if added != tuple(request.digests[index] for request in ordered):
            raise AttemptLost("the relay added other ciphertexts than were signed; ask again")
        totals.append(total)
    return totals
