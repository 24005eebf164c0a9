"""A rehearsal: both sides known, one process, every figure that a real run would hide.

Two phases. First the company alone meta-trains on its own tasks, which are not private: the *warm
start*, the same for every method of a seed. Then both take part for `rounds` rounds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.common.agreements.few_shot_settings import FewShotSettings
from isonomy.common.few_shot.learning.evaluate import Evaluation, evaluate
from isonomy.common.few_shot.learning.learners import CompanyLearner, RegulatorLearner
from isonomy.common.few_shot.learning.memory import run_in_memory
from isonomy.common.privacy.accounting import UNITS_PER_MU2
from isonomy.common.privacy.noise import NoiseSource
from isonomy.company.few_shot._variants import settings_for
from isonomy.company.few_shot.data import Pools

WARM_SETTINGS: dict[str, Any] = {
    "method": "none",
    "learner": "maml",
    "company_learner": "maml",
    "inner_part": "head",
    "outer_rate": 3_000,
    "company_tasks": 4,
}


@dataclass(frozen=True)
class RehearsalRecipe:
    """What a rehearsal does, apart from method, ε and seed. `base` goes into the settings."""

    base: Mapping[str, Any]
    warm_rounds: int = 200
    test_tasks: int = 100
    test_steps: int | None = None  # of adaptation at test; None: as in training


@dataclass(frozen=True)
class FewShotCell:
    """One run of one method. ε is 0 where nothing is private."""

    dataset: str
    method: str
    epsilon: float
    seed: int

    @property
    def key(self) -> str:
        return f"{self.dataset}/{self.method}/{self.epsilon:g}/{self.seed}"


@dataclass(frozen=True)
class RehearsalOutcome:
    """One run's figures. The last three are private in a real run."""

    cell: FewShotCell
    evaluation: Evaluation
    theta: NDArray[np.float32]
    settings: FewShotSettings
    seconds: float
    samples: int
    dropped: int
    spent: float  # mean μ² over the samples, as a share of the cap

    def to_json(self) -> dict[str, Any]:
        """Everything but θ, as results.jsonl has it."""
        return {
            "key": self.cell.key,
            "cell": asdict(self.cell),
            "status": "ok",
            **asdict(self.evaluation),
            "seconds": round(self.seconds, 2),
            "samples": self.samples,
            "dropped": self.dropped,
            "spent": round(self.spent, 4),
            "settings": self.settings.model_dump(mode="json"),
        }


def warm_start(pools: Pools, recipe: RehearsalRecipe, seed: int) -> NDArray[np.float32]:
    """θ after the company's own phase."""
    changes = {**WARM_SETTINGS, "rounds": max(1, recipe.warm_rounds), "seed": seed}
    settings = FewShotSettings(**{**recipe.base, **changes})
    company = CompanyLearner(settings, pools.company)
    for number in range(recipe.warm_rounds):
        company.step(number, company.contribute(number))
    return company.theta()


def rehearse(
    pools: Pools,
    recipe: RehearsalRecipe,
    cell: FewShotCell,
    start: NDArray[np.float32] | None = None,
    *,
    noise: NoiseSource | None = None,
) -> RehearsalOutcome:
    """Run one cell: tasks of the company and of the test follow the seed.

    The regulator's draws and noise are fresh, or come from `noise`: for experiments on public data
    alone, where methods are compared on the same draws. Such a θ protects nobody.

    Returns the trained θ with its figures on the test tasks.
    """
    base, samples = {**recipe.base, "seed": cell.seed}, len(pools.regulator)
    settings = settings_for(cell.method, cell.epsilon, base, samples)
    company = CompanyLearner(settings, pools.company, start=start)
    regulator = RegulatorLearner(settings, pools.regulator, _source=noise)
    clock = time.process_time()
    theta = run_in_memory(company, regulator, settings.rounds)
    seconds = time.process_time() - clock
    tasks, steps = recipe.test_tasks, recipe.test_steps
    evaluation = evaluate(theta, settings, pools.test, tasks=tasks, seed=cell.seed, steps=steps)
    accounts = regulator.accounts
    spent = float(accounts.spent.mean()) / (accounts.cap or UNITS_PER_MU2)
    figures = (seconds, regulator.samples, regulator.dropped, spent)
    return RehearsalOutcome(cell, evaluation, theta, settings, *figures)
