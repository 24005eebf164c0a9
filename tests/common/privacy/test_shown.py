"""Bounds stay true when they are rounded: up where they say "at most", down where "left"."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isonomy.common.privacy.shown import at_least, at_most, right_guess, share_left, share_up


@given(st.floats(1e-6, 1e4), st.integers(1, 6))
def test_a_bound_is_never_rounded_to_the_wrong_side(value: float, digits: int) -> None:
    slack = 1e-8 * value  # the ninth digit is rounded to the nearest
    low, high = float(at_least(value, digits)), float(at_most(value, digits))
    assert low <= value + slack
    assert high >= value - slack
    assert high - low <= 1.01 * 10 ** (math.floor(math.log10(value)) - digits + 2)


@pytest.mark.parametrize(
    ("value", "most", "least"),
    [(0.48651, "0.4866", "0.4865"), (0.49999999999, "0.5", "0.5"), (2.0, "2", "2"), (0, "0", "0")],
)
def test_amounts_read_as_people_write_them(value: float, most: str, least: str) -> None:
    assert (at_most(value), at_least(value)) == (most, least)


@given(st.floats(0, 100))
def test_a_right_guess_is_rounded_up(epsilon: float) -> None:
    chance = 100 / (1 + math.exp(-epsilon))
    shown = int(right_guess(epsilon).removesuffix(" %"))
    assert chance <= shown < chance + 1


@given(st.integers(0, 10**12), st.integers(1, 10**12))
def test_shares_add_up(part: int, whole: int) -> None:
    assert 1000 * part <= 10 * share_up(part, whole) * whole * (1 + 1e-12)
    if part <= whole:
        assert share_up(part, whole) + share_left(part, whole) == pytest.approx(100)
