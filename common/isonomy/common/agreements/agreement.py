"""What owners agree to before their machines talk: a file with a hash, and its public part.

Both approve the same file; its hash goes into every message of the session that it allows. The hash
is SHA-256 of the file's canonical JSON, and the file holds exactly those bytes: `sha256sum` prints
the hash. Flower's run id is not in it, so a restarted run is the same agreement. There are three
kinds: `Plan` (who asks what about whom), `AlignmentPlan` (whose lists of ids are compared) and
`FewShotPlan` (who meta-trains with whom).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    model_serializer,
    model_validator,
)

from isonomy.common.agreements.about import NOT_GIVEN, About, one_line
from isonomy.common.base.documents import Digest, Document, read_bounded
from isonomy.common.base.errors import ConfigError, PolicyRefused
from isonomy.common.crypto.params import PARAMETER_SETS
from isonomy.common.keys.party import Card

SERVER = "server"  # how the relay signs what it says itself: envelopes.SERVER
MAX_PLAN_BYTES = 1 << 18
MAX_ROUND_PARTS = 1 << 10  # of one vector: 8.4 million parameters, 134 MB at the relay


def _known_parameters(name: str) -> str:
    if name not in PARAMETER_SETS:
        raise ValueError(f"unknown parameter set; known: {', '.join(PARAMETER_SETS)}")
    return name


Word = Annotated[str, StringConstraints(min_length=1, max_length=128), AfterValidator(one_line)]


class _Parties(Document):
    """Who takes part, and the relay between them."""

    word: ClassVar[str] = "plan"
    max_bytes: ClassVar[int] = MAX_PLAN_BYTES

    companies: tuple[Card, ...] = Field(min_length=1, max_length=7)
    regulator: Card
    relay_name: Word
    parameters: Annotated[Word, AfterValidator(_known_parameters)]

    @property
    def cards(self) -> dict[str, Card]:
        return {card.name: card for card in (*self.companies, self.regulator)}

    @model_validator(mode="after")
    def _parties_fit(self) -> Self:
        cards = (*self.companies, self.regulator)
        if self.regulator.role != "regulator" or any(c.role != "company" for c in self.companies):
            raise ValueError("a card has another role (company, regulator) than its place needs")
        for values in zip(*((c.name, c.ed25519, c.x25519) for c in cards), strict=True):
            if len(set(values)) != len(cards):
                raise ValueError("two parties have the same name or the same key")
        if {SERVER, self.relay_name} & self.cards.keys():
            raise ValueError(f"no party may be called {SERVER!r}, or have the relay's name")
        return self


class Agreement(_Parties):
    """Parties and the relay between them. Immutable; equal agreements have equal hashes."""

    silent: ClassVar[Mapping[str, object]] = {"about": None}  # values that are not written

    name: Word
    about: About | None = None

    @model_serializer(mode="wrap")
    def _without_silent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the fields, without those that say nothing: one form for that."""
        fields: dict[str, Any] = handler(self)
        return {k: v for k, v in fields.items() if k not in self.silent or v != self.silent[k]}

    @property
    def words(self) -> About:
        """What the agreement is about; nothing of it need have been given."""
        return self.about or About()

    @cached_property
    def hash(self) -> bytes:
        return hashlib.sha256(self.to_json()).digest()

    def describe(self) -> str:
        """Return the agreement in plain language, for the owner who approves it."""
        raise NotImplementedError

    def describe_words(self) -> list[str]:
        """Return what it is about, line by line, and what of that was not given."""
        texts = self.words.lines()
        lines = [f"  {title}: {text}" for title, text in texts.items() if text != NOT_GIVEN]
        if self.words.valid_until:
            lines.append(f"  After {self.words.valid_until} (UTC) nothing more is answered.")
        absent = [title for title, text in texts.items() if text == NOT_GIVEN]
        return lines + ([f"  {NOT_GIVEN}: {', '.join(absent)}"] if absent else [])

    def has_ended(self, day: date) -> bool:
        """Return whether this day lies after the last day of validity; never, without one."""
        last = self.words.valid_until
        return bool(last) and day > date.fromisoformat(last)

    def check_valid(self) -> None:
        """Raise PolicyRefused after the last day of validity (in UTC)."""
        if self.has_ended(datetime.now(UTC).date()):
            raise PolicyRefused(
                f"this {self.word} was valid until {self.words.valid_until}; make a new one"
            )

    def card(self, name: str) -> Card:
        """The party of that name, or a ConfigError that lists the names."""
        if name not in self.cards:
            names = ", ".join(self.cards)
            raise ConfigError(f"{name!r} is no party of this {self.word}; its parties are {names}")
        return self.cards[name]

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
            hash=self.hash,
            companies=self.companies,
            regulator=self.regulator,
            relay_name=self.relay_name,
            parameters=self.parameters,
            round_parts=self.round_parts,
        )


class PlanPublic(_Parties):
    """The part of a plan that the server is told: names, public keys and sizes, no purpose.

    With `round_parts` the session has rounds: the relay adds so many ciphertexts of the company to
    as many of the regulator (server/relay/_rounds.py).
    """

    word: ClassVar[str] = "public part of a plan"

    hash: Digest
    round_parts: Annotated[int, Field(ge=0, le=MAX_ROUND_PARTS)] = 0

    @model_validator(mode="after")
    def _rounds_fit(self) -> Self:
        if self.round_parts and len(self.companies) != 1:
            raise ValueError("rounds are between one company and one regulator")
        return self


def kind_of(path: Path) -> str:
    """The `kind` that an agreement's file names; empty for a run plan. Full checks come later."""
    kind = re.search(rb'"kind":"([a-z-]+)"', read_bounded(path, MAX_PLAN_BYTES))
    return kind[1].decode() if kind else ""
