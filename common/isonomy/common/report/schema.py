"""report.json: what a report holds, field by field. Integers and text only, in canonical JSON.

Unless a name says otherwise, numbers are millionths: a rate of 0.25 is 250000, a noised count of
1034.5 people is 1034500000. `Limits` are [value, low, high] of a 95 % interval that holds sampling
error and privacy noise; null where the noise drowns the number. Times are Unix seconds.

The report pins its own HTML (`html_sha256`), so one signature over report.json covers both files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from isonomy.common.base.canonical import MAX_INTEGER, canonical_json, parse_canonical
from isonomy.common.base.errors import ConfigError, ProtocolError
from isonomy.common.keys.party import Card, Hex32
from isonomy.common.report.audit import MAX_SHOWN_GROUPS
from isonomy.common.report.audit_cells import Cells

SCHEMA: Literal["isonomy/report/v1"] = "isonomy/report/v1"
MAX_REPORT_BYTES = 1 << 24
MAX_LINES = 200

Whole = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Signed = Annotated[int, Field(ge=-MAX_INTEGER, le=MAX_INTEGER)]
Text = Annotated[str, StringConstraints(max_length=4000)]
Limits = tuple[Signed, Signed, Signed]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Settings(_Part):
    """How the officer wanted the numbers read. `four_fifths` 0 turns the screening signal off."""

    smallest_group: Whole = 50  # people, judged by noised counts
    four_fifths: Annotated[int, Field(ge=0, le=1_000_000)] = 800_000
    confidence: Literal[950_000] = 950_000


class Run(_Part):
    """What was agreed: from the plan, whose hash binds all of it."""

    plan: Hex32
    name: str
    strategy: str
    notion: str
    tolerance: Whole
    groups: Mapping[str, tuple[str, ...]]
    people: Whole  # not millionths
    cohort_root: Hex32
    parameters: str
    companies: tuple[Card, ...]
    regulator: Card
    inspection_deadline: str


class Asked(_Part):
    """Questions of one kind that the regulator answered."""

    purpose: str
    kind: str
    attributes: str
    queries: Whole
    units: Whole
    first: Whole
    last: Whole


class Privacy(_Part):
    """The guarantee (cap) and what was used of it. Units are 10^-12 of μ²; ε is rounded up."""

    delta: str
    cap_units: Whole
    cap_epsilon: Whole
    spent_units: Whole
    spent_epsilon: Whole
    individual_filter: bool
    record_privacy: bool
    answers: Whole
    asked: tuple[Asked, ...] = Field(max_length=MAX_LINES)


class LedgerPoint(_Part):
    """Where the ledger stood: the report is rebuilt from the records up to this head."""

    ledger_id: Hex32
    head: Hex32
    records: Whole


class Inspections(_Part):
    """How often the company was inspected. Rate 0: not while the plan ran.

    `demanded` counts all inspected requests, those that were opened by file afterwards as well.
    """

    rate: Whole
    auditor: str
    waits: bool  # no answer before the verdict
    demanded: Whole
    opened: Whole
    passed: Whole
    failed: Whole


class Group(_Part):
    """Noised people per cell of one shown group; `members` number the released groups in it."""

    label: str
    members: tuple[Whole, ...]
    counts: tuple[Signed, ...]


class ShownTable(_Part):
    """One attribute or intersection: counts, and everything that follows from them."""

    attribute: str
    groups: tuple[Group, ...] = Field(max_length=MAX_SHOWN_GROUPS)
    withheld: tuple[str, ...]
    rates: Mapping[str, tuple[Limits | None, ...]]
    impact_ratios: tuple[Limits | None, ...]
    differences: Mapping[str, Limits | None]


class Audit(_Part):
    """One audit, rebuilt from one ledger record. `problem` says why an audit has no tables."""

    name: str
    selected: str
    cells: Cells
    attribute: str
    query_id: str
    sequence: Whole
    time: Whole
    request_hash: Hex32
    units: Whole
    noise: Whole  # deviation of a count, in units of 1/row_bound people
    people: Whole  # not millionths
    totals: tuple[Whole, ...]  # people per cell over all groups: the company's word
    problem: str
    tables: tuple[ShownTable, ...]


class Unknowns(_Part):
    """People enrolled without a value of an attribute: a noised count, paid for in the ledger."""

    attribute: str
    query_id: str
    sequence: Whole
    people: Whole  # asked about; not millionths
    noise: Whole
    units: Whole
    share: Limits


class CompanyWord(_Part):
    """What the company says about model and decisions. The regulator checked none of it."""

    sha256: Hex32  # of the statement as it was handed over
    company: str
    model: Text
    model_sha256: str
    decisions: Mapping[str, Hex32]  # audit name -> SHA-256 of ids, labels and decisions
    reason: Text


class OfficerWord(_Part):
    """What the regulator's officer says for the record of the EU AI Act's Article 10(5)."""

    reason: Text = ""
    alternatives: Text = ""
    access: Text = ""
    retention: Text = ""


class Deletion(_Part):
    """A deletion that the ledger notes."""

    time: Whole
    what: str


class ReportFile(_Part):
    """A whole report.json."""

    schema_version: Literal["isonomy/report/v1"] = SCHEMA
    created: Whole
    software: str
    html_sha256: str = ""
    run: Run
    settings: Settings
    privacy: Privacy
    ledger: LedgerPoint
    inspections: Inspections
    audits: tuple[Audit, ...]
    unknowns: tuple[Unknowns, ...]
    company: CompanyWord | None
    officer: OfficerWord
    deletions: tuple[Deletion, ...]

    def to_json(self) -> bytes:
        """Canonical bytes: what is signed and saved."""
        return canonical_json(self.model_dump(mode="json"))

    @classmethod
    def from_json(cls, data: bytes) -> ReportFile:
        """Total: whatever the bytes are, a report or a ProtocolError."""
        parse_canonical(data, max_bytes=MAX_REPORT_BYTES)
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            places = sorted({".".join(map(str, e["loc"])) or "report" for e in error.errors()})
            raise ProtocolError(
                f"not a report of schema {SCHEMA}: look at {', '.join(places[:5])}"
            ) from None


def millionths(value: float) -> int:
    """A float in the report's fixed point."""
    scaled = round(value * 1_000_000)
    if abs(scaled) > MAX_INTEGER:
        raise ConfigError("a number is too large for a report")
    return scaled


def plain(limits: Limits | None) -> tuple[float, float, float] | None:
    """Fixed point back to floats."""
    return None if limits is None else (limits[0] / 1e6, limits[1] / 1e6, limits[2] / 1e6)


__all__: list[Any] = [
    "SCHEMA",
    "Asked",
    "Audit",
    "CompanyWord",
    "Deletion",
    "Group",
    "Inspections",
    "LedgerPoint",
    "Limits",
    "OfficerWord",
    "Privacy",
    "ReportFile",
    "Run",
    "Settings",
    "ShownTable",
    "Unknowns",
    "millionths",
    "plain",
]
