"""The dual step: exact integers, the same on both sides, and only from released numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isonomy.common.base.errors import ConfigError
from isonomy.common.privacy.dual import ONE, DualRule, Multipliers, from_units, to_units

Q = 1 << 20


def _start(sizes: tuple[int, ...] = (2,), events: int = 1, **rule: object) -> Multipliers:
    own = DualRule.of(sizes, events, **{"step": 0.5, "bound": 4.0, **rule})  # type: ignore[arg-type]
    counts = [[300 * Q + 7] * events for size in sizes for _ in range(size - 1)]
    return Multipliers.start(own, counts, [1000 * Q] * events, Q)


def test_a_step_worked_by_hand() -> None:
    """Two groups of 300 and 700; sums of −60 and +60 people; C = 0.5; s = ½."""
    rule = DualRule.of((2,), 1, step=0.5, bound=4.0)
    begin = Multipliers.start(rule, [[300 * Q]], [1000 * Q], Q)
    after = begin.advance([[-120 * Q]], 0.5)  # −120·Q integers of worth C/Q: −60
    assert after.violation == ((to_units(0.2),), (_nearest_units(Fraction(-60, 700)),))
    assert after.lam[0][0] == to_units(0.1)
    u = after.weights(0, 0)
    lam = [Fraction(row[0], ONE) for row in after.lam]
    common = sum(lam) / 1000
    assert u == tuple(float(common - x / n) for x, n in zip(lam, (300, 700), strict=True))


def _nearest_units(value: Fraction) -> int:
    return (2 * value * ONE + 1) // 2


@settings(max_examples=200, deadline=None)
@given(
    st.integers(-(10**12), 10**12),
    st.floats(1e-6, 1e3),
    st.booleans(),
    st.integers(0, 8),
)
def test_lambda_stays_within_its_bound(answer: int, norm: float, signed: bool, steps: int) -> None:
    state = _start(signed=signed)
    for _ in range(steps):
        state = state.advance([[answer]], norm)
    for (lam,) in state.lam:
        assert (-4 * ONE if signed else 0) <= lam <= 4 * ONE


def test_the_last_group_mirrors_the_others() -> None:
    """The regulator does not know the company's totals of h; centred rows make them zero."""
    state = _start((3,)).advance([[5 * Q], [-2 * Q]], 1.0)
    n_last = 1000 * Q - 2 * (300 * Q + 7)
    assert state.counts[2] == (n_last,)
    assert state.violation[2][0] == (2 * 3 * Q * ONE + n_last) // (2 * n_last)


def test_unsigned_multipliers_take_the_sign_of_the_released_violation() -> None:
    state = _start(signed=False).advance([[-30 * Q]], 1.0)
    assert state.lam[0][0] > 0
    assert state.values()[0][0] > 0
    turned = state.advance([[30 * Q]], 1.0)
    assert turned.lam[0][0] > state.lam[0][0]  # |v| is added, whatever the sign
    assert turned.values()[0][0] < 0
    signed = _start().advance([[-30 * Q]], 1.0).advance([[30 * Q]], 1.0)
    assert signed.lam[0][0] == 0


def test_cells_below_the_least_count_take_no_part() -> None:
    rule = DualRule.of((2,), 2, step=1.0, bound=1.0, least=10 * Q)
    state = Multipliers.start(rule, [[5 * Q, 400 * Q]], [1000 * Q, 1000 * Q], Q)
    moved = state.advance([[3 * Q, 3 * Q]], 1.0)
    assert moved.lam[0][0] == 0
    assert moved.violation[0][0] == 0
    assert moved.lam[0][1] != 0


def test_every_attribute_has_its_own_last_group() -> None:
    state = _start((2, 3)).advance([[10 * Q], [1 * Q], [2 * Q]], 1.0)
    assert len(state.lam) == 5
    assert state.weights(0, 0) != state.weights(1, 0)[:2]
    assert len(state.weights(1, 0)) == 3


def test_damping_adds_the_last_violation_and_nothing_older() -> None:
    plain, damped = _start(), _start(damping=2.0)
    for answer in (-30 * Q, 12 * Q):
        plain, damped = plain.advance([[answer]], 1.0), damped.advance([[answer]], 1.0)
    assert damped.lam == plain.lam
    wanted = plain.values()[0][0] + 2 * from_units(plain.violation[0][0])
    assert damped.values()[0][0] == pytest.approx(wanted, abs=2**-31)


def test_no_multiplier_no_weights() -> None:
    assert set(_start((3,)).weights(0, 0)) == {0.0}


@pytest.mark.parametrize(
    "bad",
    [
        {"step": 0.0},
        {"bound": -1.0},
        {"sizes": (1,)},
        {"sizes": ()},
    ],
)
def test_nonsense_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        _start(**bad)  # type: ignore[arg-type]


def test_a_short_answer_is_refused() -> None:
    with pytest.raises(ConfigError, match="2 groups"):
        _start((3,)).advance([[1]], 1.0)
    with pytest.raises(ConfigError, match="per event"):
        _start((2,)).advance([[1, 2]], 1.0)


def test_units_go_there_and_back() -> None:
    assert from_units(to_units(0.37)) == pytest.approx(0.37, abs=2**-33)
    assert to_units(-0.5) == -(ONE // 2)
