"""The auditor's work: open a sealed opening, go through the checks, sign the outcome.

    (a) the plan names this auditor's key, and the opening is about the plan
    (b) the company itself sealed and signed it, for this very demand; of several companies, each
        its own part
    (c) the regulator signed that this request was demanded, or answered (or its ledger says so)
    (0) to (6), and (8), (9) where several companies asked: as in _inspection.py

Until (c) nobody is accused: a failure is somebody's mistake with files (ConfigError,
VerificationError). After it the company's own signed bytes are the evidence, and every failure is a
verdict against it. Neither the regulator's keys nor any attribute are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import (
    ConfigError,
    IsonomyError,
    ProtocolError,
    VerificationError,
)
from isonomy.common.inspection._inspection import check_added, inspect_shown
from isonomy.common.inspection.verdict import Verdict
from isonomy.common.keys.identity import verify_signature
from isonomy.common.keys.party import Card, PartyKeys
from isonomy.common.privacy.queries import asks_alone
from isonomy.common.sums.joint_opening import JointOpening
from isonomy.common.sums.sealed_opening import DEMAND_DOMAIN, SealedOpening, Shown
from isonomy.common.wire.messages import ANSWER_DOMAIN, Answer, OpeningDemand, decode


def audit(
    plan: Plan,
    sealed: SealedOpening | JointOpening,
    keys: PartyKeys,
    *,
    answered: bytes = b"",
    also: Callable[[Shown], None] | None = None,
) -> Verdict:
    """Go through all checks as the plan's auditor and sign the outcome.

    `answered` is the request hash that the regulator's ledger has for the query, if it is at hand;
    `also` is a further check, which raises VerificationError.
    """
    # (a)
    if plan.auditor != keys.card().x25519:
        raise ConfigError("the plan names another auditor's key than this one")
    if sealed.plan != plan.hash:
        raise ConfigError("the opening belongs to another plan")
    # (b)
    parts = _signed_parts(plan, sealed)
    # (c), by demand or ledger; else by the answer in the box
    if sealed.demand:
        _check_demand(plan, sealed)
    if answered and answered != sealed.request_hash:
        raise VerificationError("(c) the ledger has another request under this query id")
    reason, culprit, frames = "", "", list[list[bytes]]()
    evident = bool(sealed.demand or answered)
    try:
        for part in parts:
            culprit = part.company.name
            frames.append(_inspect(plan, part, keys, evident=evident, also=also))
        if isinstance(sealed, JointOpening):
            culprit = plan.relay_name
            check_added(sealed.reply, plan.parameters, frames)
    except _NotEvidence as error:
        raise VerificationError(str(error)) from None
    except IsonomyError as error:
        reason = str(error) or type(error).__name__
        if len(plan.companies) > 1:
            reason = f"{culprit}: {reason}"
    return Verdict(
        plan=plan.hash,
        query_id=sealed.query_id,
        request_hash=sealed.request_hash,
        passed=not reason,
        reason=reason[:512],
    ).sign(keys.identity)


@dataclass(frozen=True)
class _Part:
    """What one company sealed, its place in the plan, and its header's hash in a joint request."""

    sealed: SealedOpening
    company: Card
    place: int
    header_hash: bytes = b""


def _signed_parts(plan: Plan, sealed: SealedOpening | JointOpening) -> list[_Part]:
    """Every company's part; VerificationError unless each was signed by its company."""
    if isinstance(sealed, SealedOpening):
        place = asks_alone(sealed.query_id, plan.hash) or 0
        if len(plan.companies) > 1 and asks_alone(sealed.query_id, plan.hash) is None:
            raise ConfigError(
                "the query was asked by several companies: their parts are inspected together, in "
                "the file that the regulator has of it"
            )
        if place >= len(plan.companies):
            raise ConfigError("the query is that of a company that the plan does not name")
        parts = [_Part(sealed, plan.companies[place], place)]
    else:
        sealed.check_whole(len(plan.companies))
        hashes = sealed.reply.header_hashes
        if len(hashes) != len(plan.companies):
            raise ProtocolError("a joint request names one header of each company")
        each = zip(sealed.parts, plan.companies, hashes, strict=True)
        parts = [_Part(part, card, n, header) for n, (part, card, header) in enumerate(each)]
    for part in parts:
        part.sealed.check_signature(part.company.signing_key)
    return parts


def _inspect(
    plan: Plan,
    part: _Part,
    keys: PartyKeys,
    *,
    evident: bool,
    also: Callable[[Shown], None] | None,
) -> list[bytes]:
    """Open one part and go through the checks. `evident`: (c) holds already.

    Returns the ciphertexts that the company sent.
    """
    contents = part.sealed.open(keys.sealing)
    if not evident:
        _check_answer(plan, part.sealed, contents)
    frames = inspect_shown(plan, part.sealed, contents, part.place, part.header_hash)
    if also is not None:
        also(contents)
    return frames


class _NotEvidence(Exception):  # noqa: N818
    """(c) does not hold: no verdict about anybody."""


def _check_demand(plan: Plan, sealed: SealedOpening | JointOpening) -> None:
    demand = decode(sealed.demand, OpeningDemand)
    signed = demand.signed_bytes()
    verify_signature(plan.regulator.signing_key, DEMAND_DOMAIN, signed, demand.signature)
    named = (demand.plan, demand.query_id, demand.request_hash)
    if named != (sealed.plan, sealed.query_id, sealed.request_hash):
        raise VerificationError("(c) the demand is for another request")
    if bool(demand.seed) != (plan.carrier == "pads"):
        raise VerificationError("(c) the demand is not one for the plan's carrier")


def _check_answer(plan: Plan, sealed: SealedOpening, contents: Shown) -> None:
    if not contents.answer:
        raise _NotEvidence("(c) the request was neither demanded nor answered: nothing to inspect")
    try:
        answer = decode(contents.answer, Answer)
        signed = answer.signed_bytes()
        verify_signature(plan.regulator.signing_key, ANSWER_DOMAIN, signed, answer.signature)
    except IsonomyError:
        raise _NotEvidence("(c) the answer in the opening is not the regulator's") from None
    named = (answer.plan, answer.query_id, answer.request_hash)
    if named != (sealed.plan, sealed.query_id, sealed.request_hash):
        raise _NotEvidence("(c) the answer in the opening is to another request")
