"""Adding up what several companies send: the relay's only arithmetic, with no key (DESIGN.md §1).

For each query the companies send the same frames in the same places: a header, then ciphertexts.
Headers pass as they are. A ciphertext is taken out of its envelope, whose hash and signature pass
on, and kept until the last company's arrives; that one carries the total. So the regulator gets one
sum, and for every company the signed hash of what went into it. A total is kept while its query is
open, because the envelope that carries it may have to be sent again.

What is kept is lost if the relay is killed. Then a total cannot be made, the regulator refuses the
request, and the companies ask again: nothing had been answered.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace

from isonomy.common.ciphertexts import add_answers
from isonomy.common.envelopes import Data, Envelope, dump
from isonomy.common.errors import ProtocolError
from isonomy.common.messages import SumHeader, SumPart, decode_any, encode
from isonomy.common.params import parameter_set
from isonomy.common.plan import PlanPublic
from isonomy.common.session_errors import OversizedMessage

MAX_OPEN_QUERIES = 2
MAX_KEPT_BYTES = 1 << 29


@dataclass
class _Query:
    """Ciphertexts of one query that wait for the other companies', by place and company."""

    attempt: dict[str, bytes] = field(default_factory=dict)
    parts: dict[int, dict[str, bytes]] = field(default_factory=dict)
    totals: dict[int, bytes] = field(default_factory=dict)

    def size(self) -> int:
        waiting = sum(len(part) for place in self.parts.values() for part in place.values())
        return waiting + sum(map(len, self.totals.values()))


class SumCollector:
    """Keeps ciphertexts until all companies' are there, and adds them."""

    def __init__(self, plan: PlanPublic) -> None:
        self._companies = frozenset(card.name for card in plan.companies)
        self._params = parameter_set(plan.parameters)
        self._queries: OrderedDict[str, _Query] = OrderedDict()

    def take(self, envelope: Envelope, raw: bytes) -> bytes:
        """The envelope as it goes on to the regulator."""
        body = envelope.body
        if not isinstance(body, Data) or body.chunks != 1:
            raise ProtocolError("a frame of a sum is one whole chunk")
        message = decode_any(body.payload)
        if isinstance(message, SumHeader):
            self._begin(envelope, message)
            return raw
        if not isinstance(message, SumPart):
            raise ProtocolError("a sum consists of one header and its ciphertexts")
        return dump(replace(envelope, body=self._add(envelope, body, message)))

    def _begin(self, envelope: Envelope, header: SumHeader) -> None:
        """A header: this company's earlier ciphertexts for the query, if any, are void."""
        if header.query_id != envelope.query_id:
            raise ProtocolError("a sum's header names another query than its envelope")
        query = self._queries.setdefault(envelope.query_id, _Query())
        self._queries.move_to_end(envelope.query_id)
        if query.attempt.get(envelope.sender, header.attempt) != header.attempt:
            query.totals.clear()
            for place in query.parts.values():
                place.pop(envelope.sender, None)
        query.attempt[envelope.sender] = header.attempt
        while len(self._queries) > MAX_OPEN_QUERIES:
            self._queries.popitem(last=False)

    def _add(self, envelope: Envelope, body: Data, part: SumPart) -> Data:
        query = self._queries.get(envelope.query_id)
        passed = replace(body, payload=b"", summed=True)
        if query is None or envelope.sender not in query.attempt:
            return passed  # its header passed before this relay started: no total can be made
        if part.index not in query.totals:
            place = query.parts.setdefault(part.index, {})
            place[envelope.sender] = part.ciphertext
            if frozenset(place) != self._companies or len(set(query.attempt.values())) != 1:
                self._check_size()
                return passed
            total = add_answers(self._params, [place[name] for name in sorted(place)])
            query.totals[part.index] = encode(SumPart(part.index, total))
            del query.parts[part.index]
        return replace(passed, total=query.totals[part.index])

    def _check_size(self) -> None:
        if sum(query.size() for query in self._queries.values()) > MAX_KEPT_BYTES:
            raise OversizedMessage("more ciphertexts wait for the other companies than fit here")
