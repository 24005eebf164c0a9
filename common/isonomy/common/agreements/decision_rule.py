"""A rule that randomises decisions by group, as a file that the company hands to the regulator.

    P[decide 1 given base decision ŷ, group a] = p(ŷ, a), in millionths        (Jagielski et al.)

The company may know the rule (it follows from released counts) but not the groups; who applies it
must know the groups. Canonical JSON: integers and strings only, so that a hash names one rule.

Whoever sees base decision and final decision of a person learns about the person's group. No
budget covers that: where p differs by group, so does what is seen.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from isonomy.common.agreements.plan import MILLION
from isonomy.common.base.canonical import canonical_json, hash_bytes, parse_canonical
from isonomy.common.base.errors import ConfigError, DataError, ProtocolError

MAX_RULE_BYTES = 1 << 20
Chance = Annotated[int, Field(ge=0, le=MILLION, strict=True)]


class DecisionRule(BaseModel):
    """Chances of deciding 1, by base decision and group."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_: Literal["isonomy/rule/v1"] = Field(default="isonomy/rule/v1", alias="schema")
    attribute: str
    groups: tuple[str, ...]
    notion: str
    if_zero: tuple[Chance, ...]  # (groups,) millionths, where the base decision is 0
    if_one: tuple[Chance, ...]

    @model_validator(mode="after")
    def _fits(self) -> DecisionRule:
        sizes = {len(self.groups), len(self.if_zero), len(self.if_one), len(set(self.groups))}
        if len(sizes) != 1 or len(self.groups) < 2:
            raise ValueError("one chance per group, and at least two different groups")
        return self

    def to_json(self) -> bytes:
        """Canonical bytes."""
        shown = self.model_dump(by_alias=True)
        lists = {key: list(v) if isinstance(v, tuple) else v for key, v in shown.items()}
        return canonical_json(lists)

    @classmethod
    def from_json(cls, raw: bytes) -> DecisionRule:
        """Read a rule; ConfigError says what is wrong with it."""
        try:
            given = parse_canonical(raw.strip(), max_bytes=MAX_RULE_BYTES)
            return cls.model_validate(given)
        except ProtocolError as error:
            raise ConfigError(f"not a decision rule: {error}") from None
        except ValidationError as error:
            where = ".".join(str(part) for part in error.errors()[0]["loc"]) or "rule"
            raise ConfigError(f"not a decision rule: {where}: {error.errors()[0]['msg']}") from None

    @property
    def hash(self) -> str:
        return hash_bytes("isonomy/rule/v1", self.to_json()).hex()

    @property
    def largest_difference(self) -> int:
        """How far the chances of two groups are apart at most, in millionths."""
        return max(max(own) - min(own) for own in (self.if_zero, self.if_one))

    def apply(
        self, base: NDArray[np.int64], groups: NDArray[np.int64], draws: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Decisions from base decisions, group numbers and draws uniform on 0 … 999,999."""
        if not base.shape == groups.shape == draws.shape or not np.isin(base, (0, 1)).all():
            raise DataError("base decisions are 0 or 1, one per person")
        if groups.size and not 0 <= int(groups.min()) <= int(groups.max()) < len(self.groups):
            raise DataError(f"group numbers lie between 0 and {len(self.groups) - 1}")
        chances = np.array([self.if_zero, self.if_one], dtype=np.int64)[base, groups]
        return (draws < chances).astype(np.int64)


__all__ = ["DecisionRule"]
