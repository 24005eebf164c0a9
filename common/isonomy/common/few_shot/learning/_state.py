"""A learner's state as bytes: named arrays in the safetensors format.

No pickle, no clock: the same state gives the same bytes. Reading is total: anything that is not
such a state is a DataError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from isonomy.common.base.errors import DataError


def pack(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Arrays by name."""
    return bytes(save({name: np.ascontiguousarray(value) for name, value in arrays.items()}))


def unpack(state: bytes) -> dict[str, NDArray[Any]]:
    """What `pack` packed; the arrays may be written to."""
    try:
        return {name: value.copy() for name, value in load(state).items()}
    except (SafetensorError, LookupError, ValueError, TypeError, AttributeError):
        raise DataError("these bytes are not a few-shot state") from None
