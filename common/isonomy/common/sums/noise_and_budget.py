"""Where a budget is checked and noise is added: the regulator's rules for one plan.

    authorise (price, capacity, budget)  →  exact sums  →  + noise  →  one fsynced record  →  answer

All channels go through here. The ledger decides about budgets (ledger/state.py), the samplers are
in privacy/noise.py. Nothing in this module knows encryption, frames or transport.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import (
    ConfigError,
    LedgerTampered,
    PolicyRefused,
    ProtocolError,
    ReplayRefused,
)
from isonomy.common.crypto.params import centre
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.ledger.records import DebitRecord, Inspection
from isonomy.common.people.cohort import AttributeTable, group_count
from isonomy.common.privacy.declarations import Audit, Declaration
from isonomy.common.privacy.dual import DualKeeper
from isonomy.common.privacy.noise import (
    MIN_SIGMA,
    NoiseSource,
    SystemNoise,
    discrete_laplace,
    rounded_gaussian,
)
from isonomy.common.privacy.planned_audits import NO_AUDITS, PlannedAudits
from isonomy.common.privacy.queries import Query, Shapes, query_id_prefix, shapes_of

_NUMBER = re.compile(r"[0-9]{6,12}")
Event = Mapping[str, str | int]
Limits = Callable[[Query, int], None]
"""Raises PolicyRefused for a query of this cost that may not be answered."""


@dataclass(frozen=True)
class Authorised:
    """A query that may be answered, with what it takes to answer it."""

    query: Query
    shapes: Shapes
    codes: list[NDArray[np.int64]]  # per attribute: group numbers of the people asked about

    def indicators(self, people: slice) -> list[NDArray[np.bool_]]:
        """Indicator columns 1[A = a] of some people: all groups but each attribute's last."""
        columns = []
        for codes, groups in zip(self.codes, self.shapes.group_counts, strict=True):
            part = codes[people]
            for group in range(groups - 1):
                columns.append(part == group)
        return columns


class Custodian:
    """Holds a cohort's attributes under one approved plan and answers within its budget."""

    def __init__(
        self,
        table: AttributeTable,
        ledger: Ledger,
        *,
        plan: bytes,
        member_key: bytes,
        strategy: str = "",
        notion: str = "",
        record_private: bool = False,
        audits: PlannedAudits = NO_AUDITS,
    ) -> None:
        self._table, self._ledger, self._plan = table, ledger, plan
        self._strategy, self._notion = strategy, notion
        self._record_private = record_private
        self._audits, self._audited = audits, 0  # planned ones, and how many were answered
        ledger.bind_key(hash_bytes("isonomy/member-key/v1", member_key))
        self._root = ledger.add_people(table.cohort.member_hashes(member_key))
        self.source: NoiseSource = SystemNoise()  # only tests put another in its place
        # Else the company could send multipliers λ that no answer led to.
        self.dual = DualKeeper(required=strategy == "pf_ld")
        self._subsets: dict[bytes, bytes] = {}  # by `_subset_key`: roots of those written
        self._prefix, self._people = query_id_prefix(plan), len(table.cohort)
        # Of each attribute and intersection, worked out once, not per query.
        self._group_count = cache(partial(group_count, groups=table.groups))
        self._codes = cache(table.codes)
        self.limits: Limits | None = None  # the owner's policy, beyond what the plan allows
        self._replay()

    @property
    def root(self) -> bytes:
        return self._root

    def reserve(self, units: int, *, individual: bool = False) -> None:
        """Set the plan's budget aside for every person of the cohort."""
        self._ledger.reserve(self._plan, self._root, units, individual=individual)

    def authorise(self, query: Query) -> Authorised:
        """Every check that needs no ciphertext. Raises before anything is computed or spent."""
        if query.plan != self._plan:
            raise ProtocolError("the query names another plan than the one that was approved")
        self._check_id(query.query_id)
        # The sampler is exact from there on only: less would not be the noise that is priced.
        if query.mechanism == "gaussian" and query.noise < MIN_SIGMA:
            raise ProtocolError(f"Gaussian noise must have σ ≥ {MIN_SIGMA} units")
        if query.positions is not None and query.position_array(0)[-1] >= self._people:
            raise ProtocolError(f"a position lies outside the cohort of {self._people}")
        if len(set(query.attributes)) != len(query.attributes):
            raise ProtocolError("an attribute is named twice in one query")
        try:
            counts = tuple(map(self._group_count, query.attributes))
            shapes = shapes_of(query, counts, self._people)
        except ConfigError as error:
            raise ProtocolError(str(error)) from None
        self._check_declared(query.declaration)
        if self._record_private and isinstance(query.declaration.content, Audit):
            # Its declared totals are exact: one record blanked would change them.
            raise ProtocolError("the plan protects whole records, so it takes no audits")
        answered = self.was_answered(query.query_id)
        if not answered:
            self.dual.check(query, counts)
        expected_weights = counts[0] if query.shape == "weighted" else 0
        if len(query.weights) != expected_weights:
            raise ProtocolError(f"expected {expected_weights} weights, got {len(query.weights)}")
        if query.shape == "weighted" and (query.kind, query.mechanism) != ("blind", "gaussian"):
            raise ProtocolError("weighted sums are blind, with Gaussian noise")
        if self.limits is not None:
            self.limits(query, shapes.units)
        if not answered:
            self._check_budget(query, shapes.units)
        people = slice(None) if query.positions is None else query.position_array(0)
        codes = [self._codes(name)[people] for name in query.attributes]
        return Authorised(query, shapes, codes)

    @property
    def terms(self) -> tuple[bytes, bytes]:
        """The plan's hash, and the root of its people."""
        return self._plan, self._table.cohort.root

    def check_open(self) -> None:
        """Raise unless the plan is open: keys must not come back after it."""
        self._ledger.check(self._plan, self._root, 0)

    def members(self, attribute: str) -> list[NDArray[np.bool_]]:
        """(people,) each: who of the whole cohort is in each released group, for a key transfer."""
        try:
            groups = self._group_count(attribute)
        except ConfigError as error:
            raise ProtocolError(str(error)) from None
        return [self._codes(attribute) == group for group in range(groups - 1)]

    def _check_declared(self, declaration: Declaration) -> None:
        """Raise PolicyRefused for another strategy or notion than was approved; audits may be."""
        if not self._strategy or isinstance(declaration.content, Audit):
            return
        notions = declaration.notion.split("+")
        if declaration.strategy != self._strategy or self._notion not in notions:
            raise PolicyRefused(
                f"the approved plan is for {self._strategy} and {self._notion}; this question is "
                f"declared for {declaration.strategy or 'no strategy'} and "
                f"{' and '.join(notions) or 'no notion'}. Ask for a plan that names it"
            )

    def stored(self, query_id: str, request_hash: bytes) -> DebitRecord | None:
        """What was answered under this id; another request under it is refused, for ever."""
        self._check_id(query_id)
        record = self._ledger.find(query_id)
        if record is None:
            return None
        if record.plan != self._plan or record.request_hash != request_hash:
            raise ReplayRefused(
                f"query {query_id!r} was answered before, for another request. An id is answered "
                "once: send the stored request again, or go on with the next id."
            )
        return record

    def answered_request(self, query_id: str) -> bytes | None:
        """The hash of the request that was answered under this id."""
        record = self._ledger.find(query_id)
        return record.request_hash if record is not None else None

    def answers(self) -> int:
        """How many queries of this plan were answered."""
        return self._ledger.answers(self._plan)

    def was_answered(self, query_id: str) -> bool:
        return self._ledger.find(query_id) is not None

    def inspections(self) -> tuple[Inspection, ...]:
        """Every request of this plan whose opening was ever demanded, with its last step."""
        return self._ledger.inspections(self._plan)

    def note_inspection(self, query_id: str, request_hash: bytes, step: str) -> None:
        """Write a step of an inspection; on disk when this returns."""
        self._check_id(query_id)
        self._ledger.note_inspection(self._plan, query_id, request_hash, step)

    def release(
        self,
        authorised: Authorised,
        request_hash: bytes,
        sums: NDArray[np.int64],
        *,
        modulus: int | None = None,
    ) -> DebitRecord:
        """Noise, then one record with debit and answer on disk; only then may the caller answer.

        The sum is reduced modulo t (or the `modulus` of its mask) *after* the noise is added. A
        masked sum that came out centred and were not reduced again would tell by its wrap whether
        the exact sum plus the mask passes t/2, and the company chooses the mask.
        """
        query, shapes = authorised.query, authorised.shapes
        t = modulus or shapes.layout.params.plain_modulus
        # Other queries may have been answered since the columns left: λ, limits, budget moved on.
        self.dual.check(query, shapes.group_counts)
        if self.limits is not None:
            self.limits(query, shapes.units)
        if self._audits.number:
            self._check_budget(query, shapes.units)
        draw = rounded_gaussian if query.mechanism == "gaussian" else discrete_laplace
        # Drawn only now, when the request is complete and bound by its hash: nobody can choose a
        # request by its noise.
        noisy = sums.reshape(-1) + draw(query.noise, sums.size, self.source)
        values = centre(noisy % t, t)
        root = self._root if query.positions is None else self._subset_root(query)
        weights = " ".join(map(repr, query.weights))
        if len(weights) > 512:  # by their hash, so that a record stays small
            weights = hash_bytes("isonomy/weights/v1", weights.encode()).hex()
        # Of a secret sample the record says how many people it was drawn from.
        people = self._people if self._record_private else shapes.layout.people
        record = self._ledger.debit(
            plan=self._plan,
            query_id=query.query_id,
            request_hash=request_hash,
            root=root,
            units=shapes.units,
            event={
                "mechanism": query.mechanism,
                "noise": query.noise,
                "kind": query.kind,
                "shape": query.shape,
                "attributes": ",".join(query.attributes),
                "columns": query.columns,
                "people": people,
                "purpose": query.purpose,
                "declaration": query.declaration.to_text(),
                "norm": repr(query.norm),
                "weights": weights,
            },
            answer=values.astype("<i8").tobytes(),
        )
        self.dual.observe(query, shapes.group_counts, values)
        self._audited += isinstance(query.declaration.content, Audit)
        return record

    def _check_budget(self, query: Query, units: int) -> None:
        """Raise BudgetExceeded unless its people can pay, with what is kept for audits left."""
        audit = isinstance(query.declaration.content, Audit)
        units += self._audits.kept_beside(units, self._audited, audit=audit)
        root = self._root if query.positions is None else self._subsets.get(_subset_key(query))
        if root is None:  # nobody was asked about just these people yet
            self._ledger.check(self._plan, self._root, units, among=query.position_array(0))
        else:
            self._ledger.check(self._plan, root, units)

    def _subset_root(self, query: Query) -> bytes:
        """The root of a subset that the ledger holds, written if it does not yet."""
        key = _subset_key(query)
        if key not in self._subsets:  # training asks about the same chunks, round by round
            positions, secret = query.position_array(0), self._record_private
            # Secret, where a record's privacy rests on who was drawn.
            self._subsets[key] = self._ledger.add_subset(self._root, positions, secret=secret)
        return self._subsets[key]

    def record(
        self, query_id: str, request_hash: bytes, units: int, event: Event, answer: bytes
    ) -> DebitRecord:
        """Write a release about everybody that is no query: comparisons, in rehearsals only."""
        return self._ledger.debit(
            plan=self._plan,
            query_id=query_id,
            request_hash=request_hash,
            root=self._root,
            units=units,
            event=event,
            answer=answer,
        )

    def _replay(self) -> None:
        """λ of the multipliers follows from the answers: after a restart, from the ledger's."""
        for record in self._ledger.debits_of(self._plan):
            if not _NUMBER.fullmatch(record.query_id.removeprefix(self._prefix)):
                continue  # a release of the regulator itself
            try:
                query = self._query_of(record)
                sizes = tuple(map(self._group_count, query.attributes))
                values = np.frombuffer(record.answer, "<i8").astype(np.int64)
                self.dual.observe(query, sizes, values)
                self._audited += isinstance(query.declaration.content, Audit)
            except (LookupError, ValueError, ArithmeticError):
                raise LedgerTampered(
                    f"record {record.seq} of the ledger is no answer to a query of this plan"
                ) from None

    def _query_of(self, record: DebitRecord) -> Query:
        """Return the query that a record answers, as far as the multipliers follow from it."""
        event = record.event
        return Query(
            query_id=record.query_id,
            plan=self._plan,
            purpose=str(event["purpose"]),
            kind="open" if event["kind"] == "open" else "blind",
            shape="weighted" if event["shape"] == "weighted" else "groups",
            attributes=tuple(str(event["attributes"]).split(",")),
            columns=int(event["columns"]),
            mechanism="gaussian" if event["mechanism"] == "gaussian" else "laplace",
            noise=int(event["noise"]),
            norm=float(event["norm"]),
            declaration=Declaration.from_text(str(event["declaration"])),
        )

    def _check_id(self, query_id: str) -> None:
        """Ids carry their plan, so that one plan cannot take or probe another plan's ids.

        A number follows and nothing else: other ids belong to what the regulator releases itself.
        """
        number = query_id.removeprefix(self._prefix)
        if number == query_id or not _NUMBER.fullmatch(number):
            raise ProtocolError(
                f"a query id of this plan begins with {self._prefix}, then six digits"
            )


def _subset_key(query: Query) -> bytes:
    """Names the people of a query by a hash: lists of positions would add up in memory."""
    return hash_bytes("isonomy/asked-about/v1", query.positions or b"")
