"""An audit of several companies: what one company with all the people would be told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pooled_kit import SIZE, alone, table
from report_kit import OFFICER

from isonomy.common.report.build import build_report
from isonomy.common.report.from_ledger import plan_history
from isonomy.common.report.schema import millionths
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.federation.auditing import AuditResult, audit

DECISIONS = np.random.default_rng(4).integers(0, 2, SIZE)


def test_a_joint_audit_and_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "isonomy.company.federation.auditing.MAX_NOISE", 10.0
    )  # 150 people tell little

    def script(oracle: GroupOracle, own: slice) -> Any:
        return audit(
            oracle, DECISIONS[own], ids=oracle.cohort.ids, name="joint", share=0.5, smallest_group=1
        )

    with table(tmp_path, "first", "second") as joint:
        with joint.regulator(tmp_path):
            found: list[AuditResult] = joint.all_companies(script)  # type: ignore[assignment]
        wanted: AuditResult = alone(tmp_path, joint.federation, script)  # type: ignore[assignment]
        plan = joint.federation.plan
    for own in found:
        assert own.totals == wanted.totals == (float(SIZE - DECISIONS.sum()), DECISIONS.sum())
        assert np.array_equal(own.counts.counts, wanted.counts.counts)
    history = plan_history(tmp_path / "joint-ledger.jsonl", plan.hash)
    told = {found[0].receipt.query_id: [millionths(total) for total in found[0].totals]}
    (unsaid,) = build_report(plan, history, created=0, software="test", officer=OFFICER).audits
    assert "not handed over" in unsaid.problem
    (shown,) = build_report(
        plan, history, created=0, software="test", officer=OFFICER, totals=told
    ).audits
    assert shown.problem == ""
    assert shown.people == SIZE
