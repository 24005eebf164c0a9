"""The run plan: what two or more owners agree to before anything is asked.

Both approve the same file; its hash goes into every query, every ledger record and every session.
The hash is SHA-256 of the plan's canonical JSON (RFC 8785; integers, strings and booleans only),
and the file holds exactly those bytes: `sha256sum plan.json` prints the hash. Flower's run id is
not in it, so a restarted run is the same plan.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from isonomy.common.accounting import units_for
from isonomy.common.canonical import MAX_INTEGER, canonical_json, parse_canonical
from isonomy.common.errors import ConfigError, ProtocolError
from isonomy.common.params import PARAMETER_SETS, parameter_set
from isonomy.common.party import Card, Hex32

SCHEMA: Literal[1] = 1
SERVER = "server"  # how the relay signs what it says itself: envelopes.SERVER
MAX_PLAN_BYTES = 1 << 18
MILLION = 1_000_000

Word = Annotated[str, StringConstraints(min_length=1, max_length=128)]
Millionths = Annotated[int, Field(ge=0, le=MILLION)]


class Share(BaseModel):
    """Whose people are whose, in a plan of several companies: in the order of the companies."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    people: Annotated[int, Field(ge=1, le=MAX_INTEGER)]
    cohort_root: Hex32


class Plan(BaseModel):
    """Who asks what about whom, and what it may cost. Immutable; equal plans have equal hashes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_version: Literal[1] = SCHEMA
    name: Word
    companies: tuple[Card, ...] = Field(min_length=1, max_length=7)
    regulator: Card
    relay_name: Word
    cohort_root: Hex32
    cohort_size: Annotated[int, Field(ge=1, le=MAX_INTEGER)]
    shares: tuple[Share, ...] = ()
    groups: Mapping[Word, tuple[Word, ...]]
    notion: Word
    strategy: Word
    tolerance_millionths: Millionths
    epsilon_millionths: Annotated[int, Field(ge=1, le=1000 * MILLION)]
    delta: Word
    parameters: Word
    auditor: str = ""
    inspection_millionths: Millionths = 0
    inspection_deadline: Word
    individual_filter: bool = False
    record_privacy: bool = False

    @field_validator("delta")
    @classmethod
    def _delta_is_a_probability(cls, text: str) -> str:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0.0 < value < 1.0:
            raise ValueError("delta must be a decimal number between 0 and 1, such as 1e-6")
        return text

    @field_validator("inspection_deadline")
    @classmethod
    def _deadline_is_a_day(cls, text: str) -> str:
        if date.fromisoformat(text).isoformat() != text:
            raise ValueError("inspection_deadline must be a day such as 2027-01-31")
        return text

    @field_validator("parameters")
    @classmethod
    def _parameters_are_known(cls, name: str) -> str:
        if name not in PARAMETER_SETS:
            raise ValueError(f"unknown parameter set; known: {', '.join(PARAMETER_SETS)}")
        return name

    @field_validator("groups")
    @classmethod
    def _groups_compare(cls, groups: Mapping[str, tuple[str, ...]]) -> Mapping[str, Any]:
        if not groups or any(len(set(own)) != len(own) or len(own) < 2 for own in groups.values()):
            raise ValueError("name at least one attribute, each with two or more distinct groups")
        return groups

    @model_validator(mode="after")
    def _parties_fit(self) -> Plan:
        cards = (*self.companies, self.regulator)
        if self.regulator.role != "regulator" or any(c.role != "company" for c in self.companies):
            raise ValueError("a card stands in a place that its role does not fit")
        for values in zip(*((c.name, c.ed25519, c.x25519) for c in cards), strict=True):
            if len(set(values)) != len(cards):
                raise ValueError("every party has its own name and its own keys")
        if {SERVER, self.relay_name} & {card.name for card in cards}:
            raise ValueError(f"no party may be called {SERVER!r}, or like the relay")
        if len(self.companies) > parameter_set(self.parameters).max_companies:
            raise ValueError(f"{self.parameters} adds up fewer companies than the plan names")
        if len(self.shares) != (len(self.companies) if len(self.companies) > 1 else 0):
            raise ValueError("several companies need one share each; a single one has none")
        if self.shares and sum(share.people for share in self.shares) != self.cohort_size:
            raise ValueError("the shares of the companies do not add up to the cohort")
        return self

    @model_validator(mode="after")
    def _inspection_fits(self) -> Plan:
        if self.auditor and (
            len(self.auditor) != 64 or set(self.auditor) - set("0123456789abcdef")
        ):
            raise ValueError("auditor must be an X25519 key in 64 hexadecimal digits, or empty")
        if self.inspection_millionths and not self.auditor:
            raise ValueError("inspections need an auditor: openings go to the auditor's key only")
        return self

    # --- Bytes ---------------------------------------------------------------------------------

    def to_json(self) -> bytes:
        """Canonical bytes: what is hashed, approved and saved."""
        return canonical_json(self.model_dump(mode="json"))

    @classmethod
    def from_json(cls, data: bytes) -> Plan:
        """Total: whatever the bytes are, a plan or a ConfigError that names the wrong fields."""
        try:
            raw = parse_canonical(data, max_bytes=MAX_PLAN_BYTES)
        except ProtocolError as error:
            raise ConfigError(f"not a plan: {error}. A plan is not edited by hand.") from None
        return cls.of(raw if isinstance(raw, dict) else {})

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Plan:
        """A plan from plain values (lists for tuples), with our error instead of pydantic's."""
        try:
            # JSON mode takes lists for tuples and stays strict about numbers and text.
            return cls.model_validate_json(canonical_json(_plain(fields)))
        except ValidationError as error:
            places = {".".join(map(str, e["loc"])) or "plan": e["msg"] for e in error.errors()}
            reasons = "; ".join(f"{place}: {why}" for place, why in places.items())
            raise ConfigError(f"this plan cannot be used: {reasons}") from None

    def save(self, path: Path) -> None:
        """All or nothing, so that nobody approves half a plan."""
        partial = path.with_name(path.name + ".partial")
        try:
            with partial.open("wb") as file:
                file.write(self.to_json())
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from None

    @classmethod
    def load(cls, path: Path) -> Plan:
        try:
            with path.open("rb") as file:
                data = file.read(MAX_PLAN_BYTES + 1)
        except OSError as error:
            raise ConfigError(f"cannot read the plan {path}: {error.strerror}") from None
        return cls.from_json(data)

    # --- What follows from it ------------------------------------------------------------------

    @cached_property
    def hash(self) -> bytes:
        return hashlib.sha256(self.to_json()).digest()

    @cached_property
    def cap_units(self) -> int:
        """The budget in units of μ²: the most whose ε at δ is at most the approved one."""
        return units_for(self.epsilon_millionths / MILLION, float(self.delta))

    @property
    def delta_value(self) -> float:
        return float(self.delta)

    def card(self, name: str) -> Card:
        """The party of that name, or a ConfigError that lists the names."""
        for card in (*self.companies, self.regulator):
            if card.name == name:
                return card
        names = ", ".join(card.name for card in (*self.companies, self.regulator))
        raise ConfigError(f"{name!r} is no party of this plan; its parties are {names}")

    def public(self) -> PlanPublic:
        """What the server needs to know, and all that it is told."""
        return PlanPublic(
            self.hash, self.companies, self.regulator, self.relay_name, self.parameters
        )

    def describe(self) -> str:
        """The plan in plain language, for the owner who approves it."""
        companies = ", ".join(card.name for card in self.companies)
        asked = "; ".join(f"{name} ({', '.join(own)})" for name, own in self.groups.items())
        epsilon, rate = self.epsilon_millionths / MILLION, self.inspection_millionths / 10_000
        inspection = (
            f"{rate:g} % of the queries are inspected by the named auditor until "
            f"{self.inspection_deadline}"
            if self.inspection_millionths
            else "no query is inspected: a company that cheats is not caught"
        )
        lines = [
            f"Plan {self.name!r}",
            f"  lets {companies} ask {self.regulator.name} for noisy group sums over "
            f"{self.cohort_size:,} people, by {asked};",
            f"  aims at {self.notion} within {self.tolerance_millionths / MILLION:g} by strategy "
            f"{self.strategy};",
            f"  spends at most ε = {epsilon:g} at δ = {self.delta} of every person's budget"
            + (", each person counted alone;" if self.individual_filter else ";"),
            f"  {inspection};",
            f"  the people's records are {'also' if self.record_privacy else 'not'} protected by "
            "differential privacy, their attributes are.",
            f"  Hash {self.hash.hex()}",
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class PlanPublic:
    """The part of a plan that the server is told: names, public keys and sizes, no purpose."""

    hash: bytes
    companies: tuple[Card, ...]
    regulator: Card
    relay_name: str
    parameters: str

    @property
    def cards(self) -> dict[str, Card]:
        return {card.name: card for card in (*self.companies, self.regulator)}

    def to_json(self) -> bytes:
        return canonical_json(
            {
                "hash": self.hash.hex(),
                "companies": [card.model_dump() for card in self.companies],
                "regulator": self.regulator.model_dump(),
                "relay_name": self.relay_name,
                "parameters": self.parameters,
            }
        )

    @classmethod
    def from_json(cls, data: bytes) -> PlanPublic:
        """Total: whatever the bytes are, the public part of a plan or a ConfigError."""
        try:
            raw: Any = parse_canonical(data, max_bytes=MAX_PLAN_BYTES)
            companies = tuple(Card.model_validate(card) for card in raw["companies"])
            regulator = Card.model_validate(raw["regulator"])
            parameter_set(raw["parameters"])
            found = cls(
                bytes.fromhex(raw["hash"]),
                companies,
                regulator,
                str(raw["relay_name"]),
                raw["parameters"],
            )
        except (ProtocolError, ValidationError, KeyError, TypeError, ValueError):
            raise ConfigError("not the public part of a plan") from None
        if found.to_json() != data or len(found.hash) != 32 or len(found.cards) < 2:
            raise ConfigError("not the public part of a plan")
        return found


def _plain(value: Any) -> Any:
    """Tuples and cards as the lists and objects of JSON."""
    if isinstance(value, BaseModel):
        return _plain(value.model_dump())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
