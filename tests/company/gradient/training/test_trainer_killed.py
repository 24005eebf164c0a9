"""Runs that die in the middle of a round end, resumed, as though they had not.

The process dies after the regulator has stored an answer and before the company heard it: the
worst moment, because the answer is paid for. Whatever was asked after the last checkpoint is asked
again under the same ids.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from federation import DELTA, MEMBER_KEY, PLAN, CountedNoise, custodian_with_noise
from gradient_kit import regulator, same, toy, trainer
from torch import nn

from isonomy.common.ledger.ledger import Ledger
from isonomy.common.sums.oracle import FilteredOracle, GroupOracle
from isonomy.company.gradient.fermi.fermi import DpFermi
from isonomy.company.gradient.pf_ld.pf_ld import PFLD


class Killed(BaseException):
    """Nothing catches it, as nothing catches kill −9."""


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "follow, average": (PFLD, {"average": 0.5}),
    "loss batches": (lambda: PFLD("equalized_odds"), {"loss_batch": 32}),
    "λ >= 0": (lambda: PFLD(signed=False), {}),
    "σ given": (lambda: PFLD(primal_multiplier=9.0, dual_multiplier=9.0), {}),
    "DP-FERMI": (lambda: DpFermi("equalized_odds"), {"average": 0.5}),
    "DP-FERMI by chunk": (lambda: DpFermi(w_update="chunk"), {}),
    "individual filter": (lambda: PFLD(clip_quantile=1.0), {"filter": True}),
}


@pytest.mark.parametrize("last", [False, True], ids=["halfway", "in the last round"])
@pytest.mark.parametrize("case", CASES)
def test_killed_in_the_middle_of_a_round(tmp_path: Path, case: str, last: bool) -> None:
    data = toy(160)
    strategy, settings = CASES[case][0], dict(CASES[case][1])
    filtered = settings.pop("filter", False)

    def model() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))

    def oracle_of(home: Any) -> tuple[GroupOracle, list[int]]:
        local, asked = home.local(), [0, 0]  # queries answered, and when to die
        channel: Any = local.channel
        exchange = channel.exchange

        def counted(query: Any) -> Any:
            answer = exchange(query)
            asked[0] += 1
            if asked[0] == asked[1]:
                raise Killed
            return answer

        channel.exchange = counted
        return (FilteredOracle(local, stretch=20.0) if filtered else local), asked

    def run(net: nn.Module, oracle: GroupOracle, **more: Any) -> Any:
        own = trainer(
            net, strategy(), oracle, checkpoint=folder, rounds=4, chunk_size=40, **settings
        )
        return own.fit(data.x, data.y, **more)

    def home_of(name: str) -> Any:
        home = regulator(tmp_path, data.group, epsilon=20.0, name=name)
        if filtered:  # a plan that reserves the cap for everybody once
            ledger = Ledger.create(tmp_path / f"{name}-2", cap_units=home.cap_units, delta=DELTA)
            home.custodian = custodian_with_noise(
                home.table, ledger, plan=PLAN, member_key=MEMBER_KEY, source=CountedNoise()
            )
            home.custodian.reserve(home.cap_units, individual=True)
            home.individual = True
        return home

    folder, whole = tmp_path / "whole", model()
    oracle, asked = oracle_of(home_of("whole-ledger"))
    result, drops = run(whole, oracle), getattr(oracle, "drops", None)

    folder, broken, home = tmp_path / "broken", model(), home_of("broken-ledger")
    oracle, again = oracle_of(home)
    again[1] = asked[0] - 2 if last else asked[0] // 2
    with pytest.raises(Killed):
        run(broken, oracle)
    fresh, (oracle, _) = model(), oracle_of(home)
    resumed = run(fresh, oracle, resume=folder)

    assert same(whole, fresh)
    assert not same(whole, broken)
    kept = ["loss", "violation", "epsilon_spent", "epsilon_as_in_papers"]
    assert (result.history.table()[kept] == resumed.history.table()[kept]).all().all()
    assert getattr(oracle, "drops", None) == drops
    assert not filtered or oracle.accounts.dropped > 0
