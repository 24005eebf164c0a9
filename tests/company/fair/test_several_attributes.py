"""One fit that is fair by several attributes, each with its own groups and tolerance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.sums.local import LocalOracle
from isonomy.company.fair.estimator import FairClassifier
from isonomy.company.fair.onnx_export import onnx_bytes
from isonomy.company.fair.save import load_model, save_model
from isonomy.company.federation.auditing import audit
from isonomy.company.gradient.sdk.classifier import GradientFairClassifier

N = 5000
BOTH = ["sex", "town"]


def people(n: int = N, seed: int = 0) -> tuple[Any, Any, dict[str, Any]]:
    """Women get less, and so do people of the west and south; a hobby and a street tell."""
    rng = np.random.default_rng(seed)
    a, town = rng.random(n) < 0.45, rng.integers(0, 3, n)
    skill = rng.normal(0, 1, n)
    y = (skill - 1.5 * a - 1.3 * (town > 0) + rng.normal(0, 1.0, n) > -1.2).astype(int)
    X = np.column_stack([skill, rng.normal(3.0 * a, 1.0), rng.normal(3.0 * (town > 0), 1.0)])
    names = np.array(["east", "south", "west"])
    return X, y, {"sex": np.where(a, "f", "m"), "town": names[town]}


def oracle_for(attributes: dict[str, Any], epsilon: float = 20.0) -> Any:
    columns = {name: of.tolist() for name, of in attributes.items()}
    ids = [f"p{i}" for i in range(len(columns["sex"]))]
    return LocalOracle.rehearse(ids, columns, epsilon=epsilon, delta=1e-5)


def gap(decided: Any, groups: Any) -> float:
    rates = [decided[groups == group].mean() for group in np.unique(groups)]
    return float(max(rates) - min(rates))


@pytest.fixture(scope="module")
def fitted() -> FairClassifier:
    X, y, attributes = people()
    return FairClassifier(
        LogisticRegression(),
        tolerance={"sex": 0.02, "town": 0.15},
        oracle=oracle_for(attributes),
        attribute=BOTH,
        cv=3,
        random_state=0,
    ).fit(X, y)


def test_each_attribute_comes_near_its_own_tolerance(fitted: FairClassifier) -> None:
    X, _, attributes = people(30_000, seed=1)
    before, after = fitted.base_estimator_.predict(X), fitted.predict(X)
    assert min(gap(before, attributes[name]) for name in BOTH) > 0.2
    assert gap(after, attributes["sex"]) < 0.08
    assert 0.08 < gap(after, attributes["town"]) < 0.2  # not more than was asked for


def test_the_report_has_each_attribute_and_the_worst(fitted: FairClassifier) -> None:
    report = fitted.report_
    sex, town = report.by_attribute
    assert (sex.attribute, sex.tolerance, town.attribute, town.tolerance) == (
        "sex", 0.02, "town", 0.15,
    )  # fmt: skip
    worst = max(sex, town, key=lambda each: each.after.value - each.tolerance)
    assert (report.violation, report.interval) == (
        worst.after.value, (worst.after.low, worst.after.high),
    )  # fmt: skip
    assert report.tolerance == 0.02
    text = str(report)
    assert f"the worst is {worst.attribute}" in text
    assert "\nsex: " in text
    assert "\ntown: " in text
    assert "15.00 points is tolerated" in text
    loose = fitted.at(tolerance=0.9).report_
    assert loose.returned == "base"
    assert [each.tolerance for each in loose.by_attribute] == [0.9, 0.9]


def test_kept_and_exported_it_decides_the_same(fitted: FairClassifier, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    X, _, _ = people(500, seed=2)
    loaded = load_model(save_model(fitted, tmp_path / "model"))
    np.testing.assert_array_equal(loaded.predict(X), fitted.predict(X))
    assert loaded.report_ == fitted.report_
    assert "town: " in (tmp_path / "model" / "card.md").read_text()
    session = onnxruntime.InferenceSession(onnx_bytes(fitted, X))
    decided = session.run(None, {session.get_inputs()[0].name: X})[0]
    np.testing.assert_array_equal(decided.reshape(-1), fitted.predict(X))


def test_equalized_odds_and_an_audit_of_both() -> None:
    X, y, attributes = people()
    oracle = oracle_for(attributes)
    clf = FairClassifier(
        LogisticRegression(),
        notion="equalized_odds",
        tolerance=0.03,
        oracle=oracle,
        epsilon=15.0,
        attribute=BOTH,
        cv=3,
        audits=2,
        random_state=0,
    ).fit(X, y)
    for each in clf.report_.by_attribute:
        assert each.before.value > 0.1
        assert each.after.value < 0.6 * each.before.value
    result = audit(oracle, clf.predict(X), y, attribute=BOTH, share=0.2)
    assert {table.attribute for table in result.tables} == {"sex", "town", "sex*town"}


def test_an_attribute_that_cannot_be_measured_hides_no_other() -> None:
    X, y, attributes = people()
    attributes["town"] = np.where(np.arange(N) < 8, "isle", "land")
    clf = FairClassifier(
        LogisticRegression(), oracle=oracle_for(attributes, 4.0), attribute=BOTH, random_state=0
    ).fit(X, y)
    sex, town = clf.report_.by_attribute
    assert clf.report_.violation is None
    assert town.after is None
    assert town.unmeasured == ("isle",)
    assert sex.after.value < 0.5 * sex.before.value
    text = str(clf.report_)
    assert "violation on town cannot be measured at this budget: too few people of isle" in text
    assert "\ntown: cannot be measured at this budget" in text


def test_eighteen_groups_are_measured_or_named() -> None:
    X, y, attributes = people()
    attributes["town"] = np.array([f"t{n % 18:02d}" for n in range(N)])
    clf = FairClassifier(
        LogisticRegression(),
        oracle=oracle_for(attributes, 3.0),
        attribute=BOTH,
        cv=2,
        audits=1,
        random_state=0,
    ).fit(X, y)
    assert len(clf.report_.groups) == 20
    town = clf.report_.by_attribute[1]
    assert town.after is not None or len(town.unmeasured) > 16


# --- Bad input and other strategies ---------------------------------------------------------------


@pytest.mark.parametrize(
    "tolerance",
    [{"sex": 0.1}, {"sex": 0.1, "twon": 0.1}, {}, {"sex": 0.1, "town": 2.0}, {"sex": None}],
)
def test_tolerances_that_name_no_attribute_are_refused(tolerance: Any) -> None:
    X, y, attributes = people(400)
    oracle = oracle_for(attributes)
    clf = FairClassifier(LogisticRegression(), tolerance=tolerance, oracle=oracle, attribute=BOTH)
    with pytest.raises(ConfigError, match="tolerance"):
        clf.fit(X, y)
    assert oracle.budget.spent_units == 0


def test_an_attribute_of_one_group_is_refused() -> None:
    _, _, attributes = people(400)
    with pytest.raises(DataError, match="at least two"):
        oracle_for(attributes | {"town": np.full(400, "east")})


def test_pf_ld_takes_several_attributes_and_dp_fermi_says_that_it_does_not() -> None:
    X, y, attributes = people(1500)
    oracle = oracle_for(attributes)
    settings: dict[str, Any] = {
        "attribute": BOTH,
        "encoder": "passthrough",
        "trainer_options": {"rounds": 2, "local_steps": 1, "warmup_steps": 1},
    }
    fermi = GradientFairClassifier("logistic", strategy="dp_fermi", oracle=oracle, **settings)
    with pytest.raises(ConfigError, match="DP-FERMI takes one attribute"):
        fermi.fit(X, y)
    assert oracle.budget.spent_units == 0
    pf_ld = GradientFairClassifier("logistic", strategy="pf_ld", oracle=oracle, **settings)
    assert pf_ld.fit(X, y).predict(X).shape == (1500,)
    assert 0 < oracle.budget.spent_units <= oracle.budget.cap_units
