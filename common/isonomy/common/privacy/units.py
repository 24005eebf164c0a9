"""The unit of account, and the exact integer arithmetic that debits are made of."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from isonomy.common.base.errors import ConfigError

UNITS_PER_MU2 = 10**12
"""One unit is 10^-12 of μ²."""


def checked_integer(name: str, value: SupportsIndex, least: int) -> int:
    """The value as a Python integer; floats are refused, because they would round silently."""
    try:
        result = operator.index(value)
    except TypeError:
        raise ConfigError(f"{name} must be an integer, not {type(value).__name__}") from None
    if isinstance(value, bool) or result < least:
        raise ConfigError(f"{name} must be an integer of at least {least}, got {value!r}")
    return result


def ceil_div(numerator: int, denominator: int) -> int:
    """⌈numerator / denominator⌉ without floats."""
    return -(-numerator // denominator)


__all__ = ["UNITS_PER_MU2", "ceil_div", "checked_integer"]
