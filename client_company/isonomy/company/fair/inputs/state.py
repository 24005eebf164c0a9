"""Frozen dataclasses as JSON and arrays, so that a file holds numbers and text and nothing to run.

`pack` and `unpack` follow the fields' types: dataclasses, tuples of one kind, arrays, slices, bytes
and plain values, each of them perhaps None. Arrays go to safetensors under the path of their field.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


def pack(value: Any, arrays: Arrays, path: str = "") -> Any:
    """The JSON of a value; its arrays are added to `arrays`."""
    if isinstance(value, np.ndarray):
        arrays[path] = np.ascontiguousarray(value)
        return path
    if is_dataclass(value):
        return {
            f.name: pack(getattr(value, f.name), arrays, f"{path}.{f.name}") for f in fields(value)
        }
    if isinstance(value, tuple):
        return [pack(each, arrays, f"{path}.{number}") for number, each in enumerate(value)]
    if isinstance(value, slice):
        return [value.start, value.stop]
    return value.hex() if isinstance(value, bytes) else value


def unpack(kind: Any, state: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """The value of a type that `pack` made this of.

    Raises KeyError, TypeError or ValueError where a field is missing or of another kind.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if state is None:
            return None
        (kind,) = (each for each in inner if each is not types.NoneType)
        return unpack(kind, state, arrays)
    if is_dataclass(kind):
        kinds = typing.get_type_hints(kind)
        return kind(**{f.name: unpack(kinds[f.name], state[f.name], arrays) for f in fields(kind)})  # type: ignore[operator]
    if origin is np.ndarray:
        return arrays[state]
    if origin is tuple:
        return tuple(unpack(inner[0], each, arrays) for each in state)
    if origin is typing.Literal:
        if state not in inner:
            raise ValueError(f"{state!r} is none of {', '.join(map(str, inner))}")
        return state
    if kind is slice:
        return slice(*map(int, state))
    return bytes.fromhex(state) if kind is bytes else kind(state)
