"""Pictures of a model: what its report says, with intervals, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression

from isonomy.common.base.errors import ConfigError
from isonomy.common.figures.figure import Figure
from isonomy.company import FairClassifier, LocalOracle, load_model, save_model
from isonomy.company.fair.figures import frontier_figure, verdict
from isonomy.company.fair.tilt.analysis import Gap

N = 3000
SMALL = 3


def people() -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """A large group, one that earns less, and one of three people."""
    rng = np.random.default_rng(0)
    less = rng.random(N) < 0.4
    hobby = rng.normal(2.5 * less, 1.0)
    skill = rng.normal(0, 1, N)
    y = (skill - 1.3 * less + rng.normal(0, 0.7, N) > 0.3).astype(int)
    group = np.where(less, "less", "more").astype(object)
    group[:SMALL] = "ein sehr langer Name, 非常に長い名前"
    return pd.DataFrame({"skill": skill, "hobby": hobby}), y, group


def fit(**settings: object) -> FairClassifier:
    X, y, group = people()
    oracle = LocalOracle.rehearse(range(N), {"origin": group.tolist()}, epsilon=8.0, delta=1e-5)
    return FairClassifier(LogisticRegression(), oracle=oracle, random_state=0, **settings).fit(X, y)


@pytest.fixture(scope="module")
def model() -> FairClassifier:
    return fit(tolerance=0.02)


def _series(figure: Figure, label: str) -> list[tuple[float, float, float, float]]:
    """(value, height, low, high) of every mark with this label."""
    (found,) = (one for panel in figure.panels for one in panel.series if one.label == label)
    return [(*point, *limits) for point, limits in zip(found.points, found.x_limits, strict=True)]


def test_the_frontier_is_what_report_and_frontier_say(model: FairClassifier) -> None:
    spent, report = model.oracle.budget.spent_epsilon, model.report_
    figure = model.plot_frontier([0.0, 0.1])
    ((gap, accuracy, low, high),) = _series(figure, "this model")
    expected = (report.violation, 1 - report.error, *report.interval)
    assert (gap, accuracy, low, high) == pytest.approx([100 * value for value in expected])
    assert _series(figure, "base model")[0][0] == pytest.approx(100 * report.base_violation)
    others = [100 * point.violation for point in model.frontier([0.0, 0.1])]
    assert [mark[0] for mark in _series(figure, "other tolerances")] == pytest.approx(others)
    assert figure.panels[0].levels[0].value == pytest.approx(2.0)
    assert "tolerance 2\u00a0%" in figure.verdict
    assert model.oracle.budget.spent_epsilon == spent


def test_groups_have_their_rates_and_a_small_one_says_that_it_has_none(
    model: FairClassifier,
) -> None:
    X, _, group = people()
    figure = model.plot_groups()
    (panel,) = figure.panels
    small = next(n for n, name in enumerate(panel.rows) if name.startswith("ein sehr"))
    assert panel.row_notes == {small: "too few people for this budget"}
    assert "1 group cannot be measured" in figure.verdict or "Not met" in figure.verdict
    assert "非常" in figure.svg()
    for label, decisions in (
        ("base model", model.base_estimator_.predict(X)),
        ("this model", model.predict(X)),
    ):
        marks = {round(mark[1]): mark for mark in _series(figure, label)}
        assert set(marks) == set(range(3)) - {small}
        for row, (value, _, low, high) in marks.items():
            true = 100 * decisions[group == panel.rows[row]].mean()
            assert low <= value <= high
            assert value == pytest.approx(true, abs=5)  # ε = 8: noise of a few tenths of a point
            assert high - low < 12


def test_intervals_cover_the_rates_of_the_people() -> None:
    X, _, group = people()
    covered = []
    for seed in range(4):
        model = fit(tolerance=0.02 + seed / 1000, epsilon=1.0)
        decisions = model.base_estimator_.predict(X)  # audited, so no proxy is in the way
        for rate in model.report_.rates:
            if rate.before is not None:
                truth = decisions[group == rate.group].mean()
                covered.append(rate.before[1] - 0.01 <= truth <= rate.before[2] + 0.01)
    assert len(covered) == 8
    assert sum(covered) >= 5


def test_two_rates_have_a_panel_each() -> None:
    figure = fit(notion="equalized_odds", tolerance=0.05).plot_groups()
    assert [panel.x_label for panel in figure.panels] == [
        "selected | y = 0, by origin, %",
        "selected | y = 1, by origin, %",
    ]


def test_a_model_that_was_read_from_a_folder_still_shows_its_groups(
    model: FairClassifier, tmp_path: Path
) -> None:
    folder = save_model(model, tmp_path / "model")
    copy = load_model(folder)
    assert copy.plot_groups() == model.plot_groups()
    with pytest.raises(ConfigError, match="without its training rows"):
        copy.plot_frontier()


def test_an_exactly_fair_model_and_one_that_is_not_fitted() -> None:
    X, y, group = people()
    oracle = LocalOracle.rehearse(range(N), {"origin": group.tolist()}, epsilon=1.0, delta=1e-5)
    same = FairClassifier(DummyClassifier(), oracle=oracle).fit(X, y)
    figure = same.plot_groups()
    assert "every group has the same rate" in figure.panels[0].message
    assert "Met: gap 0.00" in figure.verdict
    with pytest.raises(NotFittedError):
        FairClassifier().plot_groups()
    with pytest.raises(NotFittedError):
        FairClassifier().plot_frontier()


@pytest.mark.parametrize(
    ("interval", "unmeasured", "words"),
    [
        ((0.0, 0.02), (), "Met: gap 1.00"),
        ((0.0, 0.02), ("x",), "Inconclusive: gap 1.00"),
        ((0.0, 0.03), (), "Inconclusive: gap 1.00"),
        ((0.021, 0.03), (), "Not met: gap 1.00"),
        (None, (), "cannot be measured"),
    ],
)
def test_the_verdict_is_never_more_than_the_interval_says(
    model: FairClassifier,
    interval: tuple[float, float] | None,
    unmeasured: tuple[str, ...],
    words: str,
) -> None:
    (only,) = model.report_.by_attribute
    gap = Gap(0.01, 0.01, *interval, "a against b") if interval else None
    only = replace(only, tolerance=0.02, after=gap, unmeasured=unmeasured)
    report = replace(model.report_, by_attribute=(only,))
    assert words in _plain(verdict(report))
    both = replace(report, by_attribute=(only, replace(only, attribute="sex", tolerance=0.5)))
    assert f"origin: {_plain(verdict(report))} sex: " in _plain(verdict(both))
    assert not frontier_figure(both, []).panels[0].levels  # one band says little about two
    several = replace(report, notion="equal_opportunity + accuracy_parity")
    assert _plain(verdict(several)).startswith(("Largest gap 1.00", "The gap cannot"))


def _plain(words: str) -> str:
    return words.replace("\u00a0", " ").replace(" %", "")
