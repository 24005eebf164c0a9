"""Enforcing an individual filter: what each person lost by their own rows, added up by inspection.

    μ_i² = Σ_t c_t²·‖v_it‖²/σ_t² ≤ cap for every person i      few-shot paper, Algorithms 1 and 2

The company keeps the filter; the ledger reserved the cap for everybody once and takes the debits as
information (docs/design.md §4). So somebody must add up, and one inspected query says nothing about
the others. A plan with `individual_filter` is therefore approved only if *every* query is
inspected, by the regulator itself and before it is answered (approvals.check_promises). This
module is check (7):

    (7) nobody's rows, with those of all answered queries before, cost more than the plan's cap

Per inspected request a file keeps the squared norms, which is all that the sum needs; it is on disk
before the request counts as passed. If one is missing, nothing is answered. Norms are as secret as
rows: the files are the owner's, and go with `forget`.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.arrays import read_arrays
from isonomy.common.base.errors import DataError, StorageError, VerificationError
from isonomy.common.base.private_files import private_folder, write_private
from isonomy.common.inspection._inspection import differences
from isonomy.common.inspection.verdict import file_name
from isonomy.common.people.cohort import group_count
from isonomy.common.privacy.filters import IndividualFilter
from isonomy.common.privacy.quantise import integer_norms
from isonomy.common.privacy.queries import Query, cost_of
from isonomy.common.sums.noise_and_budget import Custodian
from isonomy.common.sums.sealed_opening import Shown
from isonomy.common.wire.messages import decode, frame_hash


@dataclass(frozen=True, repr=False)  # no repr: norms must not reach logs
class Charge:
    """What one request costs whom: ‖v_i‖² in integers, of whom, and (c², σ)."""

    norms_squared: NDArray[np.int64]
    people: NDArray[np.int64]
    price: NDArray[np.int64]

    @classmethod
    def of(cls, plan: Plan, contents: Shown) -> Charge:
        """From an opening that went through checks (0) to (6)."""
        query = decode(contents.opening.query_frame, Query)
        # For weighted sums the largest change that replacing the person's attribute can make.
        rows = np.asarray(contents.opening.rows)
        norms = np.stack([integer_norms(each) for each in differences(rows)])
        counts = tuple(group_count(name, plan.groups) for name in query.attributes)
        factor_squared = cost_of(query.shape, counts, query.params).squared_l2
        price = np.array([factor_squared // query.params.row_bound**2, query.noise])
        return cls(norms.max(axis=0), query.position_array(plan.cohort_size), price)

    def apply(self, account: Callable[..., Any]) -> Any:
        """Call a method of the filter with this charge."""
        factor_squared, sigma = self.price.tolist()
        return account(
            self.norms_squared, factor_squared=factor_squared, sigma=sigma, people=self.people
        )


class PeopleAccounts:
    """Everybody's own spending under one plan."""

    def __init__(self, plan: Plan, custodian: Custodian, folder: Path) -> None:
        self._plan, self._custodian, self._folder = plan, custodian, folder
        self._filter = IndividualFilter(plan.cohort_size, plan.cap_units)
        self._charged: set[str] = set()

    def catch_up(self) -> None:
        """Charge what was answered since; StorageError if the file of an answer is missing."""
        for each in self._custodian.inspections():
            answered = self._custodian.answered_request(each.query_id) == each.request_hash
            if answered and each.query_id not in self._charged:
                self._load(each.query_id, each.request_hash).apply(self._filter.charge)
                self._charged.add(each.query_id)
        if len(self._charged) != self._custodian.answers():
            raise StorageError("an answer of this plan was not inspected; nothing more is answered")

    def check(self, contents: Shown) -> None:
        """(7), for a request that is not answered yet."""
        if not Charge.of(self._plan, contents).apply(self._filter.admit).all():
            raise VerificationError("(7) a person's own rows cost more than the plan's budget")

    def keep(self, query_id: str, contents: Shown) -> None:
        """On disk when this returns: the request may now count as passed."""
        private_folder(self._folder)
        path, buffer = self._path(query_id, frame_hash(contents.header_frame)), io.BytesIO()
        arrays = {**vars(Charge.of(self._plan, contents)), "name": np.array(path.name)}
        np.savez(buffer, allow_pickle=False, **arrays)
        write_private(path, buffer.getvalue())

    def _load(self, query_id: str, request_hash: bytes) -> Charge:
        path = self._path(query_id, request_hash)
        try:
            arrays = read_arrays(path)
            if str(arrays.pop("name")) != path.name:
                raise ValueError("of another request")
            return Charge(**arrays)
        except (DataError, ValueError, KeyError, TypeError):
            raise StorageError(
                f"what people spent in query {query_id!r} is missing or damaged on disk; restore "
                "the state folder from a backup. Nothing more is answered under this plan"
            ) from None

    def _path(self, query_id: str, request_hash: bytes) -> Path:
        return self._folder / file_name(query_id, request_hash, "norms")
