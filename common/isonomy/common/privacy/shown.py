"""How amounts of privacy are written: bounds are rounded to the side on which they stay true.

What was spent, or may be lost, is rounded up; what is left is rounded down. The ninth digit, which
is the error of the computation, is rounded to the nearest first: 0.49999999999 is 0.5.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

_SURE_DIGITS = 9


def at_most(value: float, digits: int = 4) -> str:
    """Return a positive number with so many significant digits, rounded up."""
    return _rounded(value, digits, ROUND_CEILING)


def at_least(value: float, digits: int = 4) -> str:
    """Return a positive number with so many significant digits, rounded down."""
    return _rounded(value, digits, ROUND_FLOOR)


def share_up(part: int, whole: int) -> float:
    """Return a part in per cent with one decimal, rounded up, so that what is left is not less."""
    return -(-1000 * part // max(whole, 1)) / 10


def share_left(part: int, whole: int) -> float:
    """Return what a part leaves of a whole, in per cent with one decimal; never below 0."""
    return max(round(100 - share_up(part, whole), 1), 0.0)


def right_guess(epsilon: float) -> str:
    """Return the most that the chance of guessing one of two values rises to, from a half.

    e^ε / (1 + e^ε), in whole per cent, rounded up.
    """
    return f"{math.ceil(100 / (1 + math.exp(-min(epsilon, 50.0))))} %"


def _rounded(value: float, digits: int, rounding: str) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    exact = Decimal(f"{value:.{_SURE_DIGITS}g}")
    place = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    return f"{exact.quantize(place, rounding).normalize():f}"
