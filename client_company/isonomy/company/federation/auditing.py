"""Audit any model's decisions on the aligned people: rates by group with honest intervals.

    result = audit(oracle, decisions, target, ids=ids, name="after", share=0.03)
    print(result)                         # rates, impact ratios, differences, with 95 % intervals

It asks one open query (report.audit_cells). The regulator sees the noised answer too and puts it
into its report. The price is known beforehand: `price(oracle, share=0.03)`. The name says which
question it is: repeated as it was, from any script of the plan, it gets the same answer for free.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from isonomy.common.base.errors import BudgetExceeded, ConfigError, DataError, ReplayRefused
from isonomy.common.people.cohort import INTERSECTION, without_value
from isonomy.common.privacy.accounting import epsilon_of
from isonomy.common.privacy.declarations import SCORED, Audit, Cells, Declaration, Whose
from isonomy.common.privacy.queries import cost_of
from isonomy.common.report.audit import SMALLEST_GROUP, AuditTable, NoisedCounts, check_shown
from isonomy.common.report.audit_intervals import Estimate
from isonomy.common.sums.channel import Needs, check_needs
from isonomy.common.sums.oracle import GroupOracle, Receipt
from isonomy.company.federation.decisions import favourable

MAX_NOISE = 0.1  # an audit is useless if the noise of an average group's size is a larger part

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Price:
    """What an audit costs and what it can show, known before anything is asked."""

    share: float
    epsilon_alone: float  # of this audit, were it the only release
    delta: float
    count_deviation: float  # privacy noise of an average group's size, in people
    half_width: float  # of the 95 % interval of an average group's rate near 1/2

    def __str__(self) -> str:
        return (
            f"This audit takes {self.share:.1%} of the plan's budget (alone: ε = "
            f"{self.epsilon_alone:.3g} at δ = {self.delta:g}). Group sizes carry noise of ± "
            f"{self.count_deviation:.1f} people; a rate of an average group will be known to about "
            f"± {100 * self.half_width:.1f} points."
        )


def price(
    oracle: GroupOracle,
    *,
    share: float | None = None,
    attribute: str | None = None,
    people: int | None = None,
    labelled: bool = True,
) -> Price:
    """What an audit would cost and show. Asks nothing, spends nothing.

    Without a share it takes what the plan keeps for each audit, or a twentieth of the plan.
    """
    share = _share(oracle, share)
    if not 0 < share <= 1:
        raise ConfigError(f"share is a part of the plan's budget between 0 and 1; got {share}")
    labels = oracle.labels(_expression(oracle, attribute))
    cost = cost_of("groups", (len(labels),), oracle.params)
    units = int(oracle.budget.cap_units * share)
    sigma = cost.sigma_for(units) / oracle.params.row_bound
    cells = 4 if labelled else 2
    average = _average(people or len(oracle.cohort), labels)
    # x − n/2 over 4 cells is half the sum of ±cells: its noise is σ·√cells/2.
    rate = np.sqrt(average / 4 + sigma**2 * cells / 4) / average
    return Price(
        share=share,
        epsilon_alone=epsilon_of(units, oracle.budget.delta),
        delta=oracle.budget.delta,
        count_deviation=float(sigma * np.sqrt(cells)),
        half_width=float(1.96 * rate),
    )


@dataclass(frozen=True)
class AuditResult:
    """An audit as the company sees it. `tables` are by attribute, then by intersection."""

    name: str
    selected: str
    counts: NoisedCounts
    tables: tuple[AuditTable, ...]
    totals: tuple[float, ...]
    decisions_sha256: str  # under `salt`, which the company keeps to itself
    salt: bytes = field(repr=False)
    receipt: Receipt
    price: Price
    model_sha256: str = ""  # of the file that decided; empty: not said

    def table(self, attribute: str | None = None) -> AuditTable:
        """The table of one attribute or intersection; None: the finest."""
        for table in self.tables:
            if table.attribute == (attribute or self.counts.expression):
                return table
        names = ", ".join(table.attribute for table in self.tables)
        raise ConfigError(f"this audit has no table by {attribute!r}; there are {names}")

    def fields(self) -> dict[str, object]:
        """For machines: value, low and high of every rate, ratio and difference."""
        return {
            "name": self.name,
            "selected": self.selected,
            "model_sha256": self.model_sha256,
            "query_id": self.receipt.query_id,
            "share": self.price.share,
            "epsilon_alone": self.price.epsilon_alone,
            "tables": [_table_fields(table) for table in self.tables],
        }

    def __str__(self) -> str:
        lines = [f"Audit {self.name!r}; selected means decision = {self.selected}."]
        if self.model_sha256:
            lines.append(f"Audited file: SHA-256 {self.model_sha256}.")
        for table in self.tables:
            lines += ["", f"By {table.attribute}, with 95 % intervals:", *_table_lines(table)]
        return "\n".join(lines)


def audit(
    oracle: GroupOracle,
    decisions: ArrayLike,
    target: ArrayLike | None = None,
    *,
    ids: Sequence[object] | None = None,
    name: str = "decisions",
    attribute: str | Sequence[str] | None = None,
    share: float | None = None,
    pos_label: Any = None,
    whose: Whose = "",
    model_file: str | Path | None = None,
    smallest_group: float = SMALLEST_GROUP,
    alone: bool = False,
) -> AuditResult:
    """Have hard decisions audited; spends `share` of the plan's budget, once. Returns the rates.

    Without a share it takes what the plan keeps for each audit, or a twentieth of the plan.

    | parameter | meaning |
    |---|---|
    | decisions, target | one decision (and one label) per row; without labels: selection rates |
    | ids | whose row it is; only a rehearsal may leave it out: row i is person i |
    | name | how report and ledger call it: "before", "after", …; one audit per name and plan |
    | attribute | an attribute, or several to be crossed (all coarser tables come free) |
    | pos_label | the class that counts as selected; None: 1, for 0/1, -1/1 and booleans |
    | whose | people the model was "trained on", "held out", or "live": the report says so |
    | model_file | the model's file (ONNX or other): the report names it by its SHA-256 |
    | smallest_group | smaller groups (by noised size) are pooled or withheld |
    | alone | of several companies: only this one's decisions, which need no other company |
    """
    check_needs(Needs("an audit", pooled=True), oracle.capabilities)
    share, model = _share(oracle, share), file_sha256(model_file)
    expression = _expression(oracle, attribute)
    check_shown(expression, oracle.groups)
    cells, rows, selected_class = _rows(decisions, target, pos_label)
    positions = oracle.people_of(ids, len(rows), decisions, target)
    persons, person_of_row = np.unique(positions, return_inverse=True)
    folded = np.zeros((len(persons), rows.shape[1]))
    np.add.at(folded, person_of_row, rows)
    folded /= folded.sum(axis=1, keepdims=True)  # a person with several rows counts once
    cost = price(
        oracle,
        share=share,
        attribute=expression,
        people=len(persons),
        labelled=cells == "yd",
    )
    _check_useful(cost, _average(len(persons), oracle.labels(expression)))
    joint = oracle.capabilities.pooled and not alone
    totals = tuple(float(total) for total in folded.sum(axis=0).round(3))
    # Where several companies ask together, nobody knows the totals before the answer.
    stated = () if joint else tuple(round(1000 * total) for total in totals)
    try:
        release = oracle.open_sum(
            folded,
            norm=1.0,
            attribute=expression,
            people=persons,
            share=share,
            purpose=f"audit {name!r}",
            declaration=Declaration(Audit(name, cells, stated, selected_class, whose, model)),
            alone=alone,
        )
    except ReplayRefused:
        raise ReplayRefused(
            f"this plan has an audit {name!r} already, of other decisions, people, price or model "
            "file. "
            "Nothing was spent. Give this one another name."
        ) from None
    if release.receipt is None:
        raise DataError("the oracle answered an audit without a record")
    counts = NoisedCounts(
        expression, oracle.groups, cells, release.values, float(release.deviation[0])
    )
    salt = os.urandom(32)
    if joint:
        totals = tuple(float(total) for total in release.values.sum(axis=0).round(3))
    return AuditResult(
        name=name,
        selected=selected_class,
        counts=counts,
        tables=tuple(counts.tables(smallest_group)),
        totals=totals,
        decisions_sha256=_fingerprint(oracle, positions, rows, salt),
        salt=salt,
        receipt=release.receipt,
        price=cost,
        model_sha256=model,
    )


def audit_scores(oracle: GroupOracle, scores: ArrayLike, **options: Any) -> AuditResult:
    """Have scores audited: shares of people above the median of all rows, by group.

    These are the scoring rates of New York's Local Law 144. `options` are those of `audit`, but for
    labels and `pos_label`. Returns an audit whose selection rates are these shares.
    """
    if oracle.capabilities.pooled and not options.get("alone"):
        raise ConfigError(
            "the median of several companies' scores is known to none of them: audit them alone "
            "(alone=True). Nothing was asked"
        )
    values = np.asarray(scores)
    if values.ndim != 1 or values.dtype.kind not in "fiu" or not np.isfinite(values).all():
        raise DataError("scores must be one finite number per row")
    above = values > np.median(values) if len(values) else values
    if not above.any():
        raise DataError("no score is above the median of all scores, so there is nothing to count")
    decisions = np.where(above, SCORED, "a score at most the median")
    return audit(oracle, decisions, pos_label=SCORED, **options)


def file_sha256(path: str | Path | None) -> str:
    """The SHA-256 of a model's file; nothing for no file."""
    if path is None:
        return ""
    try:
        with Path(path).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            empty = not file.tell()
    except OSError as error:
        raise ConfigError(f"cannot read the model {path}: {error.strerror}") from None
    if empty:
        raise ConfigError(f"the model {path} is an empty file")
    return digest


def _share(oracle: GroupOracle, share: float | None) -> float:
    terms = oracle.terms
    return terms.audits.share(terms.cap_units) if share is None else share


def _expression(oracle: GroupOracle, attribute: str | Sequence[str] | None) -> str:
    if attribute is None:
        return INTERSECTION.join(oracle.groups)
    return attribute if isinstance(attribute, str) else INTERSECTION.join(attribute)


def _rows(
    decisions: ArrayLike, target: ArrayLike | None, pos_label: Any
) -> tuple[Cells, NDArray[np.float64], str]:
    """One-hot rows of (label, decision) cells: the favourable class counts as 1, others as 0."""
    decided = np.asarray(decisions)
    if decided.ndim != 1 or not decided.size:
        raise DataError("decisions must be one hard decision per row")
    labels = None if target is None else np.asarray(target)
    if labels is not None and labels.shape != decided.shape:
        raise DataError(f"{len(decided)} decisions, but labels of shape {labels.shape}")
    values = _values(decided, "decision") | (set() if labels is None else _values(labels, "label"))
    selected = favourable(sorted(values, key=str), pos_label)
    d = (decided == selected).astype(np.int64)
    if labels is None:
        return "d", np.eye(2)[d], str(selected)
    return "yd", np.eye(4)[2 * (labels == selected).astype(np.int64) + d], str(selected)


def _values(column: NDArray[Any], what: str) -> set[Any]:
    """The distinct decisions or labels; DataError for gaps, which no class stands for."""
    if missing := int(pd.isna(column).sum()):
        raise DataError(
            f"{missing} rows have no {what} (NaN or None); leave them out. Nothing was asked."
        )
    return set(np.unique(column).tolist())


def _average(people: int, labels: Sequence[str]) -> float:
    """People in an average group of those that are compared."""
    return people / sum(not without_value(label) for label in labels)


def _check_useful(cost: Price, average: float) -> None:
    if cost.count_deviation > MAX_NOISE * average:
        share = min(cost.share * (cost.count_deviation / (MAX_NOISE * average)) ** 2, 99.0)
        raise BudgetExceeded(
            f"a share of {cost.share:.2%} would tell nothing: group sizes would carry noise of ± "
            f"{cost.count_deviation:.0f} people, for {average:.0f} people in an average group. "
            f"Nothing was asked. About {share:.1%} of this plan's budget is needed; or audit more "
            "people, or fewer groups at a time."
        )


def _fingerprint(
    oracle: GroupOracle, positions: Ints, rows: NDArray[np.float64], salt: bytes
) -> str:
    """SHA-256 over salt, cohort, people and their cells: names the decisions, shows none."""
    # Without the salt, who knows all cells but a few people's could try these out. The root stands
    # for the ids: equal hashes mean the same people in the same order.
    digest = hashlib.sha256(salt + oracle.cohort.root)
    digest.update(positions.astype("<i8").tobytes())
    digest.update(rows.argmax(axis=1).astype("<i8").tobytes())
    return digest.hexdigest()


def _table_lines(table: AuditTable) -> list[str]:
    findings, people = table.findings(), table.counts.people()
    lines = []
    for number, group in enumerate(table.groups):
        parts = [f"{_words(name)} {_show(of[number])}" for name, of in findings.rates.items()]
        ratio = _show(findings.impact_ratios[number])
        silent = without_value(group.label)
        parts.append("left out of comparisons" if silent else f"impact ratio {ratio}")
        size = people[number]
        if size is None:
            lines.append(f"  {group.label}: hidden by noise")
        else:
            lines.append(f"  {group.label} (about {size:,.0f} people): " + "; ".join(parts))
    for label in table.withheld:
        lines.append(f"  {label}: withheld, too few people")
    for notion, difference in findings.differences.items():
        lines.append(f"  largest difference, {_words(notion)}: {_show(difference)}")
    return lines


def _table_fields(table: AuditTable) -> dict[str, object]:
    """A table for machines: every estimate as [value, low, high]."""
    findings, people = table.findings(), table.counts.people()
    return {
        "attribute": table.attribute,
        "withheld": list(table.withheld),
        "groups": [
            {
                "label": group.label,
                "people": people[number],
                **{name: _triple(rates[number]) for name, rates in findings.rates.items()},
                "impact_ratio": _triple(findings.impact_ratios[number]),
            }
            for number, group in enumerate(table.groups)
        ],
        "differences": {name: _triple(each) for name, each in findings.differences.items()},
    }


def _triple(estimate: Estimate | None) -> list[float] | None:
    return None if estimate is None else [estimate.value, estimate.low, estimate.high]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _show(estimate: Estimate | None) -> str:
    if estimate is None:
        return "hidden by noise"
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"
