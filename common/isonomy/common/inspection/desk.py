"""The regulator's inspections of one plan: the coin, the demand, the verdict (docs/adr/0006).

    (1) a complete request is here, its commitment and ciphertexts bound by hash
    (2) the coin is tossed: "demanded" is in the ledger before the company hears of it. By pads
        people are drawn instead, in every request: the demand names them, and is on disk too
    (3) the opening comes, sealed to the plan's auditor
    (4) the auditor is the regulator: all checks at once, "passed" or "failed" in the ledger
        another auditor: filed, "opened" in the ledger; its signed verdict follows
    (5) answered after "passed" (after "opened", if the plan does not wait for the verdict)

Rules, each of which closes a way around an inspection:
    * The demand names one request and stays until that very request was opened. Meanwhile the plan
      gets nothing else: no new query, no new attempt. Restarts of either side change nothing.
    * Once demanded, always inspected: if the key was lost after a request passed, the next attempt
      at the same query is demanded too, without a coin.
    * A demand that was not answered by the plan's deadline is "overdue", which counts as failed.
    * One failure ends the plan. Its stored answers can still be fetched; there are no new ones.

Coin and draw are the operating system's randomness and nothing else, so that who is inspected, and
how often, says nothing about anybody's attributes.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.base.errors import (
    ConfigError,
    InspectionFailed,
    InspectionPending,
    ProtocolError,
)
from isonomy.common.base.logs import logger
from isonomy.common.inspection._filter import PeopleAccounts
from isonomy.common.inspection.audit import audit
from isonomy.common.inspection.verdict import InspectionFolder, Verdict
from isonomy.common.keys.party import Card, PartyKeys
from isonomy.common.ledger.records import Inspection
from isonomy.common.pads.draw import RowDraw
from isonomy.common.privacy.queries import Query, Shapes
from isonomy.common.sums.joint_opening import JointOpening
from isonomy.common.sums.noise_and_budget import Custodian
from isonomy.common.sums.regulator_half import RowsRead
from isonomy.common.sums.sealed_opening import (
    DEMAND_DOMAIN,
    SealedOpening,
    check_header_signature,
    check_opening_size,
    collect_opening,
)
from isonomy.common.wire.messages import OpeningDemand, OpeningHeader, encode

POLL_S = 0.2


class InspectionDesk:
    """Decides about inspections (regulator_half.Inspector). Its memory is the ledger."""

    verdict_wait_s = 30.0

    def __init__(
        self,
        plan: Plan,
        custodian: Custodian,
        keys: PartyKeys,
        folder: Path,
        *,
        company: Card | None = None,
        policy_millionths: int = 0,
        log: Any = None,
    ) -> None:
        if not plan.auditor:
            raise ConfigError("inspections need an auditor in the plan")
        self._company = company or plan.companies[0]  # whose openings come here
        self._plan, self._custodian, self._keys = plan, custodian, keys
        self._folder = InspectionFolder(folder, plan)
        filtered = plan.individual_filter
        self._accounts = PeopleAccounts(plan, custodian, folder) if filtered else None
        self._by_rows = plan.carrier == "pads"
        # A regulator may inspect more queries than agreed, never fewer; but not open more people's
        # rows: their share is in the plan's text. Where nothing was agreed the company opens
        # nothing on demand, and a demand would only block the plan.
        agreed = plan.inspection_millionths
        more = agreed > 0 and not self._by_rows
        self._rate = max(agreed, policy_millionths) if more else agreed
        self._waits = plan.regulator_audits or plan.inspection_waits
        log = log or logger("regulator", least="warning")
        self._log = log.bind(plan=plan.hash.hex()[:16])
        self._today: Callable[[], date] = lambda: datetime.now(UTC).date()

    # --- Before a query, and with its request ----------------------------------------------------

    def check_query(self, query: Query, shapes: Shapes) -> None:
        """Raise if no new query may be asked now."""
        self._settle()
        standing = self._standing()
        if standing is not None:
            raise _pending(standing)
        if self._is_over():
            raise ProtocolError(
                f"the plan's inspections ended on {self._plan.inspection_deadline}, and with them "
                "its answers; make a new plan"
            )
        if self._accounts is not None and query.mechanism != "gaussian":
            raise ProtocolError("a plan with an individual filter takes Gaussian noise only")
        check_opening_size(query, shapes, by_rows=self._by_rows)

    def check_request(self, query_id: str, request_hash: bytes) -> OpeningDemand | None:
        """Return the demand for this request, if there is one; raise if another is in its way."""
        self._settle()
        standing = self._standing()
        if standing is None:
            return None
        is_this = (standing.query_id, standing.request_hash) == (query_id, request_hash)
        if not is_this or standing.step == "opened":
            raise _pending(standing)
        return self._standing_demand(query_id, request_hash)

    def sample(self, query_id: str, people: int) -> RowDraw:
        """Draw the rows to open of a request by pads; told to nobody before all of it is here."""
        draw = RowDraw(secrets.token_bytes(32), self._rate)
        # Once demanded, always inspected: of a later attempt at the same query somebody is drawn.
        again = self._rate > 0 and self._was_demanded(query_id)
        while again and not len(draw.people(people)):
            draw = replace(draw, millionths=min(2 * draw.millionths, MILLION))
        return draw

    def draw(
        self, query_id: str, request_hash: bytes, rows: RowsRead | None
    ) -> OpeningDemand | None:
        """Toss the coin for a complete request; the ledger knows the demand before it leaves.

        By pads the draw is made (`rows`); nothing is demanded if nobody was drawn. InspectionFailed
        if the company committed to other pads than the regulator has of somebody, drawn or not.
        """
        if self._steps().get((query_id, request_hash)) in ("passed", "opened"):
            return None  # by pads it can be read again after a restart: it went through already
        if rows is not None and not rows.pads_hold:
            self._note(query_id, request_hash, "demanded")
            self._note(query_id, request_hash, "failed")
            # Not whose: that would tell which side of that person the regulator has.
            raise InspectionFailed(
                f"query {query_id!r} failed its inspection and gets no answer: its pads are not "
                "those of the keys that were transferred"
            )
        drawn = self._coin(query_id) if rows is None else rows.drawn > 0
        if not drawn:
            return None
        demand = self._demand(query_id, request_hash, rows)
        if rows is not None:
            self._folder.keep_demand(demand)
        self._note(query_id, request_hash, "demanded")
        return demand

    def _coin(self, query_id: str) -> bool:
        return self._was_demanded(query_id) or secrets.randbelow(MILLION) < self._rate

    # --- With the opening ------------------------------------------------------------------------

    def judge(self, header: OpeningHeader, frames: Iterator[bytes], max_bytes: int) -> None:
        """Take an opening of at most `max_bytes`; raise unless the request may now be answered.

        Size and signature are in the header, so a box is taken into memory only if the company
        itself signed for it, and only as large as an honest one can be.
        """
        demand = self.check_request(header.query_id, header.request_hash)
        if demand is None:
            if (header.query_id, header.request_hash) not in self._steps():
                raise ProtocolError("no opening of this request was demanded")
            return  # the answer got lost on the way: there is nothing to check again
        self.decide(self.collect(demand, header, frames, max_bytes), demand)

    def collect(
        self, demand: OpeningDemand, header: OpeningHeader, frames: Iterator[bytes], max_bytes: int
    ) -> SealedOpening:
        """Read the box that the company sealed for a demand, or raise."""
        # What is too large, cut off or not the company's proves nothing: the demand stays.
        demand_frame = encode(demand)
        check_header_signature(header, self._company.signing_key, demand_frame)
        if header.size > max_bytes:
            raise ProtocolError(
                f"an opening of this query has at most {max_bytes} bytes, not {header.size}"
            )
        return collect_opening(self._plan.hash, demand_frame, header, frames)

    def decide(self, sealed: SealedOpening | JointOpening, demand: OpeningDemand) -> None:
        """Check or file an opening; raise unless its request may now be answered."""
        if self._plan.regulator_audits:
            self._audit(sealed)
        else:
            self._folder.file(sealed)
            self._note(sealed.query_id, sealed.request_hash, "opened")
        self._folder.drop_demand(demand)
        if self._waits:
            self._await_verdict()

    def _audit(self, sealed: SealedOpening | JointOpening) -> None:
        """All checks at once: the regulator is the auditor."""
        accounts, also = self._accounts, None
        if accounts is not None:
            accounts.catch_up()  # before the audit: what is missing here is not the company's fault
            also = accounts.check
        verdict = audit(self._plan, sealed, self._keys, also=also)
        if accounts is not None and verdict.passed and isinstance(sealed, SealedOpening):
            accounts.keep(sealed.query_id, sealed.open(self._keys.sealing))
        self._note(verdict.query_id, verdict.request_hash, verdict.step)
        if not verdict.passed:
            raise InspectionFailed(
                f"query {verdict.query_id!r} failed its inspection and gets no answer: "
                f"{verdict.reason}"
            )

    def _await_verdict(self) -> None:
        deadline = time.monotonic() + self.verdict_wait_s
        while (standing := self._standing()) is not None:
            if time.monotonic() > deadline:
                raise _pending(standing)
            time.sleep(POLL_S)
            self._settle()

    # --- Verdicts --------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Write new verdicts and overdue demands into the ledger; InspectionFailed if one failed.

        A verdict is in the ledger from the moment it was taken (InspectionFolder.take). This is for
        files that came another way: the ledger counts, so that a lost file revives no plan.
        """
        verdicts, steps = self._folder.verdicts(), self._steps()
        for verdict in verdicts:
            if self._is_new(verdict, steps.get((verdict.query_id, verdict.request_hash))):
                self._note(verdict.query_id, verdict.request_hash, verdict.step)
        for (query_id, request_hash), step in self._steps().items():
            if step == "demanded" and self._is_over():
                self._note(query_id, request_hash, "overdue")
        steps = self._steps()
        failed = [name for (name, _), step in steps.items() if step in ("failed", "overdue")]
        # Signed, but about no request that this ledger knows: it may have been rolled back.
        failed += [verdict.query_id for verdict in verdicts if not verdict.passed]
        if failed:
            raise InspectionFailed(
                f"query {failed[0]!r} failed its inspection, or was not opened in time; this plan "
                "gets no more answers"
            )

    def _is_over(self) -> bool:
        return self._plan.inspections_over(self._today())

    def _is_new(self, verdict: Verdict, step: str | None) -> bool:
        """Whether the ledger can take this verdict and does not have it yet."""
        if step is None:  # opened by file, after its answer
            return self._custodian.answered_request(verdict.query_id) == verdict.request_hash
        return step in ("demanded", "opened") or (step == "passed" and not verdict.passed)

    def _note(self, query_id: str, request_hash: bytes, step: str) -> None:
        self._custodian.note_inspection(query_id, request_hash, step)
        self._log.info(f"inspection {step}", query=query_id)

    def _steps(self) -> dict[tuple[str, bytes], str]:
        inspections = self._custodian.inspections()
        return {(each.query_id, each.request_hash): each.step for each in inspections}

    def _standing(self) -> Inspection | None:
        """The request that must be opened (or judged) before anything else is answered."""
        steps = ("demanded", "opened") if self._waits else ("demanded",)
        return next((each for each in self._custodian.inspections() if each.step in steps), None)

    def _was_demanded(self, query_id: str) -> bool:
        return any(each.query_id == query_id for each in self._custodian.inspections())

    def _standing_demand(self, query_id: str, request_hash: bytes) -> OpeningDemand:
        """The demand that was made before: the same bytes again."""
        if not self._by_rows:
            return self._demand(query_id, request_hash, None)
        return self._folder.demand(query_id, request_hash)

    def _demand(self, query_id: str, request_hash: bytes, rows: RowsRead | None) -> OpeningDemand:
        auditor = bytes.fromhex(self._plan.auditor)
        unsigned = OpeningDemand(query_id, self._plan.hash, request_hash, auditor, b"")
        if rows is not None:
            unsigned = replace(unsigned, seed=rows.seed, millionths=rows.millionths)
            unsigned = replace(unsigned, cells_hash=rows.cells_hash)
        signature = self._keys.identity.sign(DEMAND_DOMAIN, unsigned.signed_bytes())
        return replace(unsigned, signature=signature)


def _pending(standing: Inspection) -> InspectionPending:
    what = (
        "its opening is with the auditor, whose verdict is not in; run again later"
        if standing.step == "opened"
        else "its opening was demanded and has not come; nothing else is answered before"
    )
    return InspectionPending(f"query {standing.query_id!r} is being inspected: {what}")
