"""An audit's numbers in the report's fixed point, from a ledger record or from a report itself.

Both the writer and the verifier of a report go through `shown_table`: a verifier recomputes every
rate, interval and ratio from the counts in the report, and every count from the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from isonomy.common.base.errors import ConfigError
from isonomy.common.crypto.params import open_parameters
from isonomy.common.ledger.records import DebitRecord
from isonomy.common.people.cohort import group_count
from isonomy.common.privacy.declarations import Audit
from isonomy.common.report._audit_rates import GroupCounts, findings_of
from isonomy.common.report.audit import NoisedCounts, left_out_of, noise_covariance
from isonomy.common.report.audit_cells import CELL_NAMES, Cells
from isonomy.common.report.audit_intervals import NoisedRate, rate_interval
from isonomy.common.report.audit_unknowns import declaration_of, released_attribute
from isonomy.common.report.schema import (
    Group,
    Limits,
    ReportedAudit,
    ReportSettings,
    ShownTable,
    Unknowns,
    limits_of,
    millionths,
)

_PLAUSIBLE = 8.0  # noise deviations: beyond that the totals contradict the answer
Groups = Mapping[str, Sequence[str]]


def audit_of(
    debit: DebitRecord,
    groups: Groups,
    settings: ReportSettings,
    stated_totals: Mapping[str, Sequence[int]],
) -> ReportedAudit | None:
    """The audit that a ledger record is, or None if it is none.

    `stated_totals` are in millionths by query id, from the company's statement: only for audits of
    several companies, whose declaration cannot carry them.
    """
    event = debit.event
    declaration = declaration_of(debit).content
    if not isinstance(declaration, Audit):
        return None
    totals = tuple(1000 * total for total in declaration.totals)  # thousandths to millionths
    totals = totals or tuple(stated_totals.get(debit.query_id, ()))
    problem, tables, without_value = "", list[ShownTable](), dict[str, Limits | None]()
    try:
        problem = _problem(debit, declaration, groups)
        if not problem:
            noised = _counts(debit, declaration, groups, totals)
            problem = _contradiction(noised, totals, int(event["people"]))
            if not problem:
                tables = _tables(noised, settings)
                without_value = {n: limits_of(size) for n, size in noised.without_value().items()}
    except ConfigError as error:
        problem = str(error)
    return ReportedAudit(
        name=declaration.name,
        selected=declaration.selected,
        whose=declaration.whose,
        model_sha256=declaration.model_sha256,
        cells=declaration.cells,
        attribute=str(event["attributes"]),
        query_id=debit.query_id,
        sequence=debit.seq,
        time=debit.time,
        request_hash=debit.request_hash.hex(),
        units=debit.units,
        noise=int(event["noise"]),
        people=int(event["people"]),
        totals=totals,
        without_value={name: limits for name, limits in without_value.items() if limits},
        problem=problem,
        tables=tuple(tables),
    )


def shown_table(
    attribute: str,
    groups: Sequence[Group],
    withheld: Sequence[str],
    *,
    cells: Cells,
    released: int,
    sigma: float,
) -> ShownTable:
    """Everything that follows from a table's counts; a pure function of them.

    Counts of a group whose size the noise drowns are left out of what it returns.
    """
    nobody = (0,) * len(CELL_NAMES[cells])
    counts = np.array([group.counts or nobody for group in groups], dtype=np.float64) / 1e6
    findings = findings_of(
        GroupCounts(
            cells,
            counts.reshape(len(groups), len(CELL_NAMES[cells])),
            noise_covariance([group.members for group in groups], released),
            sigma,
            left_out_of(groups),
        )
    )
    sizes = findings.rates["selection_rate"]
    return ShownTable(
        attribute=attribute,
        groups=tuple(
            group.model_copy(update={"counts": None}) if size is None else group
            for group, size in zip(groups, sizes, strict=True)
        ),
        withheld=tuple(withheld),
        rates={name: tuple(map(limits_of, rates)) for name, rates in findings.rates.items()},
        impact_ratios=tuple(map(limits_of, findings.impact_ratios)),
        differences={notion: limits_of(gap) for notion, gap in findings.differences.items()},
    )


def unknowns_of(debit: DebitRecord, groups: Groups, row_bound: int) -> Unknowns | None:
    """The released share of people without a value, if the record is the regulator's release."""
    event, attribute = debit.event, released_attribute(debit)
    if attribute is None or attribute not in groups:
        return None
    people, noise = int(event["people"]), int(event["noise"])
    count = int(np.frombuffer(debit.answer, "<i8")[0]) / row_bound
    rate = NoisedRate(count, float(people), (noise / row_bound) ** 2, 0.0, 0.0)
    share = limits_of(rate_interval(rate))
    if share is None:
        return None
    return Unknowns(
        attribute=attribute,
        query_id=debit.query_id,
        sequence=debit.seq,
        people=people,
        noise=noise,
        units=debit.units,
        share=share,
    )


def _problem(debit: DebitRecord, declaration: Audit, groups: Groups) -> str:
    """Why the record cannot be read as the audit that it says it is; empty if it can."""
    event = debit.event
    expected = {
        "kind": "open",
        "shape": "groups",
        "mechanism": "gaussian",
        "norm": "1.0",
        "columns": len(CELL_NAMES[declaration.cells]),
    }
    wrong = [name for name, value in expected.items() if event.get(name) != value]
    if wrong:
        return f"the query calls itself an audit but is none: {', '.join(wrong)}"
    free = group_count(str(event["attributes"]), groups) - 1  # ConfigError: unknown attribute
    if len(debit.answer) != 8 * free * len(CELL_NAMES[declaration.cells]):
        return "the stored answer does not have the size of its question"
    return ""


def _counts(
    debit: DebitRecord,
    declaration: Audit,
    groups: Groups,
    totals: Sequence[int],
) -> NoisedCounts:
    """Return the counts in a debit's answer; the last group is the total minus the others."""
    columns = len(CELL_NAMES[declaration.cells])
    row_bound = open_parameters(int(debit.event["people"])).row_bound
    if len(totals) != columns:
        raise ConfigError(
            "the totals per cell were not handed over, so the last group cannot be told"
        )
    released = np.frombuffer(debit.answer, "<i8").reshape(-1, columns) / row_bound
    last = np.array(totals, dtype=np.float64) / 1e6 - released.sum(axis=0)
    return NoisedCounts(
        str(debit.event["attributes"]),
        groups,
        declaration.cells,
        np.vstack([released, last]),
        int(debit.event["noise"]) / row_bound,
    )


def _contradiction(noised: NoisedCounts, totals: Sequence[int], people: int) -> str:
    """The company's totals against the answer: looks at noised numbers only."""
    if abs(sum(totals) / 1e6 - people) > 0.01:
        return "the company's totals per cell do not add up to the people it asked about"
    free = len(noised.counts) - 1
    if noised.counts.min() < -_PLAUSIBLE * noised.sigma * np.sqrt(free):
        return "the company's totals per cell contradict the noised answer"
    return ""


def _tables(noised: NoisedCounts, settings: ReportSettings) -> list[ShownTable]:
    """Return every table of an audit, in the report's fixed point."""
    return [
        shown_table(
            table.attribute,
            [
                Group(
                    label=group.label,
                    members=group.members,
                    counts=tuple(millionths(float(value)) for value in row),
                )
                for group, row in zip(table.groups, table.counts.counts, strict=True)
            ],
            table.withheld,
            cells=noised.cells,
            released=len(noised.counts),
            sigma=noised.sigma,
        )
        for table in noised.tables(settings.smallest_group)
    ]
