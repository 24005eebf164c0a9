"""Symmetric matrices by their lower triangle, in memory that is already there.

Half of the work of a product R Rᵀ, and no second half to write or to read. Torch has none of this,
BLAS all of it; its columns run the other way, so our lower triangle is its upper one. In what is
taken and returned, nothing above the diagonal means anything.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import blas
from torch import Tensor

Matrix = NDArray[np.floating]  # (b, b), single or double precision

_SMALL = 96  # rows from which half the work is less work
_PRODUCTS = {torch.float32: blas.ssyrk, torch.float64: blas.dsyrk}


def product(rows: Tensor) -> Tensor:
    """R Rᵀ, (b, b)."""
    if rows.device.type != "cpu" or len(rows) < _SMALL or rows.dtype not in _PRODUCTS:
        return rows @ rows.T
    turned = rows.detach().contiguous().numpy().T
    return torch.from_numpy(_PRODUCTS[rows.dtype](1.0, turned, trans=1, lower=0).T)


def row_sums(lower: Matrix) -> Matrix:
    """(b,) of the whole matrix."""
    multiply = blas.ssymv if lower.dtype == np.float32 else blas.dsymv
    sums: Matrix = multiply(1.0, lower.T, np.ones(len(lower), lower.dtype), lower=0)
    return sums


def subtract_pair(lower: Matrix, left: Matrix, right: Matrix) -> Matrix:
    """`lower` − left rightᵀ − right leftᵀ, in its place if it is contiguous."""
    update = blas.ssyr2 if lower.dtype == np.float32 else blas.dsyr2
    made: Matrix = update(-1.0, left, right, a=lower.T, lower=0, overwrite_a=1).T
    return made


def mirrored(lower: Matrix) -> NDArray[np.float64]:
    """The whole matrix, in double precision."""
    below = np.tril(lower).astype(np.float64, copy=False)
    below.flat[:: len(below) + 1] *= 0.5  # exactly, and doubled again by the sum
    return below + below.T


__all__ = ["Matrix", "mirrored", "product", "row_sums", "subtract_pair"]
