"""What a company of several asks alone: about its own people, under ids that are its own.

The regulator's half is that of a plan of one company (sums/regulator_half.py). This carrier makes
sure that a company reaches nobody else's people, and takes nobody else's ids.
"""

from __future__ import annotations

from collections.abc import Iterator

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import ProtocolError
from isonomy.common.pooled.people import share_slices
from isonomy.common.privacy.queries import Query, asks_alone
from isonomy.common.sums.noise_and_budget import Custodian
from isonomy.common.sums.regulator_half import CheckQuery, EncryptedColumns
from isonomy.common.wire.messages import decode


class ShareColumns(EncryptedColumns):
    """The homomorphic carrier for the people of one company of several."""

    def __init__(self, custodian: Custodian, plan: Plan, place: int) -> None:
        super().__init__(custodian)
        self._plan_hash, self._place = plan.hash, place
        self._share = share_slices(plan)[place]

    def columns(self, frame: bytes, check: CheckQuery) -> Iterator[bytes]:
        """Encrypted columns of this company's people, and of nobody else."""
        query = decode(frame, Query)
        if asks_alone(query.query_id, self._plan_hash) != self._place:
            raise ProtocolError("this id belongs to another company, or to all of them")
        positions = query.position_array(0)  # empty if it asks about everybody
        share = self._share
        if not len(positions) or positions[0] < share.start or positions[-1] >= share.stop:
            raise ProtocolError("who asks alone asks about its own people, by their positions")
        return super().columns(frame, check)
