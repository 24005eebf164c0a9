"""What a plan is about, in words: its owners approve them with the plan, its report prints them.

An empty text was not given, and is listed as that. Nothing here is checked by a machine.
"""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict

from isonomy.common.agreements.agreement import Line

NOT_GIVEN = "not given"


def _day(text: str) -> str:
    if text and date.fromisoformat(text).isoformat() != text:
        raise ValueError("must be a day such as 2027-01-31")
    return text


People = Literal["", "trained on", "held out", "live"]

TITLES = {
    "purpose": "purpose",
    "system": "system and version",
    "selected": "what a positive decision means",
    "people": "whose decisions these are",
    "legal_basis": "legal basis",
    "contact": "contact",
    "valid_until": "valid until",
}
_PEOPLE = {
    "trained on": "of people whom the model was trained on",
    "held out": "of people whom the model was not trained on",
    "live": "decisions that people really got",
}
CAVEATS: dict[People, str] = {
    "": "It was not given whether the model was trained on these people. If it was, other people's "
    "rates may differ, and accuracy is likely to be lower.",
    "trained on": "The model was trained on these people, so they are no sample of those whom it "
    "will meet: other people's rates may differ, and accuracy is likely to be lower.",
    "held out": "",
    "live": "",
}


class About(BaseModel):
    """The company's words about a plan; TITLES says what each field is."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    purpose: Line = ""
    system: Line = ""
    selected: Line = ""
    people: People = ""
    legal_basis: Line = ""
    contact: Line = ""
    valid_until: Annotated[str, AfterValidator(_day)] = ""

    def lines(self) -> dict[str, str]:
        """Return each title with its text, or that it was not given."""
        texts = {name: getattr(self, name) for name in TITLES}
        texts["people"] = _PEOPLE.get(self.people, "")
        return {title: texts[name] or NOT_GIVEN for name, title in TITLES.items()}

    @property
    def caveat(self) -> str:
        """What to bear in mind about these people; empty if nothing."""
        return CAVEATS[self.people]
