"""The daemon's part in few-shot runs: a desk per plan, and the learner behind it.

The learner needs torch, which a regulator who only answers queries does not have to install. It is
imported when a few-shot plan is first approved or served; if it is missing, a ConfigError says what
to install.
"""

from __future__ import annotations

import threading

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import ConfigError, PolicyRefused
from isonomy.common.few_shot.rounds.desk import RoundDesk
from isonomy.common.few_shot.rounds.plan import MILLION, FewShotPlan
from isonomy.common.few_shot.rounds.sides import RegulatorSide
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.privacy.accounting import epsilon_of, units_for
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.faults import VaultLocked
from isonomy.regulator.plans.few_shot_approval import approvals, check_policy
from isonomy.regulator.vault.member_key import member_key
from isonomy.regulator.vault.task_pools import TaskPool, open_pool
from isonomy.regulator.vault.vault import Vault


class FewShotDesks:
    """What answers for few-shot plans: a desk per plan, made when it is first needed."""

    def __init__(self, config: RegulatorConfig, ledger: Ledger, vault: Vault | None) -> None:
        self._config, self._ledger, self._vault = config, ledger, vault
        self._desks: dict[bytes, RoundDesk] = {}
        self._lock = threading.Lock()

    def plan(self, plan_hash: bytes) -> FewShotPlan | None:
        """The approved few-shot plan of that hash, if it is one."""
        store = approvals(self._config)
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
        check_policy(self._config, plan)
        if self._vault is None:
            raise VaultLocked("the vault was not opened; it is needed to answer for a plan")
        tasks = open_pool(self._config, self._vault, plan.pool)
        key = member_key(self._config)
        members = tasks.ids.member_hashes(key)
        self._check_totals(plan, members)
        return RoundDesk(
            plan,
            lambda: learner(plan, tasks),
            self._ledger,
            self._config.state_folder / plan.hash.hex() / "few-shot",
            members=members,
            member_key_tag=hash_bytes("isonomy/member-key/v1", key),
        )

    def _check_totals(self, plan: FewShotPlan, members: list[bytes]) -> None:
        """Raise PolicyRefused if a sample would lose more than the total in regulator.toml.

        That total may be below the ledger's cap, which the ledger itself enforces.
        """
        if plan.hash in {entry.plan for entry in self._ledger.plans()}:
            return
        delta = float(self._config.ledger.delta)
        units, total = self._ledger.held_units(members), self._config.ledger.epsilon
        if units + plan.cap_units > units_for(float(total), delta):
            raise PolicyRefused(
                f"ε = {plan.epsilon_millionths / MILLION:g} on top of the "
                f"{epsilon_of(units, delta):.3g} that some sample has already set aside is above "
                f"the total of {total}"
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
