"""The feature map of lenders who pool: columns, ranges and levels, agreed before anything is asked.

Several companies can add up Σ φ(x) only if φ is the same function at each of them. So φ follows
from this document and from nobody's data (company.fair.inputs.public_map). It stands in the plan:
whoever approves the plan approves the map.

    name        how every lender's table calls the column
    low, high   a column of numbers; what lies outside is cut off
    typical     a common value, in the middle if it is not given
    spread      a common distance from it, a quarter of the range if it is not given
    levels      a column of words, the most common first; a value that is not listed counts as none
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from isonomy.common.agreements.about import one_line
from isonomy.common.base.canonical import MAX_INTEGER
from isonomy.common.base.documents import Document

MAX_COLUMNS, MAX_LEVELS = 200, 50


def _number(text: str) -> str:
    try:
        usable = not text or Decimal(text).is_finite()
    except InvalidOperation:
        usable = False
    if not usable:
        raise ValueError("must be a number, such as 17 or 0.5")
    return text


Text = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(one_line)]
Number = Annotated[str, Field(max_length=32), AfterValidator(_number)]  # text: it is kept exactly


class PublicColumn(BaseModel):
    """One column that every lender has: numbers with a range, or words with levels."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Text
    low: Number = ""
    high: Number = ""
    typical: Number = ""
    spread: Number = ""
    levels: Annotated[tuple[Text, ...], Field(max_length=MAX_LEVELS)] = ()

    @model_validator(mode="after")
    def _range_or_levels(self) -> PublicColumn:
        numbers = (self.low, self.high, self.typical, self.spread)
        if self.levels:
            if any(numbers) or len(set(self.levels)) != len(self.levels) or len(self.levels) < 2:
                raise ValueError(
                    f"column {self.name!r} needs two or more different levels, and no range"
                )
            return self
        if not (self.low and self.high) or not Decimal(self.low) < Decimal(self.high):
            raise ValueError(f"column {self.name!r} needs low < high, or levels")
        if not Decimal(self.low) <= self.middle <= Decimal(self.high):
            raise ValueError(f"column {self.name!r}: typical lies between low and high")
        if not 0 < self.distance <= Decimal(self.high) - Decimal(self.low):
            raise ValueError(f"column {self.name!r}: spread lies between 0 and high − low")
        return self

    @property
    def middle(self) -> Decimal:
        """A common value of a column of numbers."""
        return Decimal(self.typical or (Decimal(self.low) + Decimal(self.high)) / 2)

    @property
    def distance(self) -> Decimal:
        """A common distance from it."""
        return Decimal(self.spread or (Decimal(self.high) - Decimal(self.low)) / 4)


class PublicFeatures(Document):
    """All columns, and the seed from which the random features are drawn."""

    word: ClassVar[str] = "feature map"

    columns: Annotated[tuple[PublicColumn, ...], Field(min_length=1, max_length=MAX_COLUMNS)]
    seed: Annotated[int, Field(ge=0, le=min(MAX_INTEGER, 2**32 - 1))]

    @model_validator(mode="after")
    def _names_differ(self) -> PublicFeatures:
        names = [column.name for column in self.columns]
        if len(set(names)) != len(names):
            raise ValueError("two columns have the same name")
        return self

    def describe(self) -> str:
        """Return the map in a sentence, for the owner who approves the plan."""
        names = ", ".join(column.name for column in self.columns)
        return (
            f"lets the companies learn together who is who from {len(self.columns)} columns that "
            f"each of them has ({names}), by public ranges and levels; each learns the sums of all "
            "companies' features"
        )
