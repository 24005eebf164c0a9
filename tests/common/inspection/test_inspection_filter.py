"""Individual filters: everybody is held to their own budget, by inspecting every query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inspection_kit import SIZE, World, ask

from isonomy.common.agreements.approvals import Approvals
from isonomy.common.agreements.plan import MILLION
from isonomy.common.base.errors import (
    ConfigError,
    InspectionFailed,
    ProtocolError,
    StorageError,
)
from isonomy.common.report.audit_unknowns import release_unknowns
from isonomy.common.sums.oracle import FilteredOracle, GroupOracle


def filtered(tmp_path: Path, epsilon_millionths: int = MILLION) -> World:
    return World.create(tmp_path, individual_filter=True, epsilon_millionths=epsilon_millionths)


def unfiltered_company(world: World) -> GroupOracle:
    """Asks as often as it likes: the company's own book-keeping is off."""
    oracle = world.company()
    oracle.accounts.admit = lambda prepared: None  # type: ignore[method-assign]
    return oracle


def test_everybody_is_held_to_their_own_budget(tmp_path: Path) -> None:
    """Ten queries at a fifth of the cap each: for short rows that is nothing, for full ones too
    much with the sixth."""
    world = filtered(tmp_path)
    oracle = unfiltered_company(world)
    short = np.full((SIZE, 1), 0.1)
    for number in range(10):
        oracle.blind_sum(short, norm=1.0, share=0.2)
        if number == 4:
            world.restart_regulator()  # what was spent is on disk
    full = short.copy()
    full[3] = 1.0
    oracle.blind_sum(full, norm=1.0, share=0.2)  # a tenth and 1 of 5
    for _ in range(3):
        oracle.blind_sum(full, norm=1.0, share=0.2)
    with pytest.raises(InspectionFailed, match=r"\(7\)"):
        oracle.blind_sum(full, norm=1.0, share=0.2)
    assert world.steps() == 14 * ["passed"] + ["failed"]
    assert not world.answered()


def test_unknowns_are_not_released_under_an_individual_filter(tmp_path: Path) -> None:
    """Its reservation counts as spent by everybody: one more debit would go above the cap."""
    world = filtered(tmp_path)
    (plan,) = world.ledger.plans()
    records = world.ledger.records
    for share in (1.0, 1e-6):
        with pytest.raises(ConfigError, match="individual filter"):
            release_unknowns(world.ledger, world.plan, plan.root, "sex", 7, share)
    assert world.ledger.records == records
    ask(world.company())  # and the plan goes on
    assert world.answered()


def test_an_honest_filter_drops_people_and_goes_on(tmp_path: Path) -> None:
    world = filtered(tmp_path)
    oracle = FilteredOracle(world.company(), reserve=0.3)
    rows = np.linspace(0.05, 1.0, SIZE)[:, None] * [[1.0, -1.0]] / np.sqrt(2)
    for _ in range(8):
        oracle.blind_sum(rows, norm=1.0, share=0.2)
        oracle.weighted_sum(rows, [1.0, -0.5], norm=1.0, share=0.1)
    oracle.open_sum(rows, norm=1.0, share=0.1)
    assert 0 < oracle.accounts.dropped < SIZE
    assert world.steps() == 17 * ["passed"]
    accounts = world.port.half._inspector._accounts
    accounts.catch_up()
    assert (
        accounts._filter.spent == oracle.accounts.spent
    ).all()  # both add up the same, to the unit


def test_lost_accounts_stop_the_plan_and_accuse_nobody(tmp_path: Path) -> None:
    world = filtered(tmp_path)
    oracle = unfiltered_company(world)
    ask(oracle)
    (path,) = (tmp_path / "inspections").glob("*.norms")
    path.write_bytes(path.read_bytes()[:-1])
    world.restart_regulator()
    with pytest.raises(StorageError):
        ask(oracle)
    assert world.steps() == ["passed", "demanded"]


def test_laplace_noise_is_not_for_individual_filters(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="Gaussian noise only"):
        filtered(tmp_path).company().counts(epsilon=0.05)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"rate": MILLION - 1}, "individual filter"),
        ({"outside": True}, "individual filter"),
        ({}, None),
    ],
)
def test_a_filter_is_approved_only_where_it_is_enforced(
    tmp_path: Path, fields: dict[str, Any], reason: str | None
) -> None:
    world = World.create(tmp_path, individual_filter=True, **fields)
    approvals = Approvals(tmp_path / "plans")
    if reason is None:
        approvals.approve(world.plan, world.cohort, world.company_keys)
        return
    with pytest.raises(ConfigError, match=reason):
        approvals.approve(world.plan, world.cohort, world.company_keys)
