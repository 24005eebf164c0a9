"""`GroupOracle`: the one interface that strategies know.

A strategy asks for counts and sums by group and gets released values with their noise deviation
and a receipt. It does not know whether the regulator is an object, a process or another country:
that is the channel's matter.

| call | what it releases | the regulator sees |
|---|---|---|
| `counts(cells)` | people per group and cell | the counts (open) |
| `open_sum(rows)` | Σ of rows per group | the sums (open; range-checked) |
| `blind_sum(rows)` | Σ of rows per group | masked, uniform numbers |
| `weighted_sum(rows, weights)` | Σ_i u_{A_i} v_i | masked, uniform numbers |

Noise is given as `sigma` (deviation in the rows' units), as `share` (of the plan's μ² budget), or,
for Laplace noise, as `epsilon`. Rows of one person (repeated `people`) are added up before they are
clipped, so the guarantee is per person.

Keywords of every call:

| keyword | meaning |
|---|---|
| attribute | an attribute, an intersection ("sex*race"), or several of them |
| people | positions in the cohort, one per row; None: the whole cohort in order |
| sigma, share, epsilon | the noise: exactly one of them |
| purpose | a label for people who read the ledger |
| declaration | what the query is, for the regulator to check (privacy.declarations) |
| alone | where several companies ask together: about this company's people only |
| triangular | row i, by ascending people, has zeros behind column i: they need not travel |
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.crypto.params import ParameterSet
from isonomy.common.people.cohort import Cohort
from isonomy.common.people.row_order import check_numbered
from isonomy.common.privacy.accounting import epsilon_of
from isonomy.common.privacy.declarations import Audit, Declaration
from isonomy.common.privacy.quantise import checked_norm, checked_rows, sum_by_person
from isonomy.common.privacy.queries import Kind, QueryLog, alone_number, audit_number
from isonomy.common.privacy.row_sources import RowSource, same_rows
from isonomy.common.sums.accounts import Accounts, IndividualAccounts, PlanAccount
from isonomy.common.sums.channel import Capabilities, Channel
from isonomy.common.sums.question import (
    Noise,
    Prepared,
    Question,
    Receipt,
    Release,
    assemble,
    checked_weights,
    one_hot,
    prepare,
    public_answer,
)


class RepeatedPeopleWarning(UserWarning):
    """Several rows belong to one person: they are added up and clipped as one."""


class NoiseLevel(TypedDict, total=False):
    """The noise of a call: exactly one of them."""

    sigma: float
    share: float
    epsilon: float


class Label(TypedDict, total=False):
    """What a call is for: a text for people, and a declaration for the regulator."""

    purpose: str
    declaration: Declaration


class Ask(Label, total=False):
    """Keywords of every call; the module's docstring says what they mean."""

    attribute: str | Sequence[str] | None
    people: ArrayLike | None
    sigma: float | None
    share: float | None
    epsilon: float | None
    alone: bool
    triangular: bool


@dataclass(frozen=True)
class Budget:
    """The plan's budget as the company sees it. `cap` is what is guaranteed; `spent` is so far.

    Both are about this oracle's questions: what an earlier script spent is in the ledger.
    """

    cap_units: int
    spent_units: int
    delta: float
    audit_units: int = 0  # of the spent ones, by audits

    @property
    def cap_epsilon(self) -> float:
        return epsilon_of(self.cap_units, self.delta)

    @property
    def spent_epsilon(self) -> float:
        return epsilon_of(self.spent_units, self.delta)

    @property
    def remaining_share(self) -> float:
        return 1.0 - self.spent_units / self.cap_units if self.cap_units else 0.0


class GroupOracle:
    """Blind group sums over an agreed cohort, under one approved plan.

    The channel carries queries to the regulator. The accounts say who may still be asked about.
    Everything else, quantisation, noise level, totals and units, is the same for all.
    """

    def __init__(self, channel: Channel, accounts: Accounts | None = None, number: int = 0) -> None:
        self.channel, self.terms = channel, channel.terms
        self._log = QueryLog(self.terms.people)
        self.accounts: Accounts = accounts or PlanAccount(self.terms)
        self._number = number  # of the next query
        self._alone_number = 0  # of the next one that this company asks alone
        self._audits: dict[str, tuple[Prepared, Release]] = {}  # by query id: answered ones
        self._declaration = self.terms.declaration

    @contextmanager
    def declared(self, strategy: str, notion: str | Sequence[str]) -> Iterator[None]:
        """Say what the questions of this block are for. A plan that names other things refuses."""
        names = (notion,) if isinstance(notion, str) else notion
        before, words = self._declaration, "+".join(sorted(names))
        self._declaration = Declaration(strategy=strategy, notion=words)
        try:
            yield
        finally:
            self._declaration = before

    # --- What the oracle is --------------------------------------------------------------------

    @property
    def cohort(self) -> Cohort:
        return self.terms.cohort

    @property
    def groups(self) -> Mapping[str, tuple[str, ...]]:
        return self.terms.groups

    @property
    def plan(self) -> bytes:
        return self.terms.plan

    @property
    def params(self) -> ParameterSet:
        return self.terms.params

    @property
    def log(self) -> QueryLog:
        return self._log

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.channel.capabilities, filtered=self.accounts.filtered)

    @property
    def budget(self) -> Budget:
        """The plan's cap; spent is the most that any person has spent of it."""
        receipts = [release.receipt for _, release in self._audits.values()]
        audits = sum(receipt.units for receipt in receipts if receipt is not None)
        spent = int(self.accounts.spent.max())
        return Budget(self.terms.cap_units, spent, self.terms.delta, audits)

    def people_of(
        self, ids: Sequence[object] | None, rows: int, *tables: object
    ) -> NDArray[np.int64]:
        """(rows,) each row's person. Without ids, row i is person i: in a rehearsal by one company.

        `tables`: what the rows stand in. An index that says that they were moved is refused.
        """
        if ids is not None:
            if len(ids) != rows:
                raise DataError(f"{len(ids)} ids for {rows} rows of X; one id per row is needed")
            return self.cohort.positions(ids)
        if self.capabilities.carrier != "local":
            raise DataError(
                "say whose row is whose: ids=…, one id per row. The plan's people have an order of "
                "their own, and rows taken for somebody else's would spend the budget on a wrong "
                "answer. Nothing was asked."
            )
        check_numbered(*tables)
        if rows != len(self.cohort):
            raise DataError(
                f"there are {rows} rows, and {len(self.cohort)} people in the agreed cohort; pass "
                "ids=… to say whose rows they are"
            )
        return np.arange(rows)

    def labels(self, attribute: str | None = None) -> tuple[str, ...]:
        """Public group labels of an attribute or an intersection ("sex*race")."""
        return self.terms.labels(self._expressions(attribute)[0])

    @property
    def position(self) -> tuple[int, NDArray[np.int64]]:
        """Queries asked so far, and the accounts: what a checkpoint keeps."""
        return self._number, self.accounts.state()

    def go_on_from(self, number: int, accounts: NDArray[np.int64]) -> None:
        """Set the company's own books to a checkpoint's position of the same plan.

        Safe because the regulator's ledger decides: an id asked again gets the stored answer if
        the rows are the same, and is refused if they are not.
        """
        if number < 0:
            raise ConfigError("this position belongs to another cohort")
        self.accounts.restore(accounts)
        self._number = int(number)

    # --- What strategies ask -------------------------------------------------------------------

    def counts(self, cells: ArrayLike | None = None, **ask: Unpack[Ask]) -> Release:
        """People per group, or per group and cell (`cells`: one small integer per person).

        A person who appears several times is counted once, in the cell of all their rows; rows of
        one person in different cells are an error.
        """
        if ask.get("people") is None:
            check_numbered(cells)
        positions = self._positions(ask.pop("people", None))
        rows = one_hot(cells, len(positions), self.params.max_columns)
        distinct, first = np.unique(positions, return_index=True)
        if len(distinct) < len(positions):
            inverse = np.searchsorted(distinct, positions)
            if (rows != rows[first][inverse]).any():
                raise DataError("rows of one person lie in different cells; count persons, or sum")
        ask.setdefault("purpose", "counts")
        return self._release("open", rows[first], 1.0, {**ask, "people": distinct})

    def blind_sum(self, rows: ArrayLike | RowSource, *, norm: float, **ask: Unpack[Ask]) -> Release:
        """Σ of clipped rows per group; the regulator sees masked numbers only.

        Rows of very many people may come as a source (privacy/row_sources.py), which is read some
        thousand people at a time; `people` then ascend, each once.
        """
        ask.setdefault("purpose", "sum")
        return self._release("blind", rows, norm, ask)

    def open_sum(self, rows: ArrayLike, *, norm: float, **ask: Unpack[Ask]) -> Release:
        """Σ of clipped rows per group, which the regulator sees too (audits, dual steps)."""
        ask.setdefault("purpose", "open sum")
        return self._release("open", rows, norm, ask)

    def weighted_sum(
        self, rows: ArrayLike, weights: ArrayLike, *, norm: float, **ask: Unpack[Ask]
    ) -> Release:
        """Σ_i u_{A_i} v_i with public weights u, one per group; one noisy vector, blind.

        Sensitivity is (max u − min u)·norm, so noise scales with the weights (λ!) by itself. Equal
        weights need no attribute: the answer is then exact, free and leaves no record.
        """
        ask.setdefault("purpose", "weighted sum")
        return self._release("blind", rows, norm, ask, weights)

    def confirm_multipliers(self, query_id: str, values: tuple[float, ...]) -> None:
        """Compare λ after a dual step with the regulator's; ProtocolError if they differ."""
        self.channel.confirm_multipliers(query_id, values)

    # --- One question --------------------------------------------------------------------------

    def _release(
        self,
        kind: Kind,
        rows: ArrayLike | RowSource,
        norm: float,
        ask: Ask,
        weights: ArrayLike | None = None,
    ) -> Release:
        """Prepare, admit, exchange, book, assemble. An audit that is repeated is free."""
        question = self._question(kind, rows, norm, ask, weights)
        if question.weights is not None and question.span == 0.0:
            return self._public(question)
        content, stretch = question.declaration.content, self.accounts.stretch
        audit = content.name if isinstance(content, Audit) else None
        number = self._numbered(audit, question.alone)
        prepared = prepare(question, self.terms, number, stretch)
        before = self._audits.get(prepared.query.query_id)
        if before is not None and _same(before[0], prepared):
            return before[1]
        if audit is not None:  # else the budget's end would be the reason, not the plan's audits
            self.terms.audits.kept_beside(prepared.shapes.units, len(self._audits), audit=True)
        admitted = self.accounts.admit(prepared)
        if admitted is not None and not admitted.all():
            prepared = prepare(question.without(~admitted), self.terms, number, stretch)
        released = self.channel.exchange(prepared)
        # Only now: a query that failed is asked again under the same id, and costs nothing.
        if audit is None:
            self._number += not question.alone
            self._alone_number += question.alone
        units, people = released.receipt.units, prepared.shapes.layout.people
        self._log.add(prepared.query.purpose, units, prepared.people, people)
        self.accounts.charge(prepared, admitted, self._number)
        release = assemble(prepared, released, self.terms)
        if audit is not None:
            self._audits[prepared.query.query_id] = prepared, release
        return release

    def _numbered(self, audit: str | None, alone: bool) -> int:
        """The number in the id of the next question."""
        place = self.terms.place if alone else None
        if audit is not None:
            return audit_number(audit, place)
        return self._number if place is None else alone_number(self._alone_number, place)

    def _question(
        self,
        kind: Kind,
        rows: ArrayLike | RowSource,
        norm: float,
        ask: Ask,
        weights: ArrayLike | None,
    ) -> Question:
        """The caller's words, checked: one row per person, one way of giving the noise."""
        if unknown := ask.keys() - (Ask.__optional_keys__ | Ask.__required_keys__):
            raise TypeError(f"unknown keyword: {', '.join(sorted(unknown))}")
        expressions = self._expressions(ask.get("attribute"))
        norm = checked_norm(norm)
        checked = None
        if weights is not None:
            if len(expressions) != 1 or ask.get("epsilon") is not None:
                raise ConfigError("a weighted sum takes one attribute, and Gaussian noise")
            groups = len(self.terms.labels(expressions[0]))
            checked = checked_weights(weights, groups, norm, expressions[0])
        by_person, positions = self._by_person(rows, ask.get("people"))
        return Question(
            kind=kind,
            rows=by_person,
            positions=positions,
            norm=norm,
            expressions=expressions,
            noise=Noise(ask.get("sigma"), ask.get("share"), ask.get("epsilon")),
            purpose=ask.get("purpose", ""),
            declaration=ask.get("declaration", self._declaration),
            weights=checked,
            # One company of its own plan asks alone anyway, and its ids are the plain ones.
            alone=ask.get("alone", False) and self.capabilities.pooled,
            triangular=ask.get("triangular", False),
        )

    def _public(self, question: Question) -> Release:
        if self.capabilities.pooled:
            raise ConfigError(
                "with several companies a weighted sum needs weights that differ: equal ones need "
                "no attribute, and no company knows the others' rows"
            )
        return public_answer(question, self.labels(question.expressions[0]))

    def _expressions(self, attribute: str | Sequence[str] | None) -> tuple[str, ...]:
        if attribute is None:
            names = tuple(self.terms.groups)
            if len(names) != 1:
                raise ConfigError(f"name an attribute: the regulator offers {', '.join(names)}")
            return names
        if isinstance(attribute, str):
            return (attribute,)
        expressions = tuple(attribute)
        if not expressions or len(set(expressions)) != len(expressions):
            raise ConfigError("name at least one attribute, each once")
        return expressions

    def _positions(self, people: ArrayLike | None) -> NDArray[np.int64]:
        if people is None:
            return np.arange(self.terms.people)
        positions = np.asarray(people)
        if positions.ndim != 1 or positions.size == 0:
            raise DataError("people must be a non-empty list of positions in the cohort")
        if positions.dtype.kind not in "iu":
            raise DataError("people are positions in the cohort; cohort.positions(ids) gives them")
        if positions.min() < 0 or positions.max() >= self.terms.people:
            raise DataError(f"people must lie between 0 and {self.terms.people - 1}")
        return positions.astype(np.int64, copy=False)

    def _by_person(
        self, rows: ArrayLike | RowSource, people: ArrayLike | None
    ) -> tuple[NDArray[np.floating] | RowSource, NDArray[np.int64]]:
        """One row per person, people in ascending order."""
        if isinstance(rows, RowSource):
            positions = self._positions(people)
            if rows.shape[0] != len(positions) or (positions[1:] <= positions[:-1]).any():
                raise DataError("a source of rows has one row per person, in ascending order")
            return rows, positions
        if people is None:
            check_numbered(rows)
            return checked_rows(rows, self.terms.people), np.arange(self.terms.people)
        positions = self._positions(people)
        checked = checked_rows(rows, len(positions))
        totals, distinct = sum_by_person(checked, positions)
        if len(distinct) < len(positions):
            warnings.warn(
                f"{len(positions)} rows belong to {len(distinct)} people: the rows of one person "
                "are added up and clipped together, so that privacy holds per person",
                RepeatedPeopleWarning,
                stacklevel=5,
            )
            if not np.isfinite(totals).all():
                raise DataError("the rows of one person add up to infinity; scale them down")
        return totals, distinct

    # --- The end -------------------------------------------------------------------------------

    def close(self, error: BaseException | None = None) -> None:
        """End the session, if the channel has one; the others are told the error, if any."""
        self.channel.close(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, value: BaseException | None, traceback: object) -> None:
        self.close(value)


def _same(one: Prepared, other: Prepared) -> bool:
    """Do two queries ask the same about the same rows?"""
    return one.query == other.query and same_rows(one.rows, other.rows)


def FilteredOracle(  # noqa: N802  (a documented name)
    oracle: GroupOracle, *, stretch: float = 1.0, reserve: float = 0.34
) -> GroupOracle:
    """The same oracle under an individual filter: everybody pays for their own rows (accounts.py).

    `reserve` is the part of everybody's cap for open queries: 0.34 for DP-FERMI and PF-LD with
    their default split. Ask the returned oracle from now on, not the old one.
    """
    if oracle.capabilities.pooled:
        raise ConfigError(
            "the individual filter works for one company alone: what each person lost is added up "
            "for one company's queries only. Nothing was asked."
        )
    if not oracle.capabilities.individual:
        raise ConfigError(
            "this plan has no individual filter: the ledger would charge everybody the full price. "
            "Write the plan with individual_filter (LocalOracle.rehearse: individual=True)."
        )
    number, _ = oracle.position
    if oracle.accounts.spent.any():
        raise ConfigError("an individual filter needs an oracle that has answered nothing yet")
    accounts = IndividualAccounts(oracle.terms, stretch=stretch, reserve=reserve)
    return GroupOracle(oracle.channel, accounts, number)


__all__ = [
    "Ask",
    "Budget",
    "FilteredOracle",
    "GroupOracle",
    "Label",
    "NoiseLevel",
    "Receipt",
    "Release",
    "RepeatedPeopleWarning",
]
