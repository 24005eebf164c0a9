"""Meta-train with a regulator through the federation, under an approved few-shot plan.

    from isonomy.company.few_shot.federated import federated

    result = federated("few-shot.json", pool, home="company")

Waits for the session that the server starts (`isonomy-server run few-shot.public.json`), as `join`
does. After each round the state is in the home folder: a run that was killed is started again as it
was, and goes on after the last finished round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import SessionClosed
from isonomy.common.few_shot.learning.learners import CompanyLearner
from isonomy.common.few_shot.learning.tasks import Pool
from isonomy.common.few_shot.rounds.plan import FewShotPlan
from isonomy.common.few_shot.rounds.session import Round, check_model, train
from isonomy.common.few_shot.rounds.sides import CompanySide
from isonomy.common.few_shot.rounds.state import CompanyState
from isonomy.common.node.bridge_server import Callers
from isonomy.common.session.stream import Timing
from isonomy.company.federation.home import Home
from isonomy.company.federation.joining import Attendee


@dataclass(frozen=True)
class Federated:
    """What came of a run."""

    plan: FewShotPlan
    theta: NDArray[np.float32] = field(repr=False)  # (d,)
    rounds: int  # finished, over all sessions
    wire_bytes: int  # of this session's frames
    ledger_head: str  # the regulator's, after the last round: it cannot go back behind it

    @property
    def complete(self) -> bool:
        """Were all rounds of the plan held? If not, the regulator's samples had no budget left."""
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
    on_round: Callable[[Round], None] | None = None,
) -> Federated:
    """Take part in the next session of an approved few-shot plan; returns the trained parameters.

    | argument | meaning |
    |---|---|
    | plan | the plan, or its file; its hash must be approved in `home` |
    | pool | the company's own samples (or a learner of your own that has the plan's model) |
    | home | the company's home folder |
    | socket, group, wait_s, absence_s | as for `join` |
    | on_round | called after each round, for a progress display |
    """
    own = Home(Path(home).resolve())
    named = plan if isinstance(plan, FewShotPlan) else FewShotPlan.load(Path(plan))
    approved = own.few_shot.require(named.hash)
    side = CompanyLearner(approved.settings, pool) if isinstance(pool, Pool) else pool
    check_model(approved, side)
    attendee = Attendee(approved, own, Timing(absence_s=absence_s))
    state = CompanyState(own.state(approved))

    def note(done: Round) -> None:
        attendee.exchanges += 1
        if on_round is not None:
            on_round(done)

    try:
        attendee.listen(Path(socket or own.socket), Callers(group))
        session = attendee.session(wait_s)
        rounds = train(session, side, state, on_round=note)
    except BaseException as error:
        attendee.end(error if isinstance(error, Exception) else SessionClosed("interrupted"))
        raise
    attendee.end()
    given = state.given(approved)
    head = given.ledger_head.hex() if given else ""
    return Federated(approved, side.theta(), rounds, session.bytes, head)


__all__ = ["Federated", "federated"]
