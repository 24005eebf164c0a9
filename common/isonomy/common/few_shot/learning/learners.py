"""The two learners of Algorithm 3, as rounds/sides.py wants them: integers in and out."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from isonomy.common.agreements.few_shot_settings import FewShotSettings
from isonomy.common.base.errors import BudgetExceeded, ConfigError, DataError
from isonomy.common.few_shot.learning._optimiser import OuterOptimiser
from isonomy.common.few_shot.learning._private import Accounts, fixed_point, saturated
from isonomy.common.few_shot.learning._private_round import PrivateRound
from isonomy.common.few_shot.learning._state import pack, unpack
from isonomy.common.few_shot.learning.adapt import meta_gradient
from isonomy.common.few_shot.learning.evaluate import count_decisions
from isonomy.common.few_shot.learning.models import Network, fingerprint
from isonomy.common.few_shot.learning.tasks import (
    Pool,
    Sampler,
    SeededChoice,
    Tasks,
    planned_uses,
)
from isonomy.common.few_shot.rounds.sides import FRACTION_BITS, MAX_ABS, Contribution
from isonomy.common.privacy.accounting import units_for
from isonomy.common.privacy.noise import NoiseSource, SystemNoise, rounded_gaussian
from isonomy.common.privacy.task_counts import SCALE

_MEASURED = 2**32  # beside the numbers of rounds, by which the company draws its tasks


class _Learner:
    """What both learners have: a network, a pool, and gradients of unprotected tasks."""

    def __init__(self, settings: FewShotSettings, pool: Pool) -> None:
        pool.check(settings, groups=False)
        self.settings, self.pool = settings, pool
        self.network = Network.of(settings)
        self._sampler = Sampler(pool, settings)

    @property
    def size(self) -> int:
        return self.network.size

    @property
    def fingerprint(self) -> bytes:
        return fingerprint(self.settings)

    def _plain_gradient(
        self, theta: NDArray[np.float32], tasks: Tasks, learner: str
    ) -> NDArray[np.float64]:
        """(d,) the mean meta-gradient of the tasks, neither clipped nor noised."""
        settings, inputs = self.settings, torch.from_numpy(self.pool.inputs)
        places = torch.arange(settings.ways)
        gradient = meta_gradient(
            self.network,
            torch.from_numpy(theta),
            (inputs[tasks.support], places.repeat_interleave(settings.shots)),
            (inputs[tasks.query], places.repeat_interleave(settings.queries)),
            learner=learner,
            steps=settings.inner_steps,
            rate=settings.real("inner_rate"),
            part=settings.inner_part,
        )
        return np.asarray(gradient.numpy(), np.float64)

    def _checked_theta(self, theta: NDArray[np.float32]) -> NDArray[np.float32]:
        theta = np.ascontiguousarray(theta, np.float32)
        if theta.shape != (self.size,):
            raise ConfigError(f"θ has {self.size} parameters here, got {theta.shape}")
        if not np.isfinite(theta).all():
            raise DataError("θ contains NaN or infinity: training diverged; nothing was spent")
        return theta


class CompanyLearner(_Learner):
    """Holds θ. Its tasks are not protected from the regulator, who sees θ move.

    The tasks are a function of the settings' seed and the round's number, so a resumed run draws
    the same ones.
    """

    def __init__(
        self, settings: FewShotSettings, pool: Pool, *, start: NDArray[np.float32] | None = None
    ) -> None:
        super().__init__(settings, pool)
        first = self.network.initial(settings.seed) if start is None else start
        self._outer = OuterOptimiser(
            self._checked_theta(first).copy(), settings.optimiser, settings.real("outer_rate")
        )

    def theta(self) -> NDArray[np.float32]:
        return self._outer.theta.copy()

    def contribute(self, number: int) -> NDArray[np.int64]:
        """The mean meta-gradient of this round's tasks, in fixed point."""
        self._sampler.uses[:] = 0  # no balance between rounds: each draw depends on its number only
        source = SeededChoice(self.settings.seed, number)
        tasks = self._sampler.draw(self.settings.company_tasks, source)
        mean = self._plain_gradient(self._outer.theta, tasks, self.settings.company_learner)
        return fixed_point(mean, FRACTION_BITS, MAX_ABS)

    def step(self, number: int, total: NDArray[np.int64]) -> NDArray[np.float32]:
        """θ_{t+1}, from the sum of both contributions."""
        if total.shape != (self.size,):
            raise ConfigError(f"expected a sum of {self.size} numbers, got {total.shape}")
        self._outer.step(np.asarray(total * 2.0**-FRACTION_BITS, np.float64))
        return self.theta()

    def state(self) -> bytes:
        return pack(self._outer.arrays())

    def restore(self, state: bytes) -> None:
        self._outer.restore(unpack(state))


class RegulatorLearner(_Learner):
    """Holds the private tasks. What leaves is a Contribution (_private.py), or `measure`'s numbers.

    Measured tasks are drawn once, from the settings' seed and the classes' sizes; no round uses a
    sample of theirs.

    `_source` is for tests that compare bits; nothing a user can set reaches it.
    """

    def __init__(
        self, settings: FewShotSettings, pool: Pool, *, _source: NoiseSource | None = None
    ) -> None:
        super().__init__(settings, pool)
        if settings.fair or settings.measured_tasks:
            pool.check(settings, groups=True)
        self._source = _source or SystemNoise()
        self._held_out = np.zeros(len(pool), np.bool_)
        self._measured: Tasks | None = None
        if settings.measured_tasks:
            choice = SeededChoice(settings.seed, _MEASURED)
            self._measured = self._sampler.draw(settings.measured_tasks, choice)
            self._held_out[self._measured.support] = self._held_out[self._measured.query] = True
            self._sampler = Sampler(pool, settings, self._held_out)
        self._round: PrivateRound | None = None
        cap = units_for(settings.real("epsilon"), float(settings.delta))
        self.accounts = Accounts(len(pool), cap, individual=settings.individual)
        if settings.private or settings.fair:
            self._round = PrivateRound(
                settings,
                pool,
                self.network,
                self.accounts,
                source=self._source,
                held_out=self._held_out,
            )
            self._try_one()
        # A round that cannot be drawn is refused now, not later.
        trial = Sampler(pool, settings, self._held_out)
        trial.draw(settings.regulator_tasks, SeededChoice(0))

    @property
    def samples(self) -> int:
        return len(self.pool)

    @property
    def dropped(self) -> int:
        """Samples that could not pay at least once. Private: for rehearsals, never to be sent."""
        return int(self.accounts.refused.sum())

    def _try_one(self) -> None:
        """Refuse a model that cannot take a single sample, before a budget is reserved for it."""
        params = self.network.unflatten(torch.zeros(self.size))
        try:
            self.network.logits(params, torch.zeros(1, *self.settings.input_shape))
        except (ValueError, RuntimeError) as error:
            raise ConfigError(f"the model does not take a sample by itself: {error}") from None

    def contribute(self, number: int, theta: NDArray[np.float32]) -> Contribution:
        """The noised mean gradient of this round; on any error nothing has been spent.

        Under worst-case accounts BudgetExceeded says that no sample can pay for any part, which
        depends on the draws of tasks alone. Under individual accounts it is never raised: it is
        private that the last sample has dropped out, so the noise goes on without any.
        """
        theta = self._checked_theta(theta)
        before = self._arrays()
        try:
            values = self._noised_gradient(theta)
            return Contribution(values, self.accounts.spent, pack(self._arrays()))
        except BaseException:
            self._put(before)
            raise

    def _noised_gradient(self, theta: NDArray[np.float32]) -> NDArray[np.int64]:
        """(d,) this round's share in fixed point; charges the samples' accounts."""
        settings = self.settings
        planned = planned_uses(settings, int((~self._held_out).sum()))
        self.accounts.pace(planned - self._sampler.uses)
        tasks = self._sampler.draw(settings.regulator_tasks, self._source)
        if self._round is None:
            mean = self._plain_gradient(theta, tasks, settings.learner)
        else:
            if settings.private and not self._round.can_pay():
                raise BudgetExceeded("no sample's account covers another use; nothing was spent")
            mean = self._round.gradient(theta, tasks)
        to_integers = saturated if settings.private else fixed_point
        return to_integers(mean * settings.real("regulator_weight"), FRACTION_BITS, MAX_ABS)

    def measure(self, theta: NDArray[np.float32], sigma: int) -> NDArray[np.int64]:
        """(12,) SCALE times the counts of the measured tasks after adaptation, with noise."""
        if self._measured is None:
            raise ConfigError("these settings measure no task")
        exact = count_decisions(
            self._checked_theta(theta), self.settings, self.pool, self._measured
        )
        return SCALE * exact + rounded_gaussian(sigma, len(exact), self._source)

    def restore(self, state: bytes) -> None:
        self._put(unpack(state))

    def _arrays(self) -> dict[str, NDArray[np.generic]]:
        arrays: dict[str, NDArray[np.generic]] = {
            "uses": self._sampler.uses.copy(),
            "spent": self.accounts.spent,
            "refused": self.accounts.refused.copy(),
            "held_out": self._held_out,
        }
        return arrays | (self._round.arrays() if self._round else {})

    def _put(self, arrays: dict[str, NDArray[np.generic]]) -> None:
        try:
            uses, spent, refused = arrays["uses"], arrays["spent"], arrays["refused"]
            held_out = arrays["held_out"]
        except KeyError:
            raise DataError("this is not a regulator's few-shot state") from None
        if uses.shape != (self.samples,) or refused.shape != (self.samples,):
            raise DataError("this state belongs to another number of samples")
        if not np.array_equal(held_out, self._held_out):  # a sample would pay twice
            raise DataError("this state belongs to other measured tasks than these settings draw")
        self.accounts.put_back(np.asarray(spent, np.int64), np.asarray(refused, np.bool_))
        self._sampler.uses = np.asarray(uses, np.int64).copy()
        if self._round is not None:
            self._round.put(arrays)
