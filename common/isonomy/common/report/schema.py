"""report.json: what a report holds, field by field. Integers and text only, in canonical JSON.

Unless a name says otherwise, numbers are millionths: a rate of 0.25 is 250000, a noised count of
1034.5 people is 1034500000. `Limits` are [value, low, high] of a 95 % interval that holds sampling
error and privacy noise; null where the noise drowns the number. Times are Unix seconds.

The report pins its own HTML (`html_sha256`), so one signature over report.json covers both files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.canonical import MAX_INTEGER, MAX_TIME
from isonomy.common.base.documents import Document
from isonomy.common.base.errors import ConfigError
from isonomy.common.keys.party import Hex32, PartyName
from isonomy.common.privacy.declarations import Whose
from isonomy.common.report.audit import MAX_SHOWN_GROUPS
from isonomy.common.report.audit_cells import CELL_NAMES, MEASURES, Cells
from isonomy.common.report.audit_intervals import Estimate

MAX_LINES = 200

Whole = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Time = Annotated[int, Field(ge=0, le=MAX_TIME)]
Signed = Annotated[int, Field(ge=-MAX_INTEGER, le=MAX_INTEGER)]
Text = Annotated[str, StringConstraints(max_length=4000)]
OfficerText = Annotated[str, StringConstraints(min_length=1, max_length=4000)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")]  # or nothing
Limits = tuple[Signed, Signed, Signed]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ReportSettings(_Part):
    """How the officer wants the numbers read. `four_fifths` 0 turns the screening signal off."""

    smallest_group: Whole = 50  # people, judged by noised counts
    four_fifths: Annotated[int, Field(ge=0, le=1_000_000)] = 800_000
    company: Annotated[str, StringConstraints(max_length=64)] = ""  # of several: which one's report


class Questions(_Part):
    """Questions of one kind that the regulator answered."""

    purpose: str
    kind: str
    attributes: str
    asked_by: Literal["company", "regulator"]
    strategy: str  # as the company declared them, within what plan and policy allow
    notion: str
    queries: Whole
    units: Whole
    first: Time
    last: Time


class Privacy(_Part):
    """What was used of the plan's cap. Units are 10^-12 of μ²; ε is rounded up."""

    spent_units: Whole
    spent_epsilon: Whole
    answers: Whole
    questions: tuple[Questions, ...] = Field(max_length=MAX_LINES)


class LedgerPoint(_Part):
    """Where the ledger stood: the report is rebuilt from the records up to this head."""

    ledger_id: Hex32
    head: Hex32
    records: Whole


class Inspections(_Part):
    """How often the company was inspected, while the plan ran or by file afterwards."""

    demanded: Whole
    opened: Whole
    passed: Whole
    failed: Whole  # those that were never opened included
    overdue: Whole  # never opened, and the plan's deadline is over


class Group(_Part):
    """Noised people per cell of one shown group; `members` number the released groups in it.

    `counts` is null where the noise drowns the group's size: who divides noise gets a false rate.
    """

    label: str
    members: tuple[Whole, ...]
    counts: tuple[Signed, ...] | None


class ShownTable(_Part):
    """One attribute or intersection: counts, and everything that follows from them."""

    attribute: str
    groups: tuple[Group, ...] = Field(max_length=MAX_SHOWN_GROUPS)
    withheld: tuple[str, ...]
    rates: Mapping[str, tuple[Limits | None, ...]]
    impact_ratios: tuple[Limits | None, ...]
    differences: Mapping[str, Limits | None]


class ReportedAudit(_Part):
    """One audit, rebuilt from one ledger record. `problem` says why an audit has no tables."""

    name: str
    selected: str
    whose: Whose  # these decisions are about; the company's word
    model_sha256: Sha256  # of the file that decided; the company's word, empty: not said
    cells: Cells
    attribute: str
    query_id: str
    sequence: Whole
    time: Time
    request_hash: Hex32
    units: Whole
    noise: Whole  # deviation of a count, in units of 1/row_bound people (`open_parameters`)
    people: Whole  # not millionths
    totals: tuple[Whole, ...]  # people per cell over all groups: the company's word
    without_value: Mapping[str, Limits] = {}  # people, by attribute with a group for them
    problem: str
    tables: tuple[ShownTable, ...]

    @model_validator(mode="after")
    def _tables_fit(self) -> ReportedAudit:
        """Return the audit if each table has one number for each cell, group and measure."""
        cells, rates = len(CELL_NAMES[self.cells]), {each.name for each in MEASURES[self.cells]}
        for table in self.tables:
            if table.rates.keys() != rates:
                raise ValueError("a table has other measures than its cells can tell")
            lengths = {len(table.impact_ratios), *map(len, table.rates.values())}
            counts = {len(each.counts) for each in table.groups if each.counts is not None}
            if lengths != {len(table.groups)} or counts - {cells}:
                raise ValueError("a table has not one number for each of its groups and cells")
        return self


class Unknowns(_Part):
    """People enrolled without a value of an attribute: a noised count, paid for in the ledger."""

    attribute: str
    query_id: str
    sequence: Whole
    people: Whole  # asked about; not millionths
    noise: Whole
    units: Whole
    share: Limits


class Statement(Document):
    """statement.json: what only the company can say about model and decisions.

    It is handed over as a file and shown as the company's word: the regulator checked none of it.
    Totals per cell are in it only where a query could not carry them (several companies).
    """

    word: ClassVar[str] = "company's statement"

    schema_version: Literal["isonomy/statement/v1"] = "isonomy/statement/v1"
    plan: Hex32
    company: PartyName
    model: Text = ""
    model_sha256: Sha256 = ""
    decisions: Mapping[str, Hex32] = {}  # audit name -> fingerprint of the audited decisions
    totals: Mapping[str, tuple[Whole, ...]] = {}  # query id -> people per cell, in millionths
    reason: Text = ""

    @property
    def sha256(self) -> str:
        """Of the file as it was handed over."""
        return hashlib.sha256(self.to_json()).hexdigest()


OFFICER_TEXTS = {  # what the record for Article 10(5) of the EU AI Act asks of the officer
    "reason": "Why the attributes were needed",
    "alternatives": "Why other data would not do",
    "access": "Who had access to the attributes",
    "retention": "When they will be deleted",
}


class OfficerWord(_Part):
    """What the regulator's officer says for the record of the EU AI Act's Article 10(5)."""

    reason: OfficerText
    alternatives: OfficerText
    access: OfficerText
    retention: OfficerText


class Deletion(_Part):
    """A deletion that the ledger notes."""

    time: Time
    what: str


class ReportFile(Document):
    """A whole report.json."""

    word: ClassVar[str] = "report"
    max_bytes: ClassVar[int] = 1 << 24

    schema_version: Literal["isonomy/report/v1"] = "isonomy/report/v1"
    created: Time
    software: str
    html_sha256: str = ""
    plan: Plan
    settings: ReportSettings
    privacy: Privacy
    ledger: LedgerPoint
    inspections: Inspections
    audits: tuple[ReportedAudit, ...]
    unknowns: tuple[Unknowns, ...]
    company: Statement | None
    officer: OfficerWord
    written_by: str  # the officer who had this report written
    approved_by: tuple[str, ...]  # the plan's approving officers, by the ledger
    deletions: tuple[Deletion, ...]


def millionths(value: float) -> int:
    """A float in the report's fixed point."""
    scaled = round(value * 1_000_000)
    if abs(scaled) > MAX_INTEGER:
        raise ConfigError("a number is too large for a report")
    return scaled


def limits_of(estimate: Estimate | None) -> Limits | None:
    """An estimate in the report's fixed point."""
    if estimate is None:
        return None
    return millionths(estimate.value), millionths(estimate.low), millionths(estimate.high)
