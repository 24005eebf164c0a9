"""The regulator's learner with noise by the round's number: a restarted one draws the same."""

from __future__ import annotations

from typing import Any

from federation import CountedNoise

from isonomy.common.agreements.few_shot_settings import FewShotSettings
from isonomy.common.few_shot.learning.learners import RegulatorLearner
from isonomy.common.few_shot.learning.tasks import Pool
from isonomy.common.few_shot.rounds.sides import Contribution


class PerRound(RegulatorLearner):
    """For comparing bits across processes and restarts."""

    def __init__(self, settings: FewShotSettings, pool: Pool) -> None:
        self._counted = CountedNoise()
        super().__init__(settings, pool, _source=self._counted)

    def contribute(self, number: int, theta: Any) -> Contribution:
        self._counted.seed, self._counted.calls = number, 0
        return super().contribute(number, theta)
