"""The rules of the ledger, as a state machine that does no I/O.

Feed it the records in order; it says which ones may follow and what everybody has spent. The same
rules therefore hold when a record is about to be written, when a ledger is opened, and when a
third person verifies it.

For every person p, in integer units of μ², over all plans, cohorts and attributes:

    Σ_debits(p, plan)   ≤  reservation(plan)                 for every plan that p is in
    Σ_plans held(p)     ≤  cap                               held = reservation while the plan is
                                                             open, what was debited once it closed
                                                             (or all of it, if it closed in full)

An `individual` plan (the company keeps a filter for each person, docs/design.md §4) counts as its
whole reservation, from the start and for ever; its debits are information. So does a plan from its
first secret subset on: what a person really spent would tell how often they were drawn. Its debits
are held to the reservation all the same, by whoever has the subsets.

Ordering rules:
    1. `open` is the first record and never comes again.
    2. `key` comes at most once; `people` name new roots; a subset's parent comes before it.
    3. `reserve` names a known root and a new plan, `close` an open plan.
    4. `debit` names an open plan, a new query id, and the plan's root or a subset of it.
    5. `note` changes nothing for anybody.
    6. `inspection` of a request: demanded, then perhaps opened, then passed or failed; or passed or
       failed after its debit. While demanded, and once failed, the query gets no debit; nor does
       another request than the one that was inspected.

`check` raises and changes nothing; `apply` changes and does not raise. A record is written to disk
between the two.

How inspections go (rule 6; `InspectionSteps`):
    demanded  →  [opened]  →  passed | failed         drawn while the plan runs
    demanded              →  overdue                 not opened in time, which counts as failed
    answered              →  passed | failed         opened later, from the company's file
    passed                →  failed                  a later inspection may find more, never less
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import (
    BudgetExceeded,
    ConfigError,
    DataError,
    LedgerTampered,
    ReplayRefused,
    VerificationError,
)
from isonomy.common.base.merkle import Places, digests_of
from isonomy.common.ledger.records import (
    NO_RECORD,
    Body,
    ClosePlan,
    Debit,
    DebitRecord,
    Event,
    Inspection,
    Key,
    Note,
    Open,
    PeopleList,
    Reserve,
    Sealed,
    Subset,
)
from isonomy.common.ledger.spending import Positions, Spending

_BEFORE = {  # the steps of an inspection that may come before
    "opened": ("demanded",),
    "overdue": ("demanded",),
    "passed": ("demanded", "opened"),
    "failed": ("demanded", "opened", "passed"),
}


@dataclass(frozen=True)
class PlanSummary:
    """Where a plan stands. `spent_units` is the largest over its people."""

    plan: bytes
    root: bytes
    people: int
    units: int
    spent_units: int
    individual: bool
    is_open: bool
    answers: int


@dataclass
class _Plan:
    terms: Reserve
    people: NDArray[np.uint32]  # (people of the plan's root,) their numbers
    spending: Spending  # of the people of the plan's root
    is_open: bool = True
    in_full: bool = False  # all that was set aside counts as spent, for ever
    answers: int = 0


class LedgerState:
    """Who holds, spent and was answered what. See the module's docstring for the rules."""

    def __init__(self) -> None:
        self.opening: Open | None = None
        self.torn = False  # whether the file that was read ends in a record written in part
        self.is_copy = False  # whether it is a copy for others, without secret subsets' people
        self.key: bytes | None = None
        self.records = 0
        self.time = 0  # of the last record, in Unix seconds
        self.head = NO_RECORD
        self._people = LedgerPeople()
        self._secret_roots: set[bytes] = set()  # nobody else may learn who is in these subsets
        self._set_aside = np.zeros(0, np.int64)  # (people,) counted against the cap
        self._settled = np.zeros(0, np.int64)  # (people,) under plans that spend no more
        self._plans: dict[bytes, _Plan] = {}
        self._debits: dict[str, DebitRecord] = {}
        self._inspections = InspectionSteps()
        self._approvals: dict[str, Event] = {}  # the last one of each plan, by its hash in digits

    # ---- records, in order -------------------------------------------------------------------

    def replay(self, sealed: Sealed) -> None:
        """Take the next record of a ledger that somebody else may have written."""
        if sealed.seq != self.records:  # (3) seq
            raise VerificationError(f"expected record number {self.records}, got {sealed.seq}")
        if sealed.prev != self.head:  # (4) chain
            raise VerificationError("the record does not follow the one before it")
        if not self.check(sealed.body):
            raise ReplayRefused("the ledger already holds this record")
        self.apply(sealed)

    def check(self, body: Body) -> bool:
        """Raise if `body` may not come next; False if it is there already. Changes nothing.

        What is there under other terms is refused: a repetition must say the same.
        """
        if isinstance(body, Open) != (self.opening is None):  # (1) `open` first, and only there
            raise VerificationError(
                "a ledger must begin with the record that opens it, and have no other"
            )
        match body:
            case Key() if self.key is not None:
                if self.key != body.tag:
                    raise ConfigError(
                        "the ledger knows its people under another key; with a new key everybody "
                        "would look new and get a second budget. Restore the old key."
                    )
                return False
            case PeopleList() | Subset() if body.root in self._people:
                return False
            case PeopleList():
                if len(Places(digests_of(body.members)).repeats):  # (6) distinct
                    raise DataError("the same person twice in one list of people")
            case Subset():
                self._people.check_subset(body)
            case Reserve() if body.plan in self._plans:
                if self._plans[body.plan].terms != body:
                    raise ReplayRefused(
                        f"plan {_short(body.plan)} is already reserved on other terms; "
                        "changed terms need a new plan"
                    )
                return False
            case Reserve():
                self._check_reserve(body)
            case ClosePlan():
                return self._plan(body.plan).is_open
            case Debit() if (old := self._debits.get(body.query_id)) is not None:
                if (old.request_hash, old.plan) != (body.request_hash, body.plan):
                    raise ReplayRefused(
                        f"query id {body.query_id!r} was answered before, for another request or "
                        "plan; ask with a new query id"
                    )
                return False
            case Debit():
                self._inspections.check_debit(body)
                self.check_debit(body.plan, body.root, body.units)
            case Inspection():
                if self._inspections.holds(body):
                    return False
                plan, debit = self._plan(body.plan), self._debits.get(body.query_id)
                answered = debit.request_hash if debit and debit.plan == body.plan else None
                may_begin = plan.is_open and debit is None
                self._inspections.check(body, may_begin=may_begin, answered=answered)
        return True

    def apply(self, sealed: Sealed) -> None:
        """Take a record that `check` let through."""
        match sealed.body:
            case Open() as opening:
                self.opening = opening
            case Key(tag):
                self.key = tag
            case PeopleList(root, members):
                self._people.add_list(root, members)
                more = np.zeros(len(self._people) - len(self._set_aside), np.int64)
                self._set_aside = np.concatenate([self._set_aside, more])
                self._settled = np.concatenate([self._settled, more])
            case Subset() as subset:
                self._people.add_subset(subset)
                if subset.is_secret:
                    self._secret_roots.add(subset.root)
                self.is_copy |= not subset.positions
            case Reserve(plan, root, units, individual) as terms:
                people_of = self._people.numbers(root)
                self._plans[plan] = _Plan(terms, people_of, Spending(len(people_of)))
                self._set_aside[people_of] += units
                if individual:
                    self._count_in_full(self._plans[plan])
            case ClosePlan(plan, in_full):
                self._close(self._plans[plan], in_full=in_full)
            case Debit() as debit:
                plan_state = self._plans[debit.plan]
                plan_state.answers += 1
                places = self._people.within(debit.root, plan_state.terms.root)
                if debit.root in self._secret_roots:
                    self._count_in_full(plan_state)
                if not plan_state.terms.individual:
                    plan_state.spending.add(debit.root, places, debit.units)
                self._debits[debit.query_id] = DebitRecord(
                    **vars(debit), seq=sealed.seq, time=sealed.time, hash=sealed.hash
                )
            case Inspection() as step:
                self._inspections.apply(step)
            case Note("approval", event):
                self._approvals[str(event.get("plan"))] = event
        self.records += 1
        self.time = sealed.time
        self.head = sealed.hash

    # ---- rules ---------------------------------------------------------------------------------

    def check_debit(
        self,
        plan_hash: bytes,
        root: bytes,
        units: int,
        among: NDArray[np.integer] | None = None,
    ) -> None:
        """Raise exactly if a debit of `units` for the people of `root` may not be written.

        `among` names some of them by position: the check of a subset that is not stored yet.
        """
        plan = self._plan(plan_hash)
        positions = self._people.within(root, plan.terms.root)
        if not plan.is_open:
            raise BudgetExceeded(f"plan {_short(plan_hash)} is closed; it gets no more answers")
        if plan.terms.individual:
            return
        if among is None:
            spent = plan.spending.most(root, positions)
        else:
            spent = plan.spending.most_among(positions, among)
        unspent = plan.terms.units - spent
        if units > unspent:  # (8) debits within the reservation
            whole = plan.terms.units or 1
            raise BudgetExceeded(
                f"the query costs {units / whole:.2%} of plan {_short(plan_hash)}; the people of "
                f"{_short(root)} have {unspent / whole:.2%} of it left"
            )

    def _check_reserve(self, body: Reserve) -> None:
        set_aside = int(self._set_aside[self._people.numbers(body.root)].max())
        cap = self.cap_units
        if set_aside + body.units > cap:  # (7) reservations within the cap
            whole = cap or 1
            raise BudgetExceeded(
                f"plan {_short(body.plan)} takes {body.units / whole:.2%} of a person's budget; "
                f"somebody among its people has {(cap - set_aside) / whole:.2%} left over all plans"
            )

    # ---- answers to questions ------------------------------------------------------------------

    @property
    def ledger_id(self) -> bytes:
        return self._terms.ledger_id

    @property
    def cap_units(self) -> int:
        return self._terms.cap_units

    @property
    def delta(self) -> float:
        return float(self._terms.delta)

    @property
    def people(self) -> int:
        return len(self._people)

    @property
    def debits(self) -> int:
        return len(self._debits)

    @property
    def max_person_units(self) -> int:
        return int(self._spent_by_everybody().max(initial=0))

    @property
    def max_held_units(self) -> int:
        return int(self._set_aside.max(initial=0))

    def find(self, query_id: str) -> DebitRecord | None:
        """Return the debit of that query id, if there is one."""
        return self._debits.get(query_id)

    def debits_of(self, plan: bytes) -> list[DebitRecord]:
        """List a plan's debits in the order in which they were written."""
        return [record for record in self._debits.values() if record.plan == plan]

    def inspections(self, plan: bytes) -> tuple[Inspection, ...]:
        """List a plan's inspected requests by time of demand, each with its last step."""
        return self._inspections.of_plan(plan)

    def approval(self, plan: bytes) -> Event:
        """Return who approved a plan last, as it was noted; empty if nobody was."""
        return dict(self._approvals.get(plan.hex(), {}))

    def members(self, root: bytes) -> int:
        """Count the people of a root."""
        return self._people.members(root)

    def spent_units(self, plan_hash: bytes) -> int:
        """Return the largest sum of debits of a person; all of it if the plan counts in full."""
        plan = self._plan(plan_hash)
        return plan.terms.units if plan.in_full else plan.spending.largest

    def counts_in_full(self, plan_hash: bytes) -> bool:
        """Return whether all that was set aside for a plan counts as spent, closed or not."""
        return self._plan(plan_hash).in_full

    def spent_by_person(self, plan_hash: bytes) -> NDArray[np.int64]:
        """Return what each person of a plan spent, in the plan's order."""
        plan = self._plan(plan_hash)
        whole = np.full(len(plan.people), plan.terms.units, np.int64)
        return whole if plan.in_full else plan.spending.by_person()

    def answers(self, plan_hash: bytes) -> int:
        """Count the queries that were answered under a plan."""
        return self._plan(plan_hash).answers

    def remaining_units(self, plan_hash: bytes, root: bytes) -> int:
        """Return the largest debit that everybody of `root` can still bear.

        0 for a closed plan, and for an individual one: its reservation counts as spent already.
        """
        plan = self._plan(plan_hash)
        positions = self._people.within(root, plan.terms.root)
        if plan.terms.individual or not plan.is_open:
            return 0
        return plan.terms.units - plan.spending.most(root, positions)

    def person_units(self, member: bytes) -> int:
        """Return a person's debits over all plans (individual plans: their reservations)."""
        number = int(self._people.find(member)[0])
        return 0 if number < 0 else int(self._spent_by_everybody()[number])

    def held_units(self, members: Sequence[bytes]) -> int:
        """Return the most that one of these people has set aside or spent, over all plans."""
        numbers = self._people.find(b"".join(members))
        return int(self._set_aside[numbers[numbers >= 0]].max(initial=0))

    def distinct_people(self, plans: Sequence[bytes]) -> int:
        """Count who is in at least one of these plans; who is in several counts once."""
        numbers = [self._plan(plan).people for plan in plans]
        return len(np.unique(np.concatenate(numbers))) if numbers else 0

    def plans(self) -> tuple[PlanSummary, ...]:
        """List all plans in the order of their reservation."""
        return tuple(
            PlanSummary(
                plan=key,
                root=plan.terms.root,
                people=len(plan.people),
                units=plan.terms.units,
                spent_units=self.spent_units(key),
                individual=plan.terms.individual,
                is_open=plan.is_open,
                answers=plan.answers,
            )
            for key, plan in self._plans.items()
        )

    # ---- inner parts ---------------------------------------------------------------------------

    @property
    def _terms(self) -> Open:
        if self.opening is None:
            raise LedgerTampered("the ledger has no first record")
        return self.opening

    def _plan(self, plan: bytes) -> _Plan:
        if plan not in self._plans:
            raise ConfigError(f"no budget is reserved for plan {_short(plan)}; approve it first")
        return self._plans[plan]

    def _close(self, plan: _Plan, *, in_full: bool) -> None:
        plan.is_open = False
        if in_full:
            self._count_in_full(plan)
        if not plan.in_full:
            spent = plan.spending.by_person()
            self._settled[plan.people] += spent
            self._set_aside[plan.people] -= plan.terms.units - spent

    def _count_in_full(self, plan: _Plan) -> None:
        if not plan.in_full:
            self._settled[plan.people] += plan.terms.units
            plan.in_full = True

    def _spent_by_everybody(self) -> NDArray[np.int64]:
        """(people,) what counts as spent over all plans."""
        spent = self._settled.copy()
        for plan in self._plans.values():
            if plan.is_open and not plan.in_full:
                spent[plan.people] += plan.spending.by_person()
        return spent


@dataclass(frozen=True)
class _Group:
    """People of a root: person numbers, or positions within `parent` (none if withheld)."""

    parent: bytes | None
    positions: NDArray[np.uint32]  # (people,)


class LedgerPeople:
    """Numbers for people, in the order of their first appearance.

    People are the keyed hashes of their ids; nothing here knows whose they are.
    """

    def __init__(self) -> None:
        self._hashes = digests_of(b"")  # (people, 2) in the order of their numbers
        self._numbers = Places(self._hashes)
        self._groups: dict[bytes, _Group] = {}

    def __len__(self) -> int:
        return len(self._hashes)

    def __contains__(self, root: bytes) -> bool:
        return root in self._groups

    def find(self, members: bytes) -> NDArray[np.int64]:
        """(n,) the numbers of people by their hashes; −1 for who is not known."""
        return self._numbers.find(digests_of(members))

    def members(self, root: bytes) -> int:
        """Count the people of a root."""
        return len(self._group(root).positions)

    def add_list(self, root: bytes, members: bytes) -> None:
        """Take a list; who is new gets the next number."""
        numbers = self.find(members)
        new = numbers < 0
        numbers[new] = len(self) + np.arange(int(new.sum()))
        if new.any():
            self._hashes = np.concatenate([self._hashes, digests_of(members)[new]])
            self._numbers = Places(self._hashes)
        self._groups[root] = _Group(None, numbers.astype(np.uint32))

    def add_subset(self, body: Subset) -> None:
        """Take some people of a list."""
        self._groups[body.root] = _Group(body.parent, np.frombuffer(body.positions, "<u4"))

    def check_subset(self, body: Subset) -> None:
        """Raise unless the positions ascend and lie within the parent."""
        positions = np.frombuffer(body.positions, "<u4")
        ascending = bool(np.all(positions[1:] > positions[:-1]))
        most = int(positions.max(initial=0))
        if not ascending or most >= self.members(body.parent):  # (6) positions
            raise DataError("a subset's positions must ascend and lie within its parent")

    def numbers(self, root: bytes) -> NDArray[np.uint32]:
        """Return the person numbers of a root, all different."""
        group = self._group(root)
        numbers = group.positions
        while group.parent is not None:
            group = self._groups[group.parent]
            numbers = group.positions[numbers]
        return numbers

    def within(self, root: bytes, whole: bytes) -> Positions:
        """Where the people of `root` stand in the list `whole`; ConfigError if they do not."""
        if root == whole:
            return slice(None)
        group = self._group(root)
        positions = group.positions
        while group.parent is not None:
            if group.parent == whole:
                return positions
            group = self._groups[group.parent]
            positions = group.positions[positions]
        raise ConfigError(
            f"the people of {_short(root)} are no subset of those of {_short(whole)}, which the "
            "plan is about"
        )

    def _group(self, root: bytes) -> _Group:
        if root not in self._groups:
            raise ConfigError(f"the ledger knows no people with root {root.hex()[:12]}; add them")
        return self._groups[root]


class InspectionSteps:
    """How far each inspected request has come."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, bytes], Inspection] = {}  # last step of each request
        self._demanded: dict[str, bytes] = {}  # the request last demanded of each query id

    def holds(self, body: Inspection) -> bool:
        """Whether this very step was the request's last."""
        return self._last.get((body.query_id, body.request_hash)) == body

    def check(self, body: Inspection, *, may_begin: bool, answered: bytes | None) -> None:
        """Raise unless the step may come next.

        `may_begin`: the plan is open and the query unanswered; `answered`: the request that was.
        """
        last = self._last.get((body.query_id, body.request_hash))
        if body.step == "demanded":
            # Again only for another request, after the first one was opened and its key was lost.
            opened = self._step(body.query_id) in (None, "opened", "passed")
            allowed = last is None and may_begin and opened
        elif last is None:
            allowed = body.step in ("passed", "failed") and answered == body.request_hash
        else:
            allowed = last.plan == body.plan and last.step in _BEFORE[body.step]
        if not allowed:  # (10) steps in order
            raise VerificationError(
                f"an inspection of query {body.query_id!r} cannot be {body.step!r} here"
            )

    def check_debit(self, body: Debit) -> None:
        """Raise if the query is under inspection and this request did not get through it."""
        if body.query_id not in self._demanded:
            return
        opened = self._step(body.query_id) in ("opened", "passed")
        if self._demanded[body.query_id] != body.request_hash or not opened:  # (10) all are opened
            raise VerificationError(
                f"query {body.query_id!r} was to be inspected and this request did not pass"
            )

    def apply(self, step: Inspection) -> None:
        """Take a step that `check` let through."""
        self._last[step.query_id, step.request_hash] = step
        if step.step == "demanded":
            self._demanded[step.query_id] = step.request_hash

    def of_plan(self, plan: bytes) -> tuple[Inspection, ...]:
        """A plan's inspected requests by time of demand, each with its last step."""
        return tuple(each for each in self._last.values() if each.plan == plan)

    def _step(self, query_id: str) -> str | None:
        """How far the inspection of the request that was demanded last has come."""
        if query_id not in self._demanded:
            return None
        return self._last[query_id, self._demanded[query_id]].step


def _short(digest: bytes) -> str:
    return digest.hex()[:12]
