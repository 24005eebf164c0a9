"""How accurately and how fairly a trained θ adapts: new classes, a plain inner loop, no noise.

Support sets follow the training rule (9:1). Query sets are measured twice: `natural`, as drawn,
and `balanced`, where every image appears in both colours, so that A is independent of everything
else and a perfect classifier has GF = 1 and EO = 0. Data that cannot be recoloured are read once.

`count_decisions` is the same for the regulator's own tasks: exact counts, which leave it with noise
only (RegulatorLearner.measure).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.common.agreements.few_shot_settings import FewShotSettings
from isonomy.common.base.errors import DataError
from isonomy.common.few_shot.learning._measures import Measures, measures
from isonomy.common.few_shot.learning.adapt import adapt
from isonomy.common.few_shot.learning.models import Network
from isonomy.common.few_shot.learning.tasks import Pool, Sampler, SeededChoice, Tasks
from isonomy.common.privacy.task_counts import CELLS, COLUMNS, TaskCounts


@dataclass(frozen=True)
class TestSet:
    """A pool with groups, and each of its images in the other colour (None: there is none)."""

    __test__ = False  # not a test case

    pool: Pool
    swapped: NDArray[np.float32] | None = field(repr=False, default=None)  # (n, *shape)


@dataclass(frozen=True)
class Evaluation:
    """Both readings over the same tasks."""

    balanced: Measures
    natural: Measures


def evaluate(
    theta: NDArray[np.float32],
    settings: FewShotSettings,
    test: TestSet,
    *,
    tasks: int = 100,
    seed: int = 0,
    steps: int | None = None,
) -> Evaluation:
    """Adapt to `tasks` tasks of the test classes and measure all their queries together.

    `steps` of adaptation; by default as many as in training (Finn et al. take more at test too).
    Returns accuracy, GF and EO of balanced and of natural query sets.
    """
    pool = test.pool
    pool.check(settings, groups=True)
    others = pool.inputs[:0] if test.swapped is None else test.swapped
    if pool.groups is None or (len(others) and others.shape != pool.inputs.shape):
        raise DataError("a test set needs groups, and every image in the other colour or none")
    inputs, swapped = torch.from_numpy(pool.inputs), torch.from_numpy(others)
    predict, truth = _predictor(theta, settings, steps), _truth(settings)
    sampler, decisions = Sampler(pool, settings), []
    for number in range(tasks):
        task = sampler.draw(1, SeededChoice(seed, number))
        query, positive = task.query[0], task.positive[0]
        images = [inputs[query], swapped[query]] if len(others) else [inputs[query]]
        predicted = predict(inputs[task.support[0]], torch.cat(images)).reshape(-1, len(truth))
        labels_twice = np.broadcast_to(truth, predicted.shape)
        groups = np.stack([pool.groups[query], 1 - pool.groups[query]])[: len(predicted)]
        hard = (predicted, labels_twice, positive[predicted], positive[labels_twice], groups)
        decisions.append(hard)
    columns = [np.concatenate(column, axis=1) for column in zip(*decisions, strict=True)]
    balanced = measures(*(column.ravel() for column in columns))
    natural = measures(*(column[0] for column in columns))  # the first row: as drawn
    return Evaluation(balanced, natural)


def count_decisions(
    theta: NDArray[np.float32], settings: FewShotSettings, pool: Pool, tasks: Tasks
) -> NDArray[np.int64]:
    """(12,) the numbers of TaskCounts, summed over the tasks. Private: without noise.

    Takes any finite θ: a prediction from numbers that overflow is a wrong or a right one, no error.
    """
    if pool.groups is None:
        raise DataError("measuring by group needs the attribute: one group (0 or 1) per sample")
    counts, inputs = TaskCounts(settings.ways, settings.queries), torch.from_numpy(pool.inputs)
    predict, truth = _predictor(theta, settings), _truth(settings)
    total = np.zeros(CELLS * len(COLUMNS), np.int64)
    for support, query, positive in zip(tasks.support, tasks.query, tasks.positive, strict=True):
        predicted = predict(inputs[support], inputs[query])
        total += counts.of_queries(
            pool.groups[query], positive[truth], positive[predicted], predicted == truth
        )
    return total


def _predictor(
    theta: NDArray[np.float32], settings: FewShotSettings, steps: int | None = None
) -> Callable[[Tensor, Tensor], NDArray[np.int64]]:
    """Return what adapts θ to a support set and predicts the places of queries."""
    network = Network.of(settings)
    params = network.unflatten(torch.from_numpy(theta))
    labels = torch.arange(settings.ways).repeat_interleave(settings.shots)

    def predict(support: Tensor, queries: Tensor) -> NDArray[np.int64]:
        moved = adapt(
            network,
            params,
            support,
            labels,
            steps=settings.inner_steps if steps is None else steps,
            rate=settings.real("inner_rate"),
            part=settings.inner_part,
        )
        return np.asarray(network.logits(moved, queries).argmax(dim=1).numpy(), np.int64)

    return predict


def _truth(settings: FewShotSettings) -> NDArray[np.int64]:
    """(q,) the place of each query of a task."""
    return np.arange(settings.ways).repeat(settings.queries)
