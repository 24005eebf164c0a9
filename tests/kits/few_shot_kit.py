"""Tiny few-shot cases for tests: digits, and samples drawn from a seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from isonomy.common.agreements.few_shot_settings import FewShotSettings
from isonomy.common.few_shot.learning.tasks import Pool


class SeededBytes:
    """A noise source whose bits repeat."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def random_bytes(self, n: int) -> bytes:
        return self._generator.bytes(n)


def tiny_settings(**changes: Any) -> FewShotSettings:
    """An MLP with 4 inputs and 3-way tasks; noise small enough to learn, large enough to count."""
    base: dict[str, Any] = {
        "model": "mlp",
        "width": 6,
        "input_shape": (4,),
        "ways": 4,
        "shots": 2,
        "queries": 2,
        "regulator_tasks": 2,
        "company_tasks": 2,
        "inner_steps": 2,
        "rounds": 3,
        "inner_noise": 4_000_000,
        "query_noise": 3_000_000,
        "dual_noise": 9_000_000,
        "share_noise": 9_000_000,
    }
    return FewShotSettings(**{**base, **changes})


def tiny_pool(seed: int = 0, *, classes: int = 6, each: int = 12, groups: bool = True) -> Pool:
    """Gaussian classes; the group shifts the last input, and follows the half of the classes."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    positive = np.arange(classes) % 2 == 0
    group = (rng.random(len(labels)) < np.where(positive[labels], 0.7, 0.3)).astype(np.int8)
    centres = rng.normal(size=(classes, 4))
    inputs = centres[labels] + 0.3 * rng.normal(size=(len(labels), 4))
    inputs[:, 3] += group
    return Pool(inputs.astype(np.float32), labels, group if groups else None, positive)


def save_pool(pool: Pool, path: Path) -> None:
    """Write what `load_pool` reads."""
    names = ("inputs", "labels", "groups", "positive")
    arrays = {name: getattr(pool, name) for name in names if getattr(pool, name) is not None}
    np.savez(path, **arrays)
