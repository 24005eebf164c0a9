"""The auditor's work: open a sealed opening, go through the checks, sign the outcome.

    (a) the plan names this auditor's key, and the opening is about the plan
    (b) the company itself sealed and signed it
    (c) the regulator signed that this request was demanded, or answered (or its ledger says so)
    (0) to (6) as in inspection.py

Until (c) nobody is accused: a failure is somebody's mistake with files (ConfigError,
VerificationError). After it the company's own signed bytes are the evidence, and every failure is a
verdict against it. Neither the regulator's keys nor any attribute are needed.
"""

from __future__ import annotations

from collections.abc import Callable

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import ConfigError, IsonomyError, VerificationError
from isonomy.common.inspection._inspection import inspect_shown
from isonomy.common.inspection.verdict import Verdict
from isonomy.common.keys.identity import verify_signature
from isonomy.common.keys.party import PartyKeys
from isonomy.common.sums.sealed_opening import DEMAND_DOMAIN, SealedOpening, Shown
from isonomy.common.wire.messages import ANSWER_DOMAIN, Answer, OpeningDemand, decode


def audit(
    plan: Plan,
    sealed: SealedOpening,
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
    if len(plan.companies) > 1:
        raise ConfigError("queries of several companies are inspected together: joint_inspection")
    # (b)
    sealed.check_signature(plan.companies[0].signing_key)
    # (c), by demand or ledger; else by the answer in the box
    if sealed.demand:
        _check_demand(plan, sealed)
    if answered and answered != sealed.request_hash:
        raise VerificationError("(c) the ledger has another request under this query id")
    reason = ""
    try:
        contents = sealed.open(keys.sealing)
        if not (sealed.demand or answered):
            _check_answer(plan, sealed, contents)
        inspect_shown(plan, sealed, contents)
        if also is not None:
            also(contents)
    except _NotEvidence as error:
        raise VerificationError(str(error)) from None
    except IsonomyError as error:
        reason = str(error)[:512] or type(error).__name__
    return Verdict(
        plan=plan.hash,
        query_id=sealed.query_id,
        request_hash=sealed.request_hash,
        passed=not reason,
        reason=reason,
    ).sign(keys.identity)


class _NotEvidence(Exception):  # noqa: N818
    """(c) does not hold: no verdict about anybody."""


def _check_demand(plan: Plan, sealed: SealedOpening) -> None:
    demand = decode(sealed.demand, OpeningDemand)
    signed = demand.signed_bytes()
    verify_signature(plan.regulator.signing_key, DEMAND_DOMAIN, signed, demand.signature)
    named = (demand.plan, demand.query_id, demand.request_hash)
    if named != (sealed.plan, sealed.query_id, sealed.request_hash):
        raise VerificationError("(c) the demand is for another request")


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
