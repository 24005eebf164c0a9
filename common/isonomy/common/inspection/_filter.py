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

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import StorageError, VerificationError
from isonomy.common.base.private_files import write_private
from isonomy.common.inspection._inspection import differences
from isonomy.common.inspection.verdict import file_name
from isonomy.common.people.cohort import group_count
from isonomy.common.privacy.filters import IndividualFilter
from isonomy.common.privacy.quantise import integer_norms_squared
from isonomy.common.privacy.queries import Query, cost_of
from isonomy.common.sums.custodian import Custodian
from isonomy.common.sums.openings import cut_chunks, join_chunks
from isonomy.common.sums.sealed_opening import Shown
from isonomy.common.wire.messages import decode, frame_hash


@dataclass(frozen=True, repr=False)  # no repr: norms must not reach logs
class Charge:
    """What one request costs whom: ‖v_i‖² in integers, c² and σ."""

    query_id: str
    request_hash: bytes
    norms_squared: NDArray[np.int64]
    positions: NDArray[np.int64]
    factor_squared: int
    sigma: int

    @classmethod
    def of(cls, plan: Plan, shown: Shown) -> Charge:
        """From an opening that went through checks (0) to (6)."""
        query = decode(shown.opening.query_frame, Query)
        # For weighted sums the largest change that replacing the person's attribute can make.
        own = np.stack([integer_norms_squared(each) for each in differences(shown.opening.rows)])
        counts = tuple(group_count(name, plan.groups) for name in query.attributes)
        cost = cost_of(query.shape, counts, query.params)
        return cls(
            query.query_id,
            frame_hash(shown.header_frame),
            own.max(axis=0),
            query.position_array(plan.cohort_size),
            cost.squared_l2 // query.params.row_bound**2,
            query.noise,
        )

    def dump(self) -> bytes:
        numbers = struct.pack("<2Q", self.factor_squared, self.sigma)
        arrays = (
            self.norms_squared.astype("<i8").tobytes(),
            self.positions.astype("<i8").tobytes(),
        )
        return join_chunks([self.query_id.encode(), self.request_hash, numbers, *arrays])

    @classmethod
    def parse(cls, raw: bytes) -> Charge:
        query_id, request_hash, numbers, norms, positions = cut_chunks(raw)
        factor_squared, sigma = struct.unpack("<2Q", numbers)
        return cls(
            query_id.decode(),
            request_hash,
            np.frombuffer(norms, "<i8").astype(np.int64),
            np.frombuffer(positions, "<i8").astype(np.int64),
            factor_squared,
            sigma,
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
                self._charge(self._load(each.query_id, each.request_hash))
        if len(self._charged) != self._custodian.answers():
            raise StorageError("an answer of this plan was not inspected; nothing more is answered")

    def check(self, shown: Shown) -> None:
        """(7), for a request that is not answered yet."""
        charge = Charge.of(self._plan, shown)
        admitted = self._filter.admit(
            charge.norms_squared,
            factor_squared=charge.factor_squared,
            sigma=charge.sigma,
            people=charge.positions,
        )
        if not admitted.all():
            raise VerificationError("(7) a person's own rows cost more than the plan's budget")

    def keep(self, shown: Shown) -> None:
        """On disk when this returns: the request may now count as passed."""
        charge = Charge.of(self._plan, shown)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self._path(charge.query_id, charge.request_hash), charge.dump())

    def _charge(self, charge: Charge) -> None:
        self._filter.charge(
            charge.norms_squared,
            factor_squared=charge.factor_squared,
            sigma=charge.sigma,
            people=charge.positions,
        )
        self._charged.add(charge.query_id)

    def _load(self, query_id: str, request_hash: bytes) -> Charge:
        try:
            charge = Charge.parse(self._path(query_id, request_hash).read_bytes())
        except (OSError, ValueError, struct.error):
            raise self._missing(query_id) from None
        if (charge.query_id, charge.request_hash) != (query_id, request_hash):
            raise self._missing(query_id)
        return charge

    @staticmethod
    def _missing(query_id: str) -> StorageError:
        return StorageError(
            f"what people spent in query {query_id!r} is missing or damaged on disk; restore the "
            "state folder from a backup. Nothing more is answered under this plan"
        )

    def _path(self, query_id: str, request_hash: bytes) -> Path:
        return self._folder / file_name(query_id, request_hash, "norms")
