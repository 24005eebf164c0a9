"""A pool of samples as one .npz file: `inputs`, `labels`, and for the regulator `groups`.

    inputs    (n, *shape) numbers       labels    (n,) integers from 0
    groups    (n,) 0 or 1               positive  (classes,) booleans: which classes are ŷ = 1

Only plain arrays are read, never pickled objects. Needs no torch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from isonomy.common.base.arrays import read_arrays
from isonomy.common.base.errors import DataError
from isonomy.common.few_shot.learning.tasks import Pool


def load_pool(path: Path) -> Pool:
    """A pool from a file; DataError says what is wrong with it. `Pool.check` does the rest."""
    arrays = read_arrays(path)
    if "inputs" not in arrays or "labels" not in arrays:
        raise DataError(f"{path} must hold the arrays inputs and labels")
    inputs, labels = arrays["inputs"], arrays["labels"]
    if inputs.dtype.kind not in "fiu" or labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise DataError(f"{path}: inputs must be numbers, labels one integer per sample")
    groups, positive = arrays.get("groups"), arrays.get("positive")
    if groups is not None and groups.dtype.kind == "f":  # NaN stands for a missing attribute
        groups = np.where(np.isfinite(groups), groups, -1)
    return Pool(
        np.ascontiguousarray(inputs, np.float32),
        labels.astype(np.int64),
        None if groups is None else groups.astype(np.int8),
        None if positive is None else positive.astype(np.bool_),
    )
