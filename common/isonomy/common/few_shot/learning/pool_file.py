"""A pool of samples as one .npz file: `inputs`, `labels`, and for the regulator `groups`.

    inputs    (n, *shape) numbers       labels    (n,) integers from 0
    groups    (n,) 0 or 1               positive  (classes,) booleans: which classes are ŷ = 1

Only plain arrays are read, never pickled objects. Needs no torch.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import DataError
from isonomy.common.few_shot.learning.tasks import Pool

# RuntimeError: encrypted, or compressed in a way that this Python does not know.
_UNREADABLE = (
    *(OSError, ValueError, AttributeError, EOFError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)


def load_pool(path: Path) -> Pool:
    """A pool from a file; DataError says what is wrong with it. `Pool.check` does the rest."""
    arrays = read_arrays(path)
    if "inputs" not in arrays or "labels" not in arrays:
        raise DataError(f"{path} must hold the arrays inputs and labels")
    inputs, labels = arrays["inputs"], arrays["labels"]
    if inputs.dtype.kind not in "fiu" or labels.dtype.kind not in "iu":
        raise DataError(f"{path}: inputs must be numbers and labels integers")
    groups, positive = arrays.get("groups"), arrays.get("positive")
    if groups is not None and groups.dtype.kind == "f":  # NaN stands for a missing attribute
        groups = np.where(np.isfinite(groups), groups, -1)
    return Pool(
        np.ascontiguousarray(inputs, np.float32),
        labels.astype(np.int64),
        None if groups is None else groups.astype(np.int8),
        None if positive is None else positive.astype(np.bool_),
    )


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz file; reading it executes nothing."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except MemoryError:
        raise DataError(f"{path} names arrays that do not fit into memory") from None
    except _UNREADABLE:
        raise DataError(f"{path} is not an .npz file of plain arrays") from None


__all__ = ["load_pool", "read_arrays"]
