"""The run plan: what two or more owners agree to before anything is asked.

An `Agreement` (which see for bytes and hash) about who asks what about whom, and what it may cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from isonomy.common.agreements.agreement import Agreement, Word
from isonomy.common.agreements.feature_map import PublicFeatures
from isonomy.common.agreements.notions import NOTIONS, REHEARSAL_NOTIONS, SCORE_NOTIONS
from isonomy.common.base.canonical import MAX_INTEGER
from isonomy.common.base.errors import ConfigError
from isonomy.common.crypto.params import parameter_set
from isonomy.common.keys.party import Card, Hex32, PartyName, fingerprint
from isonomy.common.people.cohort import labels_fault
from isonomy.common.privacy.accounting import units_for
from isonomy.common.privacy.declarations import Declaration
from isonomy.common.privacy.planned_audits import MOST, PlannedAudits

SCHEMA: Literal[1] = 1
MILLION = 1_000_000


def _public_key(key: str) -> str:
    if key and (len(key) != 64 or set(key) - set("0123456789abcdef")):
        raise ValueError("must be a public key in 64 hexadecimal digits, or empty")
    return key


Key = Annotated[str, AfterValidator(_public_key)]
Millionths = Annotated[int, Field(ge=0, le=MILLION)]


_CARRIERS = {
    "homomorphic": "carries each query by homomorphic encryption",
    "pads": "transfers keys once, then carries each query by one-time pads",
}


class Share(BaseModel):
    """Whose people are whose, in a plan of several companies: in the order of the companies."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    people: Annotated[int, Field(ge=1, le=MAX_INTEGER)]
    cohort_root: Hex32


class Plan(Agreement):
    """Who asks what about whom, and what it may cost. Immutable; equal plans have equal hashes."""

    silent: ClassVar[Mapping[str, object]] = {
        "about": None,
        "carrier": "homomorphic",
        "feature_map": None,
        "audits": 0,
        "auditor_name": "",
    }

    schema_version: Literal[1] = SCHEMA
    cohort_root: Hex32
    cohort_size: Annotated[int, Field(ge=1, le=MAX_INTEGER)]
    shares: tuple[Share, ...] = ()
    groups: Mapping[Word, tuple[Word, ...]]
    notion: Word
    strategy: Word
    tolerance_millionths: Millionths
    epsilon_millionths: Annotated[int, Field(ge=1, le=1000 * MILLION)]
    delta: Word
    auditor: Key = ""  # X25519: openings are sealed to it
    auditor_signing: Key = ""  # Ed25519: verdicts are signed with it, if the auditor is no party
    auditor_name: PartyName | Literal[""] = ""  # as on its card, if it is no party
    inspection_millionths: Millionths = 0
    inspection_waits: bool = True  # does an inspected query get no answer before its verdict?
    inspection_deadline: Word
    individual_filter: bool = False
    record_privacy: bool = False
    carrier: Literal["homomorphic", "pads"] = "homomorphic"
    feature_map: PublicFeatures | None = None  # of several companies that learn together
    audits: Annotated[int, Field(ge=0, le=MOST)] = 0  # whose budget is kept (planned_audits)

    @field_validator("notion")
    @classmethod
    def _notion_can_be_audited(cls, name: str) -> str:
        if name in REHEARSAL_NOTIONS:
            raise ValueError(
                f"{name} is for rehearsals only, because no audit can show it; "
                f"take one of {', '.join((*NOTIONS, *SCORE_NOTIONS))}"
            )
        return name

    @field_validator("delta")
    @classmethod
    def _delta_is_a_probability(cls, text: str) -> str:
        if not 0.0 < float(text) < 1.0:
            raise ValueError("delta must be a decimal number between 0 and 1, such as 1e-6")
        return text

    @field_validator("inspection_deadline")
    @classmethod
    def _deadline_is_a_day(cls, text: str) -> str:
        if date.fromisoformat(text).isoformat() != text:
            raise ValueError("inspection_deadline must be a day such as 2027-01-31")
        return text

    @field_validator("groups")
    @classmethod
    def _groups_compare(cls, groups: Mapping[str, tuple[str, ...]]) -> Mapping[str, Any]:
        if not groups:
            raise ValueError("name at least one attribute, with two or more distinct groups")
        for name, labels in groups.items():
            fault = labels_fault(labels)
            if fault:
                raise ValueError(f"{name!r} {fault}")
        return groups

    @model_validator(mode="after")
    def _shares_fit(self) -> Plan:
        if len(self.companies) > parameter_set(self.parameters).max_companies:
            raise ValueError(f"{self.parameters} adds up fewer companies than the plan names")
        if len(self.shares) != (len(self.companies) if len(self.companies) > 1 else 0):
            raise ValueError("several companies need one share each; a single one has none")
        if self.shares and sum(share.people for share in self.shares) != self.cohort_size:
            raise ValueError("the shares of the companies do not add up to the cohort")
        return self

    @model_validator(mode="after")
    def _feature_map_fits(self) -> Plan:
        if self.feature_map is not None and len(self.companies) == 1:
            raise ValueError("a feature map is for several companies; one company fits its own")
        return self

    @model_validator(mode="after")
    def _audits_fit(self) -> Plan:
        """Return the plan if the audits that it keeps its budget for can be asked."""
        if not self.audits:
            return self
        if len(self.companies) > 1:
            raise ValueError("audits are planned ahead for one company; several audit as they go")
        if self.individual_filter or self.record_privacy:
            raise ValueError(
                "audits cannot be planned ahead under an individual filter, which has a reserve of "
                "its own, nor where whole records are protected, which allows no audits"
            )
        try:
            _ = self.planned_audits
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    @model_validator(mode="after")
    def _carrier_fits(self) -> Plan:
        if self.carrier == "homomorphic":
            return self
        if len(self.companies) > 1:
            raise ValueError(
                "pads carry the rows of one company: the server cannot add several companies' pads "
                "up; take carrier homomorphic"
            )
        if self.individual_filter:
            raise ValueError(
                "an individual filter needs an inspection that finds every false row, and with "
                "pads a lie about a pad can pass; take carrier homomorphic"
            )
        return self

    @model_validator(mode="after")
    def _inspection_fits(self) -> Plan:
        """Return the plan if somebody can do what it promises about inspections."""
        company_keys = {key for card in self.companies for key in (card.ed25519, card.x25519)}
        if company_keys & {self.auditor, self.auditor_signing}:
            raise ValueError("a company of the plan cannot be its auditor")
        if self.inspection_millionths and not self.auditor:
            raise ValueError("inspections need an auditor: openings go to the auditor's key only")
        outside = bool(self.auditor) and not self.regulator_audits
        if outside and not (self.auditor_signing and self.auditor_name):
            raise ValueError(
                "an auditor who is no party needs a name and a signing key too (auditor_name, "
                "auditor_signing): its verdicts are signed, and owners compare its fingerprint"
            )
        return self

    # --- What follows from it ------------------------------------------------------------------

    @cached_property
    def cap_units(self) -> int:
        """The budget in units of μ²: the most whose ε at δ is at most the approved one."""
        return units_for(self.epsilon_millionths / MILLION, float(self.delta))

    @property
    def planned_audits(self) -> PlannedAudits:
        """How many audits the plan keeps its budget for, and what each may cost."""
        return PlannedAudits.of(self.audits, self.cap_units, self.strategy)

    @property
    def delta_value(self) -> float:
        return float(self.delta)

    @property
    def regulator_audits(self) -> bool:
        """Do openings go to the regulator itself? Then it sees the rows of inspected queries."""
        return self.auditor == self.regulator.x25519

    @property
    def auditor_card(self) -> Card | None:
        """The card of an auditor who is no party of the plan."""
        if not self.auditor or self.regulator_audits:
            return None
        keys = {"ed25519": self.auditor_signing, "x25519": self.auditor}
        return Card(name=self.auditor_name, role="auditor", **keys)

    @property
    def declaration(self) -> Declaration:
        """What a company's question is for, if it does not say otherwise."""
        return Declaration(strategy=self.strategy, notion=self.notion)

    def inspections_over(self, day: date) -> bool:
        """Is the last day gone on which a request may be opened?"""
        return day > date.fromisoformat(self.inspection_deadline)

    @property
    def held_units(self) -> int:
        """What the ledger sets aside for each person."""
        return self.cap_units

    def describe(self) -> str:
        """The plan in plain language, for the owner who approves it."""
        companies = ", ".join(card.name for card in self.companies)
        by = "; ".join(f"{name} ({', '.join(labels)})" for name, labels in self.groups.items())
        epsilon = self.epsilon_millionths / MILLION
        lines = [
            f"Plan {self.name!r}",
            f"  lets {companies} ask {self.regulator.name} for noisy group sums over "
            f"{self.cohort_size:,} people, by {by};",
            f"  aims at {self.notion.replace('_', ' ')} within "
            f"{self.tolerance_millionths / MILLION:g} by strategy {self.strategy};",
            f"  spends at most ε = {epsilon:g} at δ = {self.delta} of every person's budget"
            + (", each person counted alone" if self.individual_filter else "")
            + "; this limits what anybody learns about the values of their attributes;",
            *self._describe_audits(),
            f"  {self._describe_inspection()};",
            f"  {_CARRIERS[self.carrier]};",
            *([f"  {self.feature_map.describe()};"] if self.feature_map else []),
            f"  the people's records are {'also' if self.record_privacy else 'not'} protected by "
            "differential privacy, their attributes are.",
            *self.describe_words(),
            f"  Hash {self.hash.hex()}",
        ]
        return "\n".join(lines)

    def _describe_audits(self) -> list[str]:
        """Return what is kept for audits, in one line, or nothing."""
        if not self.audits:
            return []
        part, all_of_it = self.planned_audits.share(self.cap_units), self.strategy == "audit"
        rest = "" if all_of_it else ", which nothing else may use"
        return [
            f"  keeps its budget for {self.audits} audits, each of at most {part:.3g} of it{rest}; "
            "it allows no further ones;"
        ]

    def _describe_inspection(self) -> str:
        """Return what is inspected, and by whom, for the owner who approves the plan."""
        if not self.auditor:
            return "no inspections agreed: false input would go unnoticed"
        card = self.auditor_card
        who = (
            f"the auditor {card.name} with fingerprint {fingerprint(card)}"
            if card
            else f"{self.regulator.name} itself, which then sees those people's rows"
        )
        if not self.inspection_millionths:
            return (
                "no query is inspected while it runs: false input would go unnoticed unless the "
                f"company opens that query later, which it can do until {self.inspection_deadline},"
                f" to {who}"
            )
        waits = self.regulator_audits or self.inspection_waits
        share, when = self.inspection_millionths / 10_000, "before"
        if not waits:
            when = "and checked after"
        end = (
            f"later openings until {self.inspection_deadline}, and what was demanded and not "
            "opened by then failed"
        )
        if self.carrier == "pads":
            return (
                f"inspects every query, {share:g} % of its people, drawn one by one after it was "
                "sent: their rows, each with the person's number in the list, are opened to "
                f"{who}, {when} it is answered; {end}"
            )
        return (
            f"inspects at least {share:g} % of the queries, drawn after they were sent: their rows "
            f"are opened to {who}, {when} they are answered; {end}"
        )
