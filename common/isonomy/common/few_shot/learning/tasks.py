"""Pools of samples, and the tasks that a round draws from them.

A task is `ways` classes in random order, `shots` support samples and `queries` query samples of
each; no sample is in both. Where classes fall into two halves (`positive`), a task mixes them.

The regulator draws from the operating system's randomness, and prefers the samples and classes
that were used least so far. How often a slot was used depends on earlier draws only, never on what
is in it: the choice reveals nothing about a sample. All samples of one round are distinct, so each
is charged for one task at most.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from isonomy.common.agreements.few_shot_settings import FewShotSettings
from isonomy.common.base.errors import DataError
from isonomy.common.privacy.noise import NoiseSource

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Pool:
    """Samples of one party. `groups` is the sensitive attribute, 0 or 1; the company has none.

    `positive` says for every class whether predicting it counts as ŷ = 1 (GF and EO). Like the
    names and sizes of the classes, it is not protected.
    """

    inputs: NDArray[np.float32] = field(repr=False)  # (n, *shape)
    labels: Indices = field(repr=False)  # (n,) classes 0 … c − 1
    groups: NDArray[np.int8] | None = field(default=None, repr=False)  # (n,)
    positive: NDArray[np.bool_] | None = field(default=None, repr=False)  # (c,)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        return int(self.labels.max()) + 1

    def check(self, settings: FewShotSettings, *, groups: bool = False) -> None:
        """Raise DataError now for everything that would go wrong later, after a debit."""
        n = len(self.labels)
        if self.inputs.shape != (n, *settings.input_shape) or not n:
            raise DataError(
                f"expected inputs of shape (samples, {', '.join(map(str, settings.input_shape))}) "
                f"and one label each; got {self.inputs.shape} and {n} labels"
            )
        if not np.isfinite(self.inputs).all():
            raise DataError("some inputs hold NaN or infinity; clean them")
        if self.labels.dtype.kind != "i" or int(self.labels.min()) < 0:
            raise DataError("labels are integers from 0")
        if self.classes > n:  # arrays of one number per class must stay small
            raise DataError(f"labels count classes from 0; the largest is {self.classes - 1}")
        counts = np.bincount(self.labels)
        if (short := int((counts < settings.shots + settings.queries).sum())) > 0:
            raise DataError(
                f"{short} of {len(counts)} classes have fewer than {settings.shots} support + "
                f"{settings.queries} query samples; leave them out, or lower shots or queries"
            )
        if len(counts) < settings.ways:
            raise DataError(f"{settings.ways}-way tasks need as many classes, got {len(counts)}")
        self._check_halves(settings)
        if groups:
            self._check_groups()

    def _check_halves(self, settings: FewShotSettings) -> None:
        if self.positive is None:
            return
        if self.positive.shape != (self.classes,) or self.positive.dtype != np.bool_:
            raise DataError(f"positive must be one boolean for each of {self.classes} classes")
        least, most = settings.ways // 2, settings.ways - settings.ways // 2
        if min(int(self.positive.sum()), int((~self.positive).sum())) < most:
            raise DataError(
                f"a task mixes {least} or {most} classes of either half; one half has fewer"
            )

    def _check_groups(self) -> None:
        if self.groups is None or self.groups.shape != self.labels.shape:
            raise DataError("the constraint needs the attribute: one group (0 or 1) per sample")
        if not np.isin(self.groups, (0, 1)).all():
            raise DataError("the attribute is missing (not 0 or 1) on some samples")
        if self.positive is None:
            raise DataError("the constraint needs to know which classes count as ŷ = 1: `positive`")
        cells = 2 * self.groups.astype(np.int64) + self.positive[self.labels]
        if (np.bincount(cells, minlength=4) == 0).any():
            raise DataError(
                "one half of the classes lacks one of the groups: tasks could not compare them"
            )


@dataclass(frozen=True)
class Tasks:
    """A batch of tasks as positions in a pool, class by class: label ⌊j/shots⌋ at place j."""

    support: Indices  # (t, ways·shots)
    query: Indices  # (t, ways·queries)
    positive: NDArray[np.bool_]  # (t, ways): which places of the task hold positive classes

    def __len__(self) -> int:
        return len(self.support)


def planned_uses(settings: FewShotSettings, samples: int) -> int:
    """u = ⌈rounds·tasks·ways·(shots + queries)/samples⌉: how often the run uses each sample.

    Reptile has no use for query samples.
    """
    each = settings.ways * (settings.shots + settings.queries * (settings.learner != "reptile"))
    return max(1, -(-settings.rounds * settings.regulator_tasks * each // samples))


class Sampler:
    """Draws batches of tasks; `uses` is its whole state. It never draws what is `held_out`."""

    def __init__(
        self,
        pool: Pool,
        settings: FewShotSettings,
        held_out: NDArray[np.bool_] | None = None,  # (n,)
    ) -> None:
        self._settings = settings
        labels = pool.labels if held_out is None else np.where(held_out, -1, pool.labels)
        self._labels = labels
        self._members = [np.flatnonzero(labels == c) for c in range(pool.classes)]
        self._sizes = np.array([len(members) for members in self._members])
        self._positive = (
            np.zeros(pool.classes, np.bool_) if pool.positive is None else pool.positive
        )
        self._mixed = pool.positive is not None
        self.uses = np.zeros(len(pool), np.int64)

    def draw(self, count: int, source: NoiseSource) -> Tasks:
        """`count` tasks that share no sample, least used samples first; `uses` goes up."""
        uses, free = self.uses.copy(), np.ones(len(self.uses), np.bool_)
        shots, queries = self._settings.shots, self._settings.queries
        support, query, positive = [], [], []
        for _ in range(count):
            classes = self._classes(uses, free, source)
            samples = np.stack([self._samples(c, uses, free, source) for c in classes])
            uses[samples], free[samples] = uses[samples] + 1, False
            support.append(samples[:, :shots].ravel())
            query.append(samples[:, shots : shots + queries].ravel())
            positive.append(self._positive[classes])
        self.uses = uses
        return Tasks(np.stack(support), np.stack(query), np.stack(positive))

    def _classes(self, uses: Indices, free: NDArray[np.bool_], source: NoiseSource) -> Indices:
        """(ways,) the least used classes that have enough free samples, in random order."""
        each, ways = self._settings.shots + self._settings.queries, self._settings.ways
        members = self._labels >= 0
        labels, classes = self._labels[members], len(self._members)
        spare = np.bincount(labels, weights=free[members], minlength=classes)
        total = np.bincount(labels, weights=uses[members], minlength=classes)
        able, mean_uses = spare >= each, total / np.maximum(self._sizes, 1)
        order = np.lexsort((_words(len(able), source), mean_uses))
        order = order[able[order]]
        if self._mixed:
            more = int(_words(1, source)[0] & np.uint64(1))
            first = ways // 2 + (ways % 2) * more
            upper, lower = order[self._positive[order]], order[~self._positive[order]]
            order = np.concatenate([upper[:first], lower[: ways - first]])
        if len(order) < ways:
            raise DataError(
                "the tasks take more samples than there are: a sample is used once a round at "
                "most, and a measured one in no round. Lower the tasks per round or "
                "measured_tasks, or add samples"
            )
        order = order[:ways]
        return np.asarray(order[np.argsort(_words(ways, source))], np.int64)

    def _samples(
        self, label: int, uses: Indices, free: NDArray[np.bool_], source: NoiseSource
    ) -> Indices:
        """(shots + queries,) the least used free samples of a class, in random order."""
        members = self._members[label][free[self._members[label]]]
        order = np.lexsort((_words(len(members), source), uses[members]))
        best = members[order[: self._settings.shots + self._settings.queries]]
        return np.asarray(best[np.argsort(_words(len(best), source))], np.int64)


class SeededChoice:
    """Bytes from a seed, for tasks and experiments that protect nobody. Never for a real run."""

    def __init__(self, *seed: int) -> None:
        self._generator = np.random.default_rng(list(seed))

    def random_bytes(self, n: int) -> bytes:
        return self._generator.bytes(n)


def _words(count: int, source: NoiseSource) -> NDArray[np.uint64]:
    return np.frombuffer(source.random_bytes(8 * count), "<u8").astype(np.uint64)
