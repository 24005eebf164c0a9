"""How well and how fairly a trained θ adapts: new classes, a plain inner loop, nothing private.

Support sets follow the training rule (9:1). Query sets are measured twice: `natural`, as drawn,
and `balanced`, where every image appears in both colours, so that A is independent of everything
else and a perfect classifier has GF = 1 and EO = 0. Data that cannot be recoloured are read once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.common.base.errors import DataError
from isonomy.common.few_shot.learning.adapt import adapt
from isonomy.common.few_shot.learning.measures import Measures, measures
from isonomy.common.few_shot.learning.models import Network
from isonomy.common.few_shot.learning.tasks import Pool, Sampler, SeededChoice
from isonomy.common.few_shot.rounds.settings import FewShotSettings


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

    `steps`: of adaptation, as in training unless given (Finn et al. take more at test too).
    """
    pool = test.pool
    pool.check(settings, groups=True)
    others = pool.inputs[:0] if test.swapped is None else test.swapped
    if pool.groups is None or (len(others) and others.shape != pool.inputs.shape):
        raise DataError("a test set needs groups, and every image in the other colour or none")
    network = Network.of(settings)
    params = network.unflatten(torch.from_numpy(theta))
    inputs, swapped = torch.from_numpy(pool.inputs), torch.from_numpy(others)
    places = np.arange(settings.ways)
    labels = torch.from_numpy(places.repeat(settings.shots))
    truth = places.repeat(settings.queries)  # (q,)
    sampler, columns = Sampler(pool, settings), _Columns()
    for number in range(tasks):
        drawn = sampler.draw(1, SeededChoice(seed, number))
        moved = adapt(
            network,
            params,
            inputs[drawn.support[0]],
            labels,
            steps=settings.inner_steps if steps is None else steps,
            rate=settings.real("inner_rate"),
            part=settings.inner_part,
        )
        query = drawn.query[0]
        images = [inputs[query], swapped[query]] if len(others) else [inputs[query]]
        logits = network.logits(moved, torch.cat(images))
        columns.add(logits, truth, drawn.positive[0], pool.groups[query])
    return columns.evaluation()


class _Columns:
    """Decisions of all tasks, first as drawn, then in the other colour."""

    def __init__(self) -> None:
        self._parts: list[tuple[NDArray[np.generic], ...]] = []

    def add(
        self,
        logits: Tensor,
        truth: NDArray[np.int64],
        positive: NDArray[np.bool_],
        groups: NDArray[np.int8],
    ) -> None:
        predicted = logits.argmax(dim=1).numpy().reshape(-1, len(truth))  # (2 or 1, q)
        both = np.broadcast_to(truth, predicted.shape)
        colours = np.stack([groups, 1 - groups])[: len(predicted)]
        self._parts.append((predicted, both, positive[predicted], positive[both], colours))

    def evaluation(self) -> Evaluation:
        columns = [np.concatenate(column, axis=1) for column in zip(*self._parts, strict=True)]
        balanced = measures(*(column.ravel() for column in columns))
        natural = measures(*(column[0] for column in columns))
        return Evaluation(balanced, natural)


__all__ = ["Evaluation", "TestSet", "evaluate"]
