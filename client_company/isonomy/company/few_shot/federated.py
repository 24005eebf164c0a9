"""Meta-train with a regulator through the federation, under an approved few-shot plan.

    from isonomy.company.few_shot.federated import federated

    result = federated("few-shot.json", pool, home="company")

Waits for the session that the server starts (`isonomy-server run few-shot.public.json`), as `join`
does. After each round the state is in the home folder: a run that was killed goes on after the last
finished round when the same script is started again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.base.errors import SessionClosed
from isonomy.common.few_shot.learning.learners import CompanyLearner
from isonomy.common.few_shot.learning.tasks import Pool
from isonomy.common.few_shot.rounds.session import RoundSummary, train
from isonomy.common.few_shot.rounds.sides import CompanySide
from isonomy.common.few_shot.rounds.state import CompanyState
from isonomy.common.session.stream import Timing
from isonomy.company.federation.home import Home
from isonomy.company.federation.joining import Attendee


@dataclass(frozen=True)
class Federated:
    """The result of a run."""

    plan: FewShotPlan
    theta: NDArray[np.float32] = field(repr=False)  # (d,)
    rounds: int  # finished, over all sessions
    ledger_head: str  # the regulator's after the last record: proof if its ledger is put back
    measured: str = (
        ""  # the hash of θ in the regulator's report; empty if the plan measures nothing
    )

    @property
    def complete(self) -> bool:
        """Were all rounds finished? If not, the regulator's samples had no budget left."""
        return self.rounds == self.plan.settings.rounds


def federated(
    plan: FewShotPlan | Path | str,
    pool: Pool | CompanySide,
    *,
    home: Path | str,
    socket: Path | str | None = None,
    group: str | None = None,
    wait_s: float = 3600.0,
    absence_s: float = 600.0,
    on_round: Callable[[RoundSummary], None] | None = None,
) -> Federated:
    """Take part in the next session of an approved few-shot plan; returns the trained parameters.

    | argument | meaning |
    |---|---|
    | plan | the plan, or its file; its hash must be approved in `home` |
    | pool | the company's samples (or a learner of your own that has the plan's model) |
    | home | the company's home folder |
    | socket, group, wait_s, absence_s | as for `join` |
    | on_round | called after each round, for a progress display |
    """
    company_home = Home(Path(home).resolve())
    loaded = plan if isinstance(plan, FewShotPlan) else FewShotPlan.load(Path(plan))
    approved = company_home.few_shot.require(loaded.hash)
    approved.check_valid()
    side = CompanyLearner(approved.settings, pool) if isinstance(pool, Pool) else pool
    approved.check_model(side.fingerprint, side.size)
    attendee = Attendee(approved, company_home, Timing(absence_s=absence_s))
    state = CompanyState(company_home.state(approved))

    def note(summary: RoundSummary) -> None:
        attendee.exchanges += 1
        if on_round is not None:
            on_round(summary)

    try:
        attendee.listen(socket, group)
        session = attendee.begin(wait_s)
        rounds = train(session, side, state, on_round=note)
    except BaseException as error:
        attendee.end(error if isinstance(error, Exception) else SessionClosed("interrupted"))
        raise
    attendee.end()
    receipt = state.receipt(approved)
    head, measured = (receipt.ledger_head.hex(), receipt.theta_hash.hex()) if receipt else ("", "")
    measured = measured if approved.settings.measured_tasks else ""  # then it is the last receipt
    return Federated(approved, side.theta(), rounds, head, measured)
