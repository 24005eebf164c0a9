"""Adding up a few-shot round: the company's ciphertexts and the regulator's, with no key.

    company → regulator    the ciphertext is taken out and stored; its hash and signature pass on
    regulator → company    the ciphertext is taken out and added to the company's ciphertext of the
                           same place; the total goes beside its hash and signature

The regulator sends only after the company's last ciphertext, so all of the company's are here. If
they are not (this relay was restarted in between), the envelope passes without a total; the company
sees that and sends the round again, under a new attempt.

Memory: the company's ciphertexts of its newest attempt, as many as the plan says, and 32 bytes for
each of the regulator's. They stay until the next attempt, because an envelope may have to be sent
again. Under one attempt a ciphertext never changes: sent again, it has the same bytes.
"""

from __future__ import annotations

from dataclasses import replace

from isonomy.common.agreements.agreement import PlanPublic
from isonomy.common.base.errors import ProtocolError
from isonomy.common.crypto.params import add_answers, check_answer, parameter_set
from isonomy.common.wire.envelopes import Data, Envelope, dump
from isonomy.common.wire.messages import SumPart, decode, encode


class RoundAdder:
    """Stores the company's ciphertexts of one attempt and adds the regulator's to them."""

    def __init__(self, plan: PlanPublic) -> None:
        (self._company,) = (card.name for card in plan.companies)
        self._params, self._parts = parameter_set(plan.parameters), plan.round_parts
        self._attempt = ""
        self._stored: dict[int, bytes] = {}  # the company's ciphertexts
        self._digests: dict[tuple[str, int], bytes] = {}  # by sender and place

    def take(self, envelope: Envelope, raw: bytes) -> bytes:
        """Return the envelope as it goes on."""
        part, body = self._checked(envelope)
        passed = replace(body, payload=b"", summed=True)
        if envelope.sender == self._company:
            self._store(envelope.query_id, part)
        if envelope.query_id == self._attempt:
            self._note(envelope.sender, part.index, body.digest)
            if envelope.sender != self._company and part.index in self._stored:
                summands = [self._stored[part.index], part.ciphertext]
                total = add_answers(self._params, summands)
                passed = replace(passed, total=encode(SumPart(part.index, total)))
        return dump(replace(envelope, body=passed))

    def _checked(self, envelope: Envelope) -> tuple[SumPart, Data]:
        """Return the ciphertext: one whole chunk, well formed, in the place its envelope names."""
        body = envelope.body
        if not isinstance(body, Data) or body.chunks != 1:
            raise ProtocolError("a ciphertext of a round is one whole chunk")
        part = decode(bytes(body.payload), SumPart)
        if (part.index, body.last) != (body.frame, body.frame == self._parts - 1):
            raise ProtocolError("a ciphertext of a round stands in another place than it says")
        if part.index >= self._parts:
            raise ProtocolError(f"a round has {self._parts} ciphertexts; got one more")
        check_answer(self._params, part.ciphertext)
        return part, body

    def _store(self, attempt: str, part: SumPart) -> None:
        if attempt != self._attempt:
            self._attempt = attempt
            self._stored.clear()
            self._digests.clear()
        self._stored.setdefault(part.index, part.ciphertext)

    def _note(self, sender: str, index: int, digest: bytes) -> None:
        if self._digests.setdefault((sender, index), digest) != digest:
            raise ProtocolError(f"{sender} replaces a ciphertext of an attempt")
