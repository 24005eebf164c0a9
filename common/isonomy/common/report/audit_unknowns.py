"""How many people have no value: released with noise, and paid for like everything else.

In every other release "missing" counts to the last group of its attribute, so that nobody learns
whose value is missing. New York's Local Law 144 asks for the share of unknowns. The regulator could
read it off its vault, but an exact count is a release of private data: one person's attribute
replaced changes it by one. So the regulator asks its own ledger, under the plan's own budget:

    K + N(0, σ²),    Δ = 1 person    ⇒    units = ⌈10^12·row_bound² / σ_int²⌉

Asked again, it answers with what it answered before. Its records carry an id and a request hash of
their own, which no request of a company has, so that nobody else writes this number into a report.

Under an individual filter there is no such release: nobody has rows of their own in it, the plan's
reservation counts as spent by everybody, and a further debit would go above the cap.
"""

from __future__ import annotations

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import BudgetExceeded, ConfigError, VerificationError
from isonomy.common.crypto.params import parameter_set
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.ledger.records import Debit, DebitRecord
from isonomy.common.privacy.accounting import gaussian_units
from isonomy.common.privacy.declarations import PLAIN, Audit, Declaration, Unknowns
from isonomy.common.privacy.noise import MIN_SIGMA, SystemNoise, rounded_gaussian
from isonomy.common.privacy.queries import cost_of, query_id_prefix


def declaration_of(debit: Debit | DebitRecord) -> Declaration:
    """What a ledger record declares itself to be; a plain sum if it does not say."""
    text = debit.event.get("declaration")
    return PLAIN if text is None else Declaration.from_text(str(text))


def released_attribute(debit: Debit | DebitRecord) -> str | None:
    """The attribute whose unknowns a ledger record releases; None if it releases anything else.

    No message of a company can declare it. Id and request hash are checked all the same: a
    company's ids end in digits, and its request hashes are made under another domain.
    """
    event = debit.event
    content = declaration_of(debit).content
    if not isinstance(content, Unknowns):
        return None
    attribute = content.attribute
    expected = {
        "mechanism": "gaussian",
        "kind": "open",
        "shape": "groups",
        "columns": 1,
        "norm": "1.0",
    }
    genuine = (
        debit.query_id == _query_id(debit.plan, attribute)
        and debit.request_hash == _request_hash(debit.plan, attribute)
        and event.get("attributes") == attribute
        and all(event.get(name) == value for name, value in expected.items())
        and len(debit.answer) == 8
    )
    return attribute if genuine else None


def release_unknowns(
    ledger: Ledger,
    plan: Plan,
    root: bytes,
    attribute: str,
    missing: int,
    share: float,
    officer: str = "",
) -> DebitRecord:
    """Release the number of people of the plan without a value, for a share of the plan's budget.

    `missing` is private; what may leave is the returned record's answer. `officer`: who asked.
    """
    if plan.individual_filter:
        raise ConfigError(
            "a plan with an individual filter has its whole budget set aside for everybody's own "
            "rows: the share of unknowns cannot be released under it"
        )
    params, query_id = parameter_set(plan.parameters), _query_id(plan.hash, attribute)
    stored = ledger.find(query_id)
    if stored is not None:
        if released_attribute(stored) != attribute:
            raise VerificationError(
                f"the ledger has something else than the regulator's own release under {query_id!r}"
            )
        return stored
    units = int(plan.cap_units * share)
    if units < 1:
        raise BudgetExceeded("the share of the budget for unknowns is too small to buy anything")
    answers = (declaration_of(each).content for each in ledger.debits_of(plan.hash))
    audited = sum(isinstance(content, Audit) for content in answers)
    # What the plan keeps for audits is not the officer's either.
    ledger.check(plan.hash, root, units + plan.planned_audits.kept(audited))
    sigma = max(MIN_SIGMA, cost_of("groups", (2,), params).sigma_for(units))
    noise = int(rounded_gaussian(sigma, 1, SystemNoise())[0])
    value = missing * params.row_bound + noise
    return ledger.debit(
        plan=plan.hash,
        query_id=query_id,
        request_hash=_request_hash(plan.hash, attribute),
        root=root,
        units=gaussian_units(params.row_bound**2, sigma),
        event={
            "mechanism": "gaussian",
            "noise": sigma,
            "kind": "open",
            "shape": "groups",
            "attributes": attribute,
            "columns": 1,
            "people": plan.cohort_size,
            "purpose": f"people whose {attribute} is not recorded",
            "declaration": Declaration(Unknowns(attribute)).to_text(),
            "norm": "1.0",
            "weights": "",
            "officer": officer,
        },
        answer=value.to_bytes(8, "little", signed=True),
    )


def _query_id(plan: bytes, attribute: str) -> str:
    return f"{query_id_prefix(plan)}unknowns-{attribute}"


def _request_hash(plan: bytes, attribute: str) -> bytes:
    return hash_bytes("isonomy/unknowns/v1", plan, attribute.encode())
