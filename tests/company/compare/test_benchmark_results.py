"""From finished cells to tables and figures."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from pathlib import Path

import pandas as pd
import pytest
from benchmark_kit import cell, line
from click.testing import Result
from scipy.stats import ttest_rel
from typer.testing import CliRunner

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.company.cli.main import app
from isonomy.company.compare.benchmark._figures import draw
from isonomy.company.compare.benchmark._published import FILE, Rival, curves
from isonomy.company.compare.benchmark._summary import (
    Mean,
    front,
    means,
    paired,
    tidy,
    verdict,
)
from isonomy.company.compare.benchmark._tables import dominance_table, markdown
from isonomy.company.compare.benchmark.methods import method, published_method
from isonomy.company.compare.benchmark.output import read_steps, write
from isonomy.company.compare.benchmark.store import Store
from isonomy.company.rehearsal.strategies import STRATEGIES

WHERE = ("lending", "sex", "demographic_parity")


def _means() -> list[Mean]:
    lines = []
    for seed, shift in enumerate((0.0, 0.01, -0.004)):
        for strategy, error, gap in (("tilt", 0.17, 0.02), ("pf_ld", 0.18, 0.05)):
            for epsilon in (0.5, 1.0):
                own = cell(strategy=strategy, epsilon=epsilon, seed=seed)
                lines.append(line(own, test_error=error + shift, test_violation=gap - shift / 2))
        own = cell(strategy="pf_ld", seed=seed, options=(("primal_norm", 1.0),))
        lines.append(line(own))
        lines.append(line(cell(strategy="unconstrained", epsilon=None, seed=seed)))
    return means(tidy(lines))


def _of(strategy: str, epsilon: float | None) -> Mean:
    own = [m for m in _means() if m.strategy == strategy and m.epsilon == epsilon and not m.options]
    assert len(own) == 1
    return own[0]


# --- Numbers -----------------------------------------------------------------------------------


def test_means_are_over_seeds_and_settings_stay_apart() -> None:
    found = _means()
    assert len(found) == 6
    assert all(own.seeds == 3 for own in found)
    assert _of("tilt", 1.0).error == pytest.approx(0.172)
    assert _of("tilt", 1.0).where == WHERE


def test_failed_cells_take_no_part() -> None:
    frame = tidy([line(cell()), {**line(cell(seed=1)), "status": "failed"}])
    assert list(frame["seed"]) == [0]


def test_a_front_has_only_what_nothing_beats() -> None:
    points = [(0.01, 0.2), (0.02, 0.15), (0.03, 0.16), (0.02, 0.18), (0.05, 0.1)]
    assert front(points) == [(0.01, 0.2), (0.02, 0.15), (0.05, 0.1)]


@pytest.mark.parametrize(
    ("epsilon", "error", "violation", "expected"),
    [
        (1.0, 0.18, 0.05, "both"),
        (1.0, 0.18, 0.019 + 0.0099, "error"),  # lower, but within the floor of 0.01
        (1.0, 0.18, 0.019 - 0.0099, "error"),
        (1.0, 0.18, 0.005, "no"),  # theirs is fairer by more than the floor
        (1.0, 0.17, 0.05, "no"),  # theirs errs less
        (0.4, 0.18, 0.05, "no"),  # we have no point at so small a budget
    ],
)
def test_dominance(epsilon: float, error: float, violation: float, expected: str) -> None:
    ours = [own for own in _means() if own.strategy == "tilt"]
    rival = Rival("them", WHERE, epsilon, error, violation)
    assert verdict(rival, ours).verdict == expected
    elsewhere = Rival("them", ("adult", "sex", "demographic_parity"), 1.0, 1.0, 1.0)
    assert verdict(elsewhere, ours).by is None


def test_paired_tests_pair_by_seed() -> None:
    seeds, tests = paired(_of("tilt", 1.0), _of("unconstrained", None))
    errors = [0.17, 0.18, 0.166]
    assert seeds == 3
    assert tests.loc["error", "mean"] == pytest.approx(sum(errors) / 3 - 0.2)
    assert tests.loc["error", "t"] == pytest.approx(ttest_rel(errors, [0.2] * 3).pvalue)
    # Wilcoxon: the least that three seeds can give
    assert tests.loc["error", "wilcoxon"] == pytest.approx(0.25)
    _, alike = paired(_of("tilt", 1.0), _of("tilt", 1.0))
    assert math.isnan(alike.loc["error", "t"])


def test_published_points_of_the_other_notion_or_without_budget_are_left_out(
    tmp_path: Path,
) -> None:
    path = tmp_path / FILE
    path.parent.mkdir()
    head = "experiment,method,dataset,epsilon,misclassification,fairness_metric,violation_mean\n"
    rows = (
        "Demographic Parity Experiments,DP-FERMI,adult,1.0,0.18,demographic_parity,0.01\n"
        "Demographic Parity Experiments,PF-LD,adult,1.0,0.18,equalized_odds,0.01\n"
        "Demographic Parity Experiments,DP-FERMI,adult,inf,0.18,demographic_parity,0.01\n"
        "Demographic Parity Experiments,DP-FERMI,retired-adult,1.0,0.18,demographic_parity,0.01\n"
    )
    path.write_text(head + rows)
    assert curves(tmp_path) == [
        Rival("DP-FERMI", ("adult", "sex", "demographic_parity"), 1.0, 0.18, 0.01)
    ]
    assert curves(None) == []
    assert curves(tmp_path / "elsewhere") == []
    path.write_text(head.replace("violation_mean", "violation"))
    with pytest.raises(ConfigError, match="violation_mean"):
        curves(tmp_path)


# --- Tables and figures ------------------------------------------------------------------------


def test_the_dominance_table_counts_every_competitor_at_small_budgets() -> None:
    theirs = [Rival("DP-FERMI", WHERE, epsilon, 0.1, 0.001) for epsilon in (1.0, 3.0)]
    text = dominance_table(_means(), theirs)
    assert "Of 4 points of private competitors at ε ≤ 1, 3 are beaten in both" in text
    assert "| DP-FERMI, published | 1 | 0 | 0 | 1 | 0 | 0 | 1 |" in text
    assert "| DP-FERMI, published | 1 | 0.1000 | 0.0010 | 0.1720 @ 0.0190, logistic |" in text
    assert "unconstrained" not in text


def test_the_tables_of_wang_hold_published_and_own_numbers() -> None:
    own = line(cell(dataset="adult", strategy="tilt"), group_fairness=0.95, test_error=0.17)
    text = markdown(means(tidy([own])), [])
    assert "| L-D, published |  | none | 0.939 | 81.7 | – |" in text
    assert "| tilt (ours), logistic | tolerance 0.01 | 1 | 0.950 | 83.0 | 1 |" in text


def test_figures_are_sound_and_a_method_keeps_its_colour() -> None:
    theirs = [
        Rival("DP-FERMI", WHERE, 1.0, 0.2, 0.0),
        Rival("DP-FERMI", WHERE, 1.0, 0.19, 0.1),
    ]
    times = {"plain_ms": 1.0, "f_ld_ms": 2.0, "opacus_ms": 4.0, "pf_ld_ms": 3.0}
    steps = {"rows": [{"layers": 2, "batch": batch, **times} for batch in (16, 64)]}
    drawn = draw(_means(), theirs, steps)
    assert set(drawn) == {
        "benchmark-tradeoff-demographic-parity",
        "benchmark-tradeoff-lending-demographic-parity",
        "benchmark-epsilon-demographic-parity",
        "benchmark-clipping",
        "benchmark-steps",
    }
    for name, figure in drawn.items():
        text = figure.svg()
        picture = ET.fromstring(text)  # noqa: S314  (our own text)
        width, height = (float(picture.attrib[side]) for side in ("width", "height"))
        for mark in picture.iter("{http://www.w3.org/2000/svg}circle"):
            assert 0 < float(mark.attrib["cx"]) < width
            assert 0 < float(mark.attrib["cy"]) < height
        assert "nan" not in text, name
    for name in ("benchmark-tradeoff-demographic-parity", "benchmark-epsilon-demographic-parity"):
        assert f'fill="{method("tilt").colour}"' in drawn[name].svg()
    assert published_method("DP-FERMI").colour == method("dp_fermi").colour


def test_every_registered_strategy_has_a_look_of_its_own() -> None:
    looks = [(method(s).colour, method(s).mark, method(s).private) for s in STRATEGIES]
    assert len(set(looks)) == len(looks)
    assert method("made_tomorrow").private  # an unknown name is never taken for a free reference


def test_a_folder_holds_table_figures_and_page(tmp_path: Path) -> None:
    lines = [line(cell(strategy=s)) for s in ("tilt", "pf_ld")]
    written = write(lines, tmp_path)
    assert {path.name for path in written} >= {"results.csv", "results.parquet", "tables.md"}
    csv, parquet = (
        pd.read_csv(tmp_path / "results.csv"), pd.read_parquet(tmp_path / "results.parquet")
    )  # fmt: skip
    assert list(csv.columns) == list(parquet.columns)
    assert list(csv["strategy"]) == ["tilt", "pf_ld"]
    assert csv["key"][0] == cell().key
    assert not list(tmp_path.rglob("*.partial"))


def test_steps_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    for text in ("{", "{}", '{"rows": [{"layers": 2}]}'):
        path.write_text(text)
        with pytest.raises(ConfigError, match="isonomy bench step --json"):
            read_steps(path)


# --- The command -------------------------------------------------------------------------------


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(part) for part in arguments], catch_exceptions=False)


def test_the_command_refuses_and_draws(tmp_path: Path) -> None:
    out = tmp_path / "out"
    own = tmp_path / "list.toml"
    own.write_text('[[experiment]]\ndatasets = ["adult"]\nstrategies = ["tilted"]\n')
    with pytest.raises(ConfigError, match="unknown strategy 'tilted'"):
        invoke("benchmark", "--list", own, "--out", out)
    assert not out.exists()

    own.write_text('[[experiment]]\ndatasets = ["adult"]\nstrategies = ["tilt"]\n')
    with pytest.raises(DataError, match=r"adult_train\.csv\.gz is missing"):
        invoke("benchmark", "--list", own, "--out", out, "--data-dir", tmp_path)

    empty = tmp_path / "empty"
    with pytest.raises(ConfigError, match="does not exist"):
        invoke("benchmark", "--figures-only", "--out", empty)

    with Store(empty) as store:
        store.add(line(cell()))
    assert invoke("benchmark", "--figures-only", "--out", empty).exit_code == 0
    assert (empty / "figures/benchmark-tradeoff-demographic-parity.svg").is_file()


@pytest.mark.slow
def test_a_real_cell_runs_and_is_kept(tmp_path: Path) -> None:
    own = tmp_path / "list.toml"
    own.write_text(
        '[[experiment]]\ndatasets = ["lending/sex"]\nseeds = 1\n'
        'strategies = ["unconstrained", "tilt"]\n'
    )
    arguments = ["benchmark", "--list", own, "--out", tmp_path, "--jobs", "1"]
    assert "2 cells run, 0 found, 0 failed" in invoke(*arguments).output
    assert "0 cells run, 2 found, 0 failed" in invoke(*arguments).output
