"""The comparison of carriers: bytes as they travel, and a choice that follows the link."""

from __future__ import annotations

from pathlib import Path

import pytest

from isonomy.common.base.errors import ConfigError
from isonomy.common.keys.party import PartyKeys
from isonomy.common.pads.cost import compare
from isonomy.common.people.cohort import Cohort
from isonomy.company.federation.planning import choose_carrier

GROUPS = {"sex": ("f", "m")}


def test_a_fast_link_takes_pads_and_a_slow_one_does_not() -> None:
    fast, slow = compare(36_000, 1, "tilt", 1000), compare(36_000, 1, "tilt", 10)
    assert (fast.best.carrier, slow.best.carrier) == ("pads", "homomorphic")
    assert fast.pads.bytes == slow.pads.bytes == 36_000 * 219 * 6
    assert fast.homomorphic.bytes < fast.pads.bytes
    assert compare(36_000, 1, "pf_ld").best.carrier == "pads"  # small chunks
    assert "assumed" in str(compare(36_000, 1, "tilt"))
    assert "as you say" in str(fast)
    assert "measured yesterday" in str(compare(36_000, 1, "tilt", 10, "measured yesterday"))


def test_what_pads_cannot_carry_is_said(tmp_path: Path) -> None:
    card = PartyKeys.create(tmp_path / "keys", "company", "company").card()
    one = [(card, Cohort.of(["a", "b"]))]
    assert choose_carrier(one, GROUPS, "tilt")[0] == "pads"
    for several, auditor, reason in ((one * 2, "", "one company"), (one, "ab", "whole queries")):
        carrier, text = choose_carrier(several, GROUPS, "tilt", auditor=auditor)
        assert carrier == "homomorphic"
        assert reason in text
    with pytest.raises(ConfigError, match="megabits"):
        choose_carrier(one, GROUPS, "tilt", megabits=0.0)
