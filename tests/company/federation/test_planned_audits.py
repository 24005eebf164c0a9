"""A plan with audits ahead: exactly so many fit, and each names the model's file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_kit import audited_run, write_report

from isonomy.common.base.errors import BudgetExceeded, ConfigError, ReplayRefused
from isonomy.common.sums.local import LocalChannel, LocalOracle
from isonomy.common.sums.noise_and_budget import Custodian
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.federation.auditing import audit, price


def test_exactly_the_planned_audits_fit_with_equal_noise(tmp_path: Path) -> None:
    run = audited_run(tmp_path, groups=1, audits=8)
    # The training takes what it may, and not a unit more.
    with pytest.raises(BudgetExceeded):
        run.oracle.counts(share=0.62)
    run.oracle.counts(share=0.55)
    with pytest.raises(BudgetExceeded):
        run.oracle.counts(share=0.06)
    quarters = [
        audit(run.oracle, run.before, name=f"quarter {number}", smallest_group=1)
        for number in range(8)
    ]
    assert [each.price.share for each in quarters] == pytest.approx([0.05] * 8)
    assert len({each.counts.sigma for each in quarters}) == 1
    with pytest.raises(BudgetExceeded, match="all 8 audits of this plan are done"):
        audit(run.oracle, run.before, name="quarter 8")
    again = audit(run.oracle, run.before, name="quarter 7", smallest_group=1)
    np.testing.assert_array_equal(again.counts.counts, quarters[7].counts.counts)


def test_one_audit_more_is_refused_as_such_also_when_the_budget_is_used_up(tmp_path: Path) -> None:
    run = audited_run(tmp_path, groups=1, audits=2, strategy="audit")
    for name in ("first", "second"):
        audit(run.oracle, run.before, name=name)
    with pytest.raises(BudgetExceeded, match="all 2 audits of this plan are done"):
        audit(run.oracle, run.before, name="third")


def test_an_audit_may_not_cost_more_than_planned(tmp_path: Path) -> None:
    run = audited_run(tmp_path, groups=1, audits=4)
    with pytest.raises(BudgetExceeded, match="costs more than the plan keeps"):
        audit(run.oracle, run.before, name="first", share=0.1)
    assert price(run.oracle).share == pytest.approx(0.05)


def test_a_plan_of_audits_alone_splits_all_of_it(tmp_path: Path) -> None:
    run = audited_run(tmp_path, groups=1, audits=4, strategy="audit")
    assert price(run.oracle).share == pytest.approx(0.25)
    assert "keeps its budget for 4 audits, each of at most 0.25 of it;" in run.plan.describe()


@pytest.mark.parametrize(
    "terms", [{"audits": 11}, {"audits": 2, "individual_filter": True}, {"audits": 401}]
)
def test_what_does_not_fit_is_no_plan(tmp_path: Path, terms: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        audited_run(tmp_path, groups=1, **terms)


def test_a_plan_without_them_has_the_hash_it_always_had(tmp_path: Path) -> None:
    run = audited_run(tmp_path, groups=1)
    assert b"audits" not in run.plan.to_json()
    assert "audits" not in run.plan.describe()


def test_an_audit_names_the_file_that_decided(tmp_path: Path) -> None:
    run, file = audited_run(tmp_path / "run", groups=1, audits=3), tmp_path / "model.onnx"
    file.write_bytes(b"the model of spring")
    spring = audit(run.oracle, run.before, name="spring", model_file=file, whose="live")
    assert spring.model_sha256 == hashlib.sha256(b"the model of spring").hexdigest()
    assert spring.model_sha256 in str(spring)
    file.write_bytes(b"the model of summer")
    with pytest.raises(ReplayRefused, match="or model file"):
        audit(run.oracle, run.before, name="spring", model_file=file, whose="live")
    one = write_report(run, tmp_path / "one").html.read_text()
    assert f"of the file with SHA-256 {spring.model_sha256}" in one
    assert "not all of one file" not in one
    audit(run.oracle, run.before, name="summer", model_file=file, whose="live")
    two = write_report(run, tmp_path / "two").html.read_text()
    assert "These audits are not all of one file" in two


def test_a_missing_file_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    run = audited_run(tmp_path, groups=1)
    with pytest.raises(ConfigError, match="cannot read the model"):
        audit(run.oracle, run.before, name="spring", model_file=tmp_path / "nothing.onnx")
    (tmp_path / "empty.onnx").touch()
    with pytest.raises(ConfigError, match=r"empty\.onnx is an empty file"):
        audit(run.oracle, run.before, name="spring", model_file=tmp_path / "empty.onnx")
    assert run.ledger.records == 4  # open, key, people, reserve


def test_a_rehearsal_with_a_filter_takes_no_planned_audits() -> None:
    with pytest.raises(ConfigError, match="individual filter"):
        LocalOracle.rehearse(
            ["a", "b"], {"sex": ["f", "m"]}, epsilon=1, delta=1e-5, individual=True, audits=2
        )


def test_a_restarted_regulator_knows_how_many_audits_were_answered(tmp_path: Path) -> None:
    run = audited_run(tmp_path, groups=1, audits=2)
    for name in ("first", "second"):
        audit(run.oracle, run.before, name=name)
    again = Custodian(
        run.custodian._table,
        run.ledger,
        plan=run.plan.hash,
        member_key=bytes(32),
        audits=run.plan.planned_audits,
    )
    channel = LocalChannel(
        run.custodian._table,
        again,
        plan=run.plan.hash,
        cap_units=run.plan.cap_units,
        delta=run.plan.delta_value,
        audits=run.plan.planned_audits,
    )
    with pytest.raises(BudgetExceeded, match="all 2 audits"):
        audit(GroupOracle(channel), run.before, name="third")
