"""What was paid for: counts, moments and audits, in one frozen object.

Everything else in `tilt` is post-processing of this object and of the company's own data. Keep it:
another tolerance, another notion's rule on the same events, or another base model cost nothing
more (`FairClassifier(..., releases=clf.releases_)`).

Shares of the μ² that may be spent: counts 4 %, moments 56 %, audits 40 % in T equal parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.privacy.accounting import Split
from isonomy.common.sums.oracle import GroupOracle, Release
from isonomy.company.fair.inputs.feature_rows import FeatureRows
from isonomy.company.fair.inputs.features import FeatureMap
from isonomy.company.fair.inputs.people import People
from isonomy.company.fair.tilt.notions import Event

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

AUDITS = 4
COUNT_SHARE, MOMENT_SHARE, AUDIT_SHARE = 0.04, 0.56, 0.40
MOST_PEOPLE = 2_000_000  # of one moment: an opening of it stays below 2 GiB
POOLED_PART = 0.25  # of the counts' price, where several lenders also count together
FLOOR = 4.0  # counts are never taken to be below this many noise deviations
MEASURED = 6.0  # rates are reported of groups with at least this many noise deviations of people


@dataclass(frozen=True)
class Prices:
    """Shares of the plan's budget for each query."""

    counts: float
    moments: float
    audit: float

    @classmethod
    def of(cls, oracle: GroupOracle, units: int, audits: int) -> Prices:
        """Split `units` so that all queries together never cost more."""
        split = Split(
            {
                "counts": (1, COUNT_SHARE),
                "moments": (1, MOMENT_SHARE),
                "audits": (audits, AUDIT_SHARE),
            }
        ).units_per_query(units)
        cap = oracle.budget.cap_units
        return cls(split["counts"] / cap, split["moments"] / cap, split["audits"] / cap)


@dataclass(frozen=True)
class Releases:
    """Released numbers with their deviations, and the public rows that they are sums of."""

    attributes: tuple[str, ...]
    groups: tuple[str, ...]  # all group labels, attribute by attribute
    sizes: tuple[int, ...]  # number of groups of each attribute
    events: tuple[Event, ...]  # what the audits counted
    counts: Floats  # (groups, strata) people per group and label
    count_deviation: Floats  # (groups,)
    moments: Floats  # (strata, groups, d) Σ φ per group and label
    moment_deviation: Floats  # (groups,)
    decisions: Ints  # (audits, rows) the hard decisions that were audited; −1: not about this row
    audits: Floats  # (audits, groups, events) their centred sums
    audit_deviation: Floats  # (audits, groups)
    features: FeatureMap  # φ
    score: Floats  # (rows,) what φ saw of the base model
    fingerprint: bytes  # of people and labels: the releases fit no other rows
    units: int  # μ² paid, in the ledger's units, under this plan
    queries: tuple[str, ...]  # ids of the ledger's records
    earlier: int = 0  # of the rows: those whose releases were bought under earlier plans
    earlier_units: int = 0  # the most that anybody of them paid
    # (groups, strata) people of all lenders, where the moments are sums over all of them
    pooled_counts: Floats | None = None

    def __repr__(self) -> str:  # the arrays would fill pages
        about = f"{len(self.score):,} rows, by {', '.join(self.attributes)}"
        return f"<Releases about {about}: {len(self.queries)} answers>"

    @property
    def blocks(self) -> tuple[slice, ...]:
        """The groups of each attribute."""
        ends = np.cumsum(self.sizes).tolist()
        return tuple(slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True))

    @property
    def free(self) -> Ints:
        """All groups but the last of each attribute, which is the total minus the others."""
        return np.concatenate([np.arange(b.start, b.stop - 1) for b in self.blocks])

    @property
    def most_units(self) -> int:
        """The most that any person paid: nobody is in two plans."""
        return max(self.units, self.earlier_units)

    @property
    def strata(self) -> int:
        return int(self.counts.shape[1])

    @property
    def floored(self) -> Floats:
        """(groups, strata) counts, never below a few noise deviations."""
        return np.maximum(self.counts, np.maximum(1.0, FLOOR * self.count_deviation)[:, None])

    @property
    def within(self) -> Floats:
        """(strata, groups) P(A = a | stratum) among the people of the moments."""
        counts = self.floored if self.pooled_counts is None else np.maximum(self.pooled_counts, 1.0)
        return np.asarray(counts.T / counts.T[:, self.blocks[0]].sum(axis=1, keepdims=True))

    @property
    def scales(self) -> Floats:
        """(strata,) how many times as many people the moments have as this company."""
        if self.pooled_counts is None:
            return np.ones(self.strata)
        # The last group is the public total less the others, so their sum has no noise.
        groups = self.blocks[0]
        return np.asarray(self.pooled_counts[groups].sum(axis=0) / self.counts[groups].sum(axis=0))

    def total(self, stratum: int, features: FeatureMap) -> Floats | None:
        """(d,) Σφ over the people of all lenders; None where they are this company's own."""
        if self.pooled_counts is None:
            return None
        moments = features.columns(self.moments[stratum])
        return np.asarray(moments[self.blocks[0]].sum(axis=0))

    def event_counts(self, events: Sequence[Event]) -> Floats:
        """(groups, events) people of each group among an event's members."""
        return self._among(self.floored, events)

    def event_deviations(self, events: Sequence[Event]) -> Floats:
        """(groups, events) noise deviation of these counts."""
        each = np.ones_like(self.counts) * self.count_deviation[:, None] ** 2
        return np.sqrt(self._among(each, events))

    def measured(self, events: Sequence[Event]) -> NDArray[np.bool_]:
        """(groups, events) whether a group is large enough for the noise of its count.

        Below that, the floor decides the rate, and no interval around it holds.
        """
        enough = MEASURED * self.event_deviations(events)
        return np.asarray(self._among(self.counts, events) >= enough)

    def _among(self, cells: Floats, events: Sequence[Event]) -> Floats:
        """(groups, strata) -> (groups, events): sums over each event's members."""
        return np.column_stack([cells[:, e.strata(self.strata)].sum(axis=1) for e in events])

    def check(self, rows: bytes, events: Sequence[Event]) -> None:
        """Refuse rows (their fingerprint) or notions that these releases say nothing about."""
        if rows != self.fingerprint:
            raise DataError(
                "these releases belong to other people or labels; fit on the same rows in the "
                "same order, or pay for new releases"
            )
        if any(event.by_label for event in events) and self.strata == 1:
            raise ConfigError(
                "these releases have no sums by label; this notion needs releases that were made "
                "for a notion with labels (equalized_odds, …)"
            )

    def check_newcomers(self, attributes: Sequence[str], events: Sequence[Event]) -> None:
        """Refuse to add people by other attributes or notions than these releases are about."""
        if self.attributes != tuple(attributes) or self.events != tuple(events):
            raise ConfigError(
                "new people join releases of the same attributes, notion and classes; those "
                f"before are about {', '.join(self.attributes)}: "
                f"{', '.join(event.name for event in self.events)}. Nothing was asked."
            )
        if self.pooled_counts is not None:
            raise ConfigError("releases of several lenders take no new people. Nothing was asked.")

    def with_newcomers(self, new: Releases, rows: bytes) -> Releases:
        """These releases and those of other people, bought under the same φ without bins.

        Sums over disjoint people add up, their noise variances too. Each audit stays about its own
        people. Nobody is in both, so nobody paid more than the dearer of the two.
        """
        features, n = new.features, len(self.score)
        before = np.pad(self.decisions, ((0, 0), (0, len(new.score))), constant_values=-1)
        after = np.pad(new.decisions, ((0, 0), (n, 0)), constant_values=-1)
        moments = np.stack([features.columns(each) for each in self.moments])
        return replace(
            new,
            counts=self.counts + new.counts,
            count_deviation=np.hypot(self.count_deviation, new.count_deviation),
            moments=moments + new.moments,
            moment_deviation=np.hypot(self.moment_deviation, new.moment_deviation),
            decisions=np.vstack([before, after]),
            audits=np.concatenate([self.audits, new.audits]),
            audit_deviation=np.vstack([self.audit_deviation, new.audit_deviation]),
            score=np.concatenate([self.score, new.score]),
            fingerprint=rows,
            earlier_units=self.most_units,
            queries=self.queries + new.queries,
            earlier=n,
        )

    def with_audit(self, decided: Ints, release: Release) -> Releases:
        """These releases and one more audit."""
        return replace(
            self,
            decisions=np.vstack([self.decisions, decided[None]]),
            audits=np.concatenate([self.audits, release.values[None]]),
            audit_deviation=np.vstack([self.audit_deviation, release.deviation[None]]),
            units=self.units + (release.receipt.units if release.receipt else 0),
            queries=self.queries + ((release.receipt.query_id,) if release.receipt else ()),
        )


def fingerprint(persons: Iterable[str], y: Ints) -> bytes:
    """Identity of the rows: whose they are, in whatever cohort, and their labels."""
    names = bytearray()  # 32 bytes a person; a list of them, as `join` makes, takes 100
    for person in persons:
        names += hash_bytes("isonomy/tilt-person/v1", person.encode())
    return hash_bytes("isonomy/tilt-rows/v2", memoryview(names), y.astype("<i8").tobytes())


def buy_counts_and_moments(
    oracle: GroupOracle,
    people: People,
    y: Ints,
    rows: FeatureRows,
    *,
    features: FeatureMap,
    score: Floats,
    events: tuple[Event, ...],
    attributes: tuple[str, ...],
    prices: Prices,
    identity: bytes,
) -> Releases:
    """The two releases before the audits. rows: (entries, d) φ, folded.

    The moment of millions of people is asked for in parts, so that each can be opened.

    People of one label are asked about in a query of their own. A person with rows of k labels is
    in k of these queries, so each then has the k-th part of the price: nobody pays more than it.
    """
    # A person's cells add up to 1 over the strata, so their norm is at most 1.
    strata = int(people.stratum.max()) + 1 if any(e.by_label for e in events) else 1
    cells = people.fold(np.eye(strata)[people.stratum[people.entry]])
    rows_by_person, positions = people.by_person(cells)
    pooled = oracle.capabilities.pooled

    def count(part: float, alone: bool) -> Release:
        return oracle.open_sum(
            rows_by_person,
            norm=1.0,
            attribute=list(attributes),
            people=positions,
            share=prices.counts * part,
            purpose="tilt: people per group",
            alone=alone,
        )

    everybody = count(POOLED_PART, alone=False) if pooled else None
    counts = count(1 - POOLED_PART if pooled else 1.0, alone=True)
    queries_each = int(np.unique(people.position, return_counts=True)[1].max())
    # In the order of the cohort, in which a question names people.
    order = np.argsort(people.position, kind="stable")
    by_label = [order[people.stratum[order] == label] for label in range(strata)]
    # Each person is in one part, and pays for it alone. As many parts for each label: equal noise.
    parts = 1 if pooled else -(-max(map(len, by_label)) // MOST_PEOPLE)
    moments = [
        [
            oracle.blind_sum(
                rows.chosen(part),
                norm=1.0,
                attribute=list(attributes),
                people=people.position[part],
                share=prices.moments / queries_each,
                purpose="tilt: moment of the features",
            )
            for part in np.array_split(inside, parts)
        ]
        for inside in by_label
    ]
    counted = [counts] if everybody is None else [everybody, counts]
    releases = chain(counted, *moments)
    receipts = [release.receipt for release in releases if release.receipt is not None]
    spent = sum(receipt.units for receipt in receipts[: len(counted)])
    spent += queries_each * max(receipt.units for receipt in receipts[len(counted) :])
    groups = counts.groups
    return Releases(
        attributes=attributes,
        groups=groups,
        sizes=tuple(len(oracle.labels(attribute)) for attribute in attributes),
        events=events,
        counts=counts.values,
        count_deviation=counts.deviation,
        moments=np.stack([sum(part.values for part in label) for label in moments]),
        moment_deviation=math.sqrt(parts) * moments[0][0].deviation,
        decisions=np.zeros((0, len(y)), dtype=np.int64),
        audits=np.zeros((0, len(groups), len(events))),
        audit_deviation=np.zeros((0, len(groups))),
        features=features,
        score=score,
        fingerprint=identity,
        units=spent,
        queries=tuple(receipt.query_id for receipt in receipts),
        pooled_counts=None if everybody is None else everybody.values,
    )


def buy_audit(
    oracle: GroupOracle, people: People, centred: Floats, attributes: tuple[str, ...], share: float
) -> Release:
    """One audit: Σ of centred rows per group. centred: (rows, events).

    Centring lowers the norm to max(r, 1 − r) per event and takes the counts' noise out of the
    rates to first order: the pooled rate is public.
    """
    rows, positions = people.by_person(people.fold(centred))
    # The largest norm may be read off: decisions and labels are the company's, not private here.
    norm = float(np.linalg.norm(rows, axis=1).max())
    return oracle.open_sum(
        rows,
        norm=norm or 1.0,
        attribute=list(attributes),
        people=positions,
        share=share,
        purpose="tilt: audit of decisions",
        alone=True,  # each lender's decisions are those of its own model
    )
