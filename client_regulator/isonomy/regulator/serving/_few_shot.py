"""The daemon's part in few-shot runs: a desk per plan, and the learner behind it.

The learner needs torch, which a regulator who only answers queries does not have to install. It is
imported when a few-shot plan is first approved or served; if it is missing, a ConfigError says what
to install.
"""

from __future__ import annotations

import threading

from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import ConfigError
from isonomy.common.few_shot.rounds.desk import RoundDesk
from isonomy.common.few_shot.rounds.sides import RegulatorSide
from isonomy.regulator.plans.approval import check_few_shot, check_policy
from isonomy.regulator.plans.plan_files import few_shot_approvals
from isonomy.regulator.plans.sign_off import check_sign_off
from isonomy.regulator.serving._office import Office
from isonomy.regulator.vault.task_pools import TaskPool, open_pool


class FewShotDesks:
    """What answers for few-shot plans: a desk per plan, made when it is first needed."""

    def __init__(self, office: Office) -> None:
        self._office, self._config = office, office.config
        self._desks: dict[bytes, RoundDesk] = {}
        self._lock = threading.Lock()

    def plan(self, plan_hash: bytes) -> FewShotPlan | None:
        """The approved few-shot plan of that hash, if it is one."""
        store = few_shot_approvals(self._config)
        return store.require(plan_hash) if store.approved(plan_hash) else None

    def desk(self, plan: FewShotPlan) -> RoundDesk:
        """Return what answers for a plan, after its budget has been set aside."""
        with self._lock:
            if plan.hash not in self._desks:
                self._desks[plan.hash] = self._open(plan)
            return self._desks[plan.hash]

    def close(self, plan_hash: bytes) -> None:
        """Answer no more rounds under this plan."""
        with self._lock:
            self._desks.pop(plan_hash, None)

    def _open(self, plan: FewShotPlan) -> RoundDesk:
        check_sign_off(self._config, plan)
        check_policy(self._config, plan)  # before the tasks are decrypted
        tasks = open_pool(self._config, self._office.vault, plan.pool)
        members = tasks.ids.member_hashes(self._office.member_key)
        check_few_shot(self._config, self._office.ledger, plan, members)
        return RoundDesk(
            plan,
            lambda: learner(plan, tasks),
            self._office.ledger,
            self._config.state_folder / plan.hash.hex() / "few-shot",
            members=members,
            member_key_tag=hash_bytes("isonomy/member-key/v1", self._office.member_key),
        )


def learner(plan: FewShotPlan, tasks: TaskPool) -> RegulatorSide:
    """Return the regulator's learner on these tasks. Imports torch."""
    try:
        from isonomy.common.few_shot.learning.learners import RegulatorLearner
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"few-shot runs need {error.name}, which is not installed here: "
            "pip install 'isonomy[regulator,few-shot]'"
        ) from None
    return RegulatorLearner(plan.settings, tasks.pool)
