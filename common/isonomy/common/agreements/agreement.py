"""What owners agree to before their machines talk: a file with a hash, and its public part.

Both approve the same file; its hash goes into every message of the session that it allows. The hash
is SHA-256 of the file's canonical JSON (RFC 8785; integers, strings and booleans only), and the
file holds exactly those bytes: `sha256sum` prints the hash. Flower's run id is not in it, so a
restarted run is the same agreement. There are three kinds: `Plan` (who asks what about whom),
`AlignmentPlan` (whose lists of ids are compared) and `FewShotPlan` (who meta-trains with whom).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from isonomy.common.base.canonical import canonical_json, parse_canonical
from isonomy.common.base.errors import ConfigError, ProtocolError
from isonomy.common.crypto.params import PARAMETER_SETS, parameter_set
from isonomy.common.keys.party import Card

SERVER = "server"  # how the relay signs what it says itself: envelopes.SERVER
MAX_PLAN_BYTES = 1 << 18
MAX_ROUND_PARTS = 1 << 10  # of one vector: 8.4 million parameters, 134 MB at the relay


def _one_line(text: str) -> str:
    """An owner reads these words before approving: no line breaks or escape codes among them."""
    if not text.isprintable() or text != text.strip():
        raise ValueError("must be printable text in one line, without blanks at its ends")
    return text


Word = Annotated[str, StringConstraints(min_length=1, max_length=128), AfterValidator(_one_line)]


class Agreement(BaseModel):
    """Parties and the relay between them. Immutable; equal agreements have equal hashes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    word: ClassVar[str] = "plan"  # what the owner calls it

    name: Word
    companies: tuple[Card, ...] = Field(min_length=1, max_length=7)
    regulator: Card
    relay_name: Word
    parameters: Word

    @model_validator(mode="after")
    def _parties_fit(self) -> Self:
        cards = (*self.companies, self.regulator)
        if self.regulator.role != "regulator" or any(c.role != "company" for c in self.companies):
            raise ValueError("a card stands in a place that its role does not fit")
        for values in zip(*((c.name, c.ed25519, c.x25519) for c in cards), strict=True):
            if len(set(values)) != len(cards):
                raise ValueError("every party has its own name and its own keys")
        if {SERVER, self.relay_name} & {card.name for card in cards}:
            raise ValueError(f"no party may be called {SERVER!r}, or like the relay")
        if self.parameters not in PARAMETER_SETS:
            raise ValueError(f"unknown parameter set; known: {', '.join(PARAMETER_SETS)}")
        return self

    # --- Bytes ---------------------------------------------------------------------------------

    def to_json(self) -> bytes:
        """Canonical bytes: what is hashed, approved and saved."""
        return canonical_json(self.model_dump(mode="json"))

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Total: whatever the bytes are, an agreement or a ConfigError naming the wrong fields."""
        try:
            raw = parse_canonical(data, max_bytes=MAX_PLAN_BYTES)
        except ProtocolError as error:
            raise ConfigError(
                f"not a {cls.word}: {error}. A {cls.word} is not edited by hand."
            ) from None
        return cls.of(raw if isinstance(raw, dict) else {})

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """From plain values (lists for tuples), with our error instead of pydantic's."""
        try:
            # JSON mode takes lists for tuples and stays strict about numbers and text.
            return cls.model_validate_json(canonical_json(_plain(fields)))
        except ValidationError as error:
            places = {".".join(map(str, e["loc"])) or cls.word: e["msg"] for e in error.errors()}
            reasons = "; ".join(f"{place}: {why}" for place, why in places.items())
            raise ConfigError(f"this {cls.word} cannot be used: {reasons}") from None

    def save(self, path: Path) -> None:
        """All or nothing, so that nobody approves half a file."""
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
    def load(cls, path: Path) -> Self:
        try:
            with path.open("rb") as file:
                data = file.read(MAX_PLAN_BYTES + 1)
        except OSError as error:
            raise ConfigError(f"cannot read the {cls.word} {path}: {error.strerror}") from None
        return cls.from_json(data)

    # --- What follows from it ------------------------------------------------------------------

    @cached_property
    def hash(self) -> bytes:
        return hashlib.sha256(self.to_json()).digest()

    def card(self, name: str) -> Card:
        """The party of that name, or a ConfigError that lists the names."""
        for card in (*self.companies, self.regulator):
            if card.name == name:
                return card
        names = ", ".join(card.name for card in (*self.companies, self.regulator))
        raise ConfigError(f"{name!r} is no party of this {self.word}; its parties are {names}")

    @property
    def round_parts(self) -> int:
        """Ciphertexts that each party sends in a round; 0 where there are no rounds."""
        return 0

    @property
    def summed(self) -> bool:
        """Does the relay add up ciphertexts, and may it therefore take them out?"""
        return len(self.companies) > 1 or self.round_parts > 0

    def public(self) -> PlanPublic:
        """What the server needs to know, and all that it is told."""
        return PlanPublic(
            self.hash,
            self.companies,
            self.regulator,
            self.relay_name,
            self.parameters,
            self.round_parts,
        )


@dataclass(frozen=True)
class PlanPublic:
    """The part of a plan that the server is told: names, public keys and sizes, no purpose.

    With `round_parts` the session has rounds: the relay adds so many ciphertexts of the company to
    as many of the regulator (relay_rounds.py). Without, the field is not written.
    """

    hash: bytes
    companies: tuple[Card, ...]
    regulator: Card
    relay_name: str
    parameters: str
    round_parts: int = 0

    @property
    def cards(self) -> dict[str, Card]:
        return {card.name: card for card in (*self.companies, self.regulator)}

    def to_json(self) -> bytes:
        rounds = {"round_parts": self.round_parts} if self.round_parts else {}
        return canonical_json(
            {
                "hash": self.hash.hex(),
                "companies": [card.model_dump() for card in self.companies],
                "regulator": self.regulator.model_dump(),
                "relay_name": self.relay_name,
                "parameters": self.parameters,
                **rounds,
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
                _round_parts(raw.get("round_parts", 0), len(companies)),
            )
        except (ProtocolError, ValidationError, KeyError, TypeError, ValueError):
            raise ConfigError("not the public part of a plan") from None
        if found.to_json() != data or len(found.hash) != 32 or len(found.cards) < 2:
            raise ConfigError("not the public part of a plan")
        return found


def _round_parts(value: Any, companies: int) -> int:
    if type(value) is not int or not 0 <= value <= MAX_ROUND_PARTS or (value and companies != 1):
        raise ValueError("round_parts")
    return value


def _plain(value: Any) -> Any:
    """Tuples and cards as the lists and objects of JSON."""
    if isinstance(value, BaseModel):
        return _plain(value.model_dump())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
