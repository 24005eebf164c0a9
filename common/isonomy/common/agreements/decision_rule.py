"""A rule that randomises decisions by group, as a file that the company hands to the regulator.

    P[decide 1 given base decision ŷ, group a] = p(ŷ, a), in millionths        (Jagielski et al.)

The company may know the rule (it follows from released counts) but not the groups; who applies it
must know the groups.

Whoever sees base decision and final decision of a person learns about the person's group. No
budget covers that: where p differs by group, so does what is seen.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from isonomy.common.agreements.plan import MILLION
from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.documents import Document
from isonomy.common.base.errors import DataError

Chance = Annotated[int, Field(ge=0, le=MILLION)]


class DecisionRule(Document):
    """Chances of deciding 1, by base decision and group."""

    word: ClassVar[str] = "decision rule"
    max_bytes: ClassVar[int] = 1 << 20

    schema_version: Literal["isonomy/rule/v1"] = "isonomy/rule/v1"
    attribute: str
    groups: tuple[str, ...]
    notion: str
    if_zero: tuple[Chance, ...]  # (groups,) millionths, where the base decision is 0
    if_one: tuple[Chance, ...]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        sizes = {len(self.groups), len(self.if_zero), len(self.if_one), len(set(self.groups))}
        if len(sizes) != 1 or len(self.groups) < 2:
            raise ValueError("one chance per group, and at least two different groups")
        return self

    @property
    def hash(self) -> str:
        return hash_bytes("isonomy/rule/v1", self.to_json()).hex()

    @property
    def largest_difference(self) -> int:
        """How far the chances of two groups are apart at most, in millionths."""
        return max(max(chances) - min(chances) for chances in (self.if_zero, self.if_one))

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
