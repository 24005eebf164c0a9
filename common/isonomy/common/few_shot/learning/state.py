"""A learner's state as bytes: a JSON head with names, types and shapes, then the raw arrays.

No pickle, no clock: the same state gives the same bytes. Reading is total: anything that is not
such a state is a DataError.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import DataError

_TYPES = ("<f4", "<f8", "<i8", "|b1")


def pack(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Arrays by name."""
    laid = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
    head = {name: [value.dtype.str, list(value.shape)] for name, value in laid.items()}
    text = json.dumps(head, separators=(",", ":")).encode()
    return len(text).to_bytes(4, "big") + text + b"".join(v.tobytes() for v in laid.values())


def unpack(state: bytes) -> dict[str, NDArray[Any]]:
    """What `pack` packed."""
    try:
        size = int.from_bytes(state[:4], "big")
        head, at = json.loads(state[4 : 4 + size]), 4 + size
        arrays: dict[str, NDArray[Any]] = {}
        for name, (kind, shape) in head.items():
            if kind not in _TYPES or any(int(n) < 0 for n in shape):
                raise ValueError
            count = int(np.prod(shape, dtype=np.int64))
            arrays[name] = np.frombuffer(state, kind, count, at).reshape(shape).copy()
            at += arrays[name].nbytes
        if at != len(state):
            raise ValueError
    except (ValueError, TypeError, AttributeError, UnicodeDecodeError):
        raise DataError("these bytes are not a few-shot state") from None
    return arrays


__all__ = ["pack", "unpack"]
