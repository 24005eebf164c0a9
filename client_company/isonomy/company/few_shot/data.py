"""Image sets in colour, split between the parties: colour is the sensitive attribute.

The paper's rule (§4.2): in one half of the classes nine of ten images are in colour and the rest
grey, in the other half one of ten. Colour says nothing about the drawing, but predicts the half.
A grey image has three equal channels; a coloured one is the same times a random bright hue. In
Omniglot the page has the colour: strokes are dark on it, as they were drawn, so colour covers most
of the picture as in the paper's photographs. In MNIST and digits the strokes are bright on black.

| set | source | company, regulator, test | shape |
|---|---|---|---|
| omniglot | `omniglot/omniglot_105.npz` | 150, 303 and 300 separate classes | 3 × 28 × 28 |
| omniglot_wide | the same | the same, for a wider network | 3 × 28 × 28 |
| omniglot_large | the same | 300, 600 and 300 separate classes | 3 × 28 × 28 |
| mnist | `mnist/*.gz` | all ten digits each, separate images | 3 × 32 × 32 |
| digits | scikit-learn | all ten digits each, separate images | 3 × 8 × 8 |

Settings were chosen on 423 other Omniglot classes and on MNIST's first 30,000 training images.
Neither is used here.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.arrays import read_arrays
from isonomy.common.base.errors import DataError
from isonomy.common.few_shot.learning.evaluate import TestSet
from isonomy.common.few_shot.learning.pool_file import load_pool
from isonomy.common.few_shot.learning.tasks import Pool

MOSTLY = 0.9
NAMES = ("omniglot", "omniglot_wide", "omniglot_large", "mnist", "digits")
_CLASSES = {
    "omniglot": (150, 303, 300),
    "omniglot_wide": (150, 303, 300),
    "omniglot_large": (300, 600, 300),
}
_RESERVED = 423  # Omniglot classes on which settings were chosen
_ORDER_SEED = 12_345  # the same for every seed of a run, so the reserved classes are too


@dataclass(frozen=True)
class Pools:
    """What each party holds, and what both are measured on."""

    company: Pool  # no groups: the company does not have the attribute
    regulator: Pool
    test: TestSet


def load(name: str, seed: int, data_dir: Path | None = None) -> Pools:
    """A data set by name, or the pools of a folder."""
    if name == "digits":
        return digits_pools(seed)
    if Path(name).is_dir():
        return folder_pools(Path(name))
    if name not in NAMES:
        raise DataError(
            f"unknown data set {name!r}; there are {', '.join(NAMES)}, or a folder of your own"
        )
    if data_dir is None:
        raise DataError(f"{name} needs --data-dir (or ISONOMY_DATA_DIR): docs/few-shot.md, Use")
    if name == "mnist":
        return mnist_pools(data_dir, seed)
    return omniglot_pools(data_dir, seed, _CLASSES[name])


def folder_pools(folder: Path) -> Pools:
    """The files company.npz, regulator.npz and test.npz; the last may have `swapped` too."""
    company, regulator, test = (
        load_pool(folder / f"{name}.npz") for name in ("company", "regulator", "test")
    )
    swapped = read_arrays(folder / "test.npz").get("swapped")
    other = None if swapped is None else np.ascontiguousarray(swapped, np.float32)
    return Pools(replace(company, groups=None), regulator, TestSet(test, other))


def digits_pools(seed: int) -> Pools:
    """scikit-learn's 1,797 digits of 8 × 8: a case that trains in seconds."""
    from sklearn.datasets import load_digits

    grey, labels = load_digits(return_X_y=True)
    small = np.asarray(grey / 16, np.float32).reshape(-1, 8, 8)
    return _shared_classes(small, np.asarray(labels, np.int64), (40, 80, 40), seed)


def mnist_pools(data_dir: Path, seed: int) -> Pools:
    """MNIST padded to 32 × 32: 100, 400 and 100 images of each digit."""
    folder = data_dir / "mnist"
    images = _idx(folder / "train-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
    labels = _idx(folder / "train-labels-idx1-ubyte.gz", 8).astype(np.int64)
    if len(images) != 60_000 or len(labels) != 60_000:
        raise DataError(f"{folder} does not hold MNIST's 60,000 training images")
    padded = np.pad(images[30_000:], ((0, 0), (2, 2), (2, 2)))
    grey = np.asarray(padded / 255, np.float32)
    return _shared_classes(grey, labels[30_000:], (100, 400, 100), seed)


def omniglot_pools(data_dir: Path, seed: int, sizes: tuple[int, int, int]) -> Pools:
    """Omniglot reduced to 28 × 28: `sizes` classes of 20 images for company, regulator and tests.

    The company's classes come in four rotations, each a class of its own, as is usual. The
    regulator's do not, because a rotated image would be a second sample of the same thing.
    """
    arrays = read_arrays(data_dir / "omniglot" / "omniglot_105.npz")
    if not {"bits", "label"} <= set(arrays) or arrays["bits"].shape != (32460, 1379):
        raise DataError("omniglot_105.npz must hold 32,460 packed images of 105 × 105 and labels")
    labels = arrays["label"].astype(np.int64)
    reported = np.random.default_rng(_ORDER_SEED).permutation(1623)[_RESERVED:]
    classes = np.random.default_rng([seed, 1]).permutation(reported)
    rows = np.flatnonzero(np.isin(labels, classes[: sum(sizes)]))
    grey = np.concatenate([_shrink(arrays["bits"][part]) for part in np.array_split(rows, 16)])
    rank = np.empty(1623, np.int64)
    rank[classes] = np.arange(len(classes))
    owners = np.repeat(np.arange(3), sizes)
    pools = _separate_classes(grey, rank[labels[rows]], owners, seed)
    return replace(pools, company=_rotated(pools.company))


# --- Splitting and colouring ---------------------------------------------------------------------


def _shared_classes(
    grey: NDArray[np.float32], labels: NDArray[np.int64], each: Sequence[int], seed: int
) -> Pools:
    """The parties and the test share the classes; every image belongs to one of them."""
    rng = np.random.default_rng([seed, 2])
    rows: list[list[NDArray[np.int64]]] = [[], [], []]
    for label in range(10):
        images = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.cumsum(each)
        for part, piece in zip(rows, np.split(images[: cuts[-1]], cuts[:-1]), strict=True):
            part.append(piece)
    positive = np.zeros(10, np.bool_)
    positive[rng.permutation(10)[:5]] = True
    parts = [np.sort(np.concatenate(part)) for part in rows]
    return _pools([(grey[p], labels[p], positive) for p in parts], rng)


def _separate_classes(
    grey: NDArray[np.float32], labels: NDArray[np.int64], owners: NDArray[np.int64], seed: int
) -> Pools:
    """Each party has classes of its own, half of them mostly coloured."""
    rng = np.random.default_rng([seed, 3])
    parts = []
    for owner in range(3):
        classes = np.flatnonzero(owners == owner)
        rows = np.flatnonzero(owners[labels] == owner)
        positive = np.arange(len(classes)) % 2 == 0  # classes come in random order
        parts.append((grey[rows], labels[rows] - classes[0], positive))
    return _pools(parts, rng)


def _pools(
    parts: Sequence[tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_]]],
    rng: np.random.Generator,
) -> Pools:
    """Colour the images of company, regulator and test; the company loses its groups."""
    pools: list[Pool] = []
    for grey, labels, positive in parts:
        chance = np.where(positive[labels], MOSTLY, 1 - MOSTLY)
        coloured = rng.random(len(labels)) < chance
        hues = _hues(len(labels), rng)
        images = _coloured(grey, coloured, hues)
        pools.append(Pool(images, labels, coloured.astype(np.int8), positive))
    company, regulator, test = pools
    swapped = _coloured(grey, ~coloured, hues)  # of the last part: the test's
    return Pools(replace(company, groups=None), regulator, TestSet(test, swapped))


def _rotated(pool: Pool) -> Pool:
    """Every class four times, turned by 0, 90, 180 and 270 degrees."""
    turned = [np.rot90(pool.inputs, quarter, (2, 3)) for quarter in range(4)]
    labels = [pool.labels + quarter * pool.classes for quarter in range(4)]
    positive = None if pool.positive is None else np.tile(pool.positive, 4)
    return Pool(
        np.ascontiguousarray(np.concatenate(turned)), np.concatenate(labels), None, positive
    )


def _hues(count: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """(count, 3) bright colours, far from grey: one channel full, one at most 0.3."""
    hues = rng.random((count, 3))
    order = np.argsort(hues, axis=1)
    np.put_along_axis(hues, order[:, :1], 0.3 * rng.random((count, 1)), axis=1)
    np.put_along_axis(hues, order[:, 2:], 1.0, axis=1)
    return hues.astype(np.float32)


def _coloured(
    grey: NDArray[np.float32], coloured: NDArray[np.bool_], hues: NDArray[np.float32]
) -> NDArray[np.float32]:
    """(n, 3, h, w)."""
    tint = np.where(coloured[:, None], hues, np.float32(1.0))
    return np.ascontiguousarray(grey[:, None] * tint[:, :, None, None], np.float32)


# --- Files ---------------------------------------------------------------------------------------


def _idx(path: Path, head: int) -> NDArray[np.uint8]:
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error):
        raise DataError(f"{path} is missing or not a gzipped idx file") from None
    return np.frombuffer(content, np.uint8, offset=head)


def _shrink(bits: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 28, 28) shades from 105 × 105 bits, 1 = ink: means over squares of 3.75 × 3.75."""
    ink = np.unpackbits(bits, axis=1)[:, : 105 * 105].reshape(-1, 105, 105).astype(np.float32)
    edges = np.arange(29) * 105 / 28
    low, high = edges[:-1, None], edges[1:, None]
    at = np.arange(105)
    cover = np.clip(np.minimum(high, at + 1) - np.maximum(low, at), 0, 1) * 28 / 105  # (28, 105)
    small = np.einsum("ai,nij,bj->nab", cover, ink, cover, optimize=True)
    return np.asarray(1 - np.minimum(1.0, 2 * small), np.float32)
