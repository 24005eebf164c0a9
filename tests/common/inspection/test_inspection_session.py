"""Inspections through real sessions: gRPC, TLS, relay, sealed frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inspection_kit import unclipped_rows
from session_kit import Federation, serving

from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.base.errors import InspectionFailed
from isonomy.common.inspection.desk import InspectionDesk
from isonomy.common.ledger.ledger import Ledger, verify_ledger
from isonomy.common.remote.exchanges import remote_oracle
from isonomy.common.sums.company_half import EncryptedChannel
from isonomy.common.sums.openings import FolderOpenings
from isonomy.common.sums.oracle import GroupOracle
from isonomy.common.sums.regulator_half import RegulatorHalf


class Inspected(Federation):
    """A federation whose regulator inspects every query itself."""

    @classmethod
    def made(cls, folder: Path, size: int = 64, carrier: str = "homomorphic") -> Inspected:
        plain = Federation.create(folder, size=size, carrier=carrier)
        own = {
            "auditor": plain.plan.regulator.x25519,
            "inspection_millionths": MILLION,
            "inspection_deadline": "2100-01-01",
        }
        plan = Plan.of({**plain.plan.model_dump(mode="json"), **own})
        plan.save(folder / "plan.json")
        return cls(folder, plan, plain.cohort)

    def half(self) -> tuple[RegulatorHalf, Ledger]:
        half, ledger = super().half()
        folder = self.folder / "regulator" / "inspections"
        keys = self.keys("regulator")
        desk = half._inspector = InspectionDesk(self.plan, half._custodian, keys, folder)
        if self.plan.carrier == "pads":
            half._carrier._sample = desk.sample  # type: ignore
        return half, ledger

    def openings(self) -> FolderOpenings:
        return FolderOpenings(self.folder / "company" / "openings", inspected=True)

    def steps(self) -> list[str]:
        with Ledger.open(self.folder / "regulator" / "ledger.jsonl") as ledger:
            return [each.step for each in ledger.inspections(self.plan.hash)]


def ask(oracle: GroupOracle, rows: np.ndarray) -> Any:
    return oracle.blind_sum(rows, norm=3.0, share=0.05)


@pytest.mark.parametrize("carrier", ["homomorphic", "pads"])
def test_every_query_of_an_honest_company_is_inspected_and_answered(
    tmp_path: Path, carrier: str
) -> None:
    """Large enough that an opening is cut into parts, and its parts into chunks."""
    federation = Inspected.made(tmp_path, size=24_000, carrier=carrier)
    rows = federation.rows(48)
    with federation.relay() as relay:
        tickets = (
            relay.issue_ticket("company", "company"),
            relay.issue_ticket("regulator", "regulator"),
        )
        with serving(federation, tickets[1]), federation.session(tickets[0]) as session:
            oracle = remote_oracle(session, federation.cohort, openings=federation.openings())
            released = [ask(oracle, rows), oracle.counts(share=0.05)]
    opened = relay._state.passed.by_purpose["opening"]
    assert opened > 1 << 22  # sealed, through the relay, in more than one part
    assert federation.steps() == ["passed", "passed"]
    true = [len(federation.cohort) - 8000, 8000]
    assert np.abs(released[1].values[:, 0] - true).max() < 8 * released[1].deviation.max()


@pytest.mark.parametrize("carrier", ["homomorphic", "pads"])
def test_a_cheat_hears_why_and_the_session_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carrier: str
) -> None:
    federation = Inspected.made(tmp_path, carrier=carrier)
    unclipped_rows(monkeypatch)
    with federation.relay() as relay:
        mine = relay.issue_ticket("company", "company")
        theirs = relay.issue_ticket("regulator", "regulator")
        regulator = serving(federation, theirs)
        regulator.__enter__()
        with federation.session(mine) as session:
            oracle = remote_oracle(session, federation.cohort, openings=federation.openings())
            with pytest.raises(InspectionFailed, match=r"\(5\).*norm bound"):
                ask(oracle, federation.rows())
        with pytest.raises(InspectionFailed, match=r"\(5\)"):  # the regulator's loop ended with it
            regulator.__exit__(None, None, None)
    assert federation.steps() == ["failed"]
    assert verify_ledger(tmp_path / "regulator" / "ledger.jsonl").debits == 0


def test_a_company_that_died_after_the_demand_comes_back_and_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = Inspected.made(tmp_path)

    def dies(self: EncryptedChannel, *place: Any) -> Any:
        raise KeyboardInterrupt

    with federation.relay() as relay:
        mine = relay.issue_ticket("company", "company")
        theirs = relay.issue_ticket("regulator", "regulator")
        with serving(federation, theirs):
            first = federation.session(mine).start()
            oracle = remote_oracle(first, federation.cohort, openings=federation.openings())
            with monkeypatch.context() as patch:
                patch.setattr(EncryptedChannel, "opening", dies)
                with pytest.raises(KeyboardInterrupt):
                    ask(oracle, federation.rows())
            first._stream.stop()  # as a killed process: no word of farewell
            with federation.session(mine) as second:
                oracle = remote_oracle(second, federation.cohort, openings=federation.openings())
                assert ask(oracle, federation.rows()).receipt is not None
    assert federation.steps() == ["passed"]
    assert verify_ledger(tmp_path / "regulator" / "ledger.jsonl").debits == 1
