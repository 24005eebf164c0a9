"""Adding up what several companies send: needs no key (docs/design.md, section 7).

For each query the companies send the same frames in the same places: a header, then ciphertexts.
Headers pass as they are. A ciphertext is taken out of its envelope, whose hash and signature pass
on, and stored until the last company's arrives. The envelope of that one carries the total, and the
hashes of its summands. So the regulator gets one sum, and for every company the signed hash of what
went into it. A total is stored while its query is open, because the envelope that carries it may
have to be sent again.

Under one header a ciphertext never changes: sent again, it has the same bytes. Otherwise the total
could hold one ciphertext, and the regulator could receive the hash of another.

Each company has its own share of the memory, so that none can push out the others' ciphertexts. All
of it is lost if the relay is killed. Then no total can be made, the regulator refuses the request,
and the companies ask again: nothing was answered.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

from isonomy.common.agreements.agreement import PlanPublic
from isonomy.common.base.errors import OversizedMessage, ProtocolError
from isonomy.common.crypto.params import add_answers, check_answer, pack_total, parameter_set
from isonomy.common.privacy.queries import MAX_ANSWERS
from isonomy.common.wire.envelopes import Data, Envelope, dump
from isonomy.common.wire.messages import SumHeader, SumPart, decode_any, encode

MAX_OPEN_QUERIES = 2  # of one company
MAX_STORED_BYTES = 1 << 30  # of all; with two companies each may be a largest query ahead


@dataclass
class _Query:
    """What each company sent for one query; ciphertexts wait here for the other companies'."""

    headers: dict[str, SumHeader] = field(default_factory=dict)
    digests: dict[str, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    parts: dict[str, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    totals: dict[int, bytes] = field(default_factory=dict)

    def void(self, company: str) -> None:
        """Drop what this company sent, and the totals that hold it."""
        self.headers.pop(company, None)
        self.digests.pop(company, None)
        self.parts.pop(company, None)
        self.totals.clear()

    @property
    def one_attempt(self) -> bool:
        return len({header.attempt for header in self.headers.values()}) == 1


class SumCollector:
    """Stores ciphertexts until those of all companies are there, and adds them."""

    def __init__(self, plan: PlanPublic) -> None:
        self._companies = sorted(card.name for card in plan.companies)
        self._params = parameter_set(plan.parameters)
        self._queries: dict[str, _Query] = {}
        self._recent: dict[str, list[str]] = {name: [] for name in self._companies}

    def take(self, envelope: Envelope, raw: bytes) -> bytes:
        """Return the envelope as it goes on to the regulator."""
        body = envelope.body
        if not isinstance(body, Data) or body.chunks != 1:
            raise ProtocolError("a frame of a sum is one whole chunk")
        if envelope.sender not in self._recent:
            raise ProtocolError(f"{envelope.sender} is no company of this plan")
        message = decode_any(bytes(body.payload))
        if isinstance(message, SumHeader):
            self._begin(envelope, message)
            return raw
        if not isinstance(message, SumPart):
            raise ProtocolError("a sum consists of one header and its ciphertexts")
        check_answer(self._params, message.ciphertext)
        return dump(replace(envelope, body=self._add(envelope, body, message)))

    def _begin(self, envelope: Envelope, header: SumHeader) -> None:
        """Take a header. What this company sent for the query under another one is void."""
        company, query_id = envelope.sender, envelope.query_id
        if header.query_id != query_id:
            raise ProtocolError("a sum's header names another query than its envelope")
        if not 1 <= header.parts <= MAX_ANSWERS:
            raise OversizedMessage(f"a sum has 1 to {MAX_ANSWERS} ciphertexts; got {header.parts}")
        query = self._queries.setdefault(query_id, _Query())
        if query.headers.get(company, header) != header:
            query.void(company)
        query.headers[company] = header
        recent = self._recent[company]
        if query_id in recent:
            recent.remove(query_id)
        recent.append(query_id)
        while len(recent) > MAX_OPEN_QUERIES:
            self._forget(company, recent.pop(0))

    def _forget(self, company: str, query_id: str) -> None:
        query = self._queries.get(query_id, _Query())
        query.void(company)
        if not query.headers:
            self._queries.pop(query_id, None)

    def _add(self, envelope: Envelope, body: Data, part: SumPart) -> Data:
        company, index = envelope.sender, part.index
        query = self._queries.get(envelope.query_id)
        passed = replace(body, payload=b"", summed=True)
        if query is None or company not in query.headers:
            return passed  # the header passed before this relay started: no total can be made
        if index >= query.headers[company].parts:
            raise ProtocolError(f"{company} sends more ciphertexts than its header announces")
        if query.digests[company].setdefault(index, body.digest) != body.digest:
            raise ProtocolError(f"{company} replaces a ciphertext under the same header")
        if index not in query.totals:
            query.parts[company][index] = part.ciphertext
            waiting = [query.parts[name] for name in self._companies]
            if not query.one_attempt or any(index not in parts for parts in waiting):
                self._check_share(company)
                return passed
            total = add_answers(self._params, [parts.pop(index) for parts in waiting])
            added = [query.digests[name][index] for name in self._companies]
            query.totals[index] = pack_total(added, encode(SumPart(index, total)))
        return replace(passed, total=query.totals[index])

    def _check_share(self, company: str) -> None:
        """Check that a company's ciphertexts, and its part of the totals, fit into its share."""
        queries = [query for query in self._queries.values() if company in query.headers]
        waiting = sum(len(query.parts[company]) for query in queries)
        totals = sum(len(query.totals) for query in queries)
        stored = (waiting * len(self._companies) + totals) * self._params.answer_bytes
        if stored > MAX_STORED_BYTES:
            raise OversizedMessage(
                f"more ciphertexts of {company} wait for the other companies than fit here"
            )
