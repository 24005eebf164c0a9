"""What a plan is about, in words: its owners approve them with the plan, its report prints them.

An empty text was not given, and is listed as that. Nobody checks these words, but one binds: after
`valid_until` the agreement gets no answers (Agreement.check_valid).
"""

from __future__ import annotations

from datetime import date
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints

NOT_GIVEN = "not given"


def one_line(text: str) -> str:
    """An owner reads these words before approving: no line breaks or escape codes among them."""
    if not text.isprintable() or text != text.strip():
        raise ValueError("must be printable text in one line, without blanks at its ends")
    return text


Line = Annotated[str, StringConstraints(max_length=500), AfterValidator(one_line)]  # or nothing


def _day(text: str) -> str:
    if text and date.fromisoformat(text).isoformat() != text:
        raise ValueError("must be a day such as 2027-01-31")
    return text


Day = Annotated[str, AfterValidator(_day)]

TITLES = {
    "purpose": "purpose",
    "system": "system and version",
    "deployer": "deployer",
    "selected": "what a positive decision means",
    "legal_basis": "legal basis",
    "contact": "contact",
    "valid_until": "valid until",
    "distributed": "system in use since",
    "data_source": "source of the data",
    "data_dates": "dates of the data",
}


class About(BaseModel):
    """The company's words about an agreement; TITLES says what each field is."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    purpose: Line = ""
    system: Line = ""
    deployer: Line = ""
    selected: Line = ""
    legal_basis: Line = ""
    contact: Line = ""
    valid_until: Day = ""
    distributed: Day = ""
    data_source: Line = ""
    data_dates: Line = ""

    def lines(self) -> dict[str, str]:
        """Return each title with its text, or that it was not given."""
        return {title: getattr(self, name) or NOT_GIVEN for name, title in TITLES.items()}
