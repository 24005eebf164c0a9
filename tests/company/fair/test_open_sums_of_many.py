"""Sums that the regulator sees, about more people than fit under rows of 2^20: rows of 2^19.

The limit of the product is four million people; it is lowered here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from report_kit import audited_run, write_report
from sklearn.linear_model import LogisticRegression

from isonomy.common.crypto.params import BFV_8192_COARSE_V1, BFV_8192_V1, open_parameters
from isonomy.common.report.schema import ReportFile
from isonomy.common.report.verify import Verification
from isonomy.common.sums.local import LocalOracle
from isonomy.company import FairClassifier, lending
from isonomy.company.federation.auditing import audit

PEOPLE, MOST = 1_000, 300


def lower(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setitem(BFV_8192_V1.__dict__, "max_open_people", most)


def test_a_fit_asks_the_same_at_the_same_price(monkeypatch: pytest.MonkeyPatch) -> None:
    data = lending(people=PEOPLE, seed=0)
    X, sex = data.features.select_dtypes("number"), {"sex": data.attributes["sex"]}
    fits, spent = {}, {}
    for most in (PEOPLE, MOST):
        lower(monkeypatch, most)
        with LocalOracle.rehearse(data.ids, sex, epsilon=50.0, delta=1e-5) as oracle:
            model = FairClassifier(LogisticRegression(max_iter=5_000), oracle=oracle)
            fits[most] = model.fit(X, data.target).releases_
            spent[most] = oracle.budget.spent_units
    assert len(fits[MOST].queries) == len(fits[PEOPLE].queries)
    # Whole numbers of half as many units: noise and price are rounded a little more.
    assert spent[MOST] == pytest.approx(spent[PEOPLE], rel=1e-4)
    np.testing.assert_allclose(fits[MOST].count_deviation, fits[PEOPLE].count_deviation, rtol=1e-4)
    assert fits[MOST].counts.sum() == pytest.approx(PEOPLE)
    assert (np.abs(fits[MOST].counts - fits[PEOPLE].counts) < 30).all()


def test_a_signed_audit_says_the_rates_and_verifies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lower(monkeypatch, MOST)
    run = audited_run(tmp_path, epsilon="20", groups=1)
    assert open_parameters(len(run.cohort)) is BFV_8192_COARSE_V1
    result = audit(run.oracle, run.after, run.label, name="after", share=0.5)
    paths = write_report(run, tmp_path / "report")
    assert all(
        check.state != "failed"
        for check in Verification(paths, plan=run.plan, ledger=run.ledger_path).run()
    )
    report = ReportFile.from_json(paths.report.read_bytes())
    (table,) = report.audits[0].tables
    assert [group.label for group in table.groups] == ["female", "male"]
    for code, limits in enumerate(table.rates["selection_rate"]):
        assert limits is not None
        truth, (value, low, high) = run.after[run.sex == code].mean(), np.array(limits) / 1e6
        assert value == pytest.approx(truth, abs=0.01)
        assert low < truth < high
    assert result.counts.counts.sum() == pytest.approx(len(run.cohort), abs=1e-6)
    run.ledger.close()
