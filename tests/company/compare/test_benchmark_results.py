"""From finished cells to tables and figures."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
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
    tidy,
)
from isonomy.company.compare.benchmark._tables import comparison_table, markdown, summary_table
from isonomy.company.compare.benchmark.comparison import Comparison, compare, difference
from isonomy.company.compare.benchmark.methods import method, published_method
from isonomy.company.compare.benchmark.output import read_steps, restore, write
from isonomy.company.compare.benchmark.runner import pending
from isonomy.company.compare.benchmark.store import FILE as FILE_OF_CELLS
from isonomy.company.compare.benchmark.store import Store, read_records
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
    ("errors", "violations", "expected"),
    [
        ((-0.01, -0.02, -0.015), (-0.03, -0.02, -0.025), "better"),
        ((-0.01, -0.02, -0.015), (0.01, -0.02, 0.005), "better"),
        ((0.01, -0.02, 0.005), (0.01, -0.02, 0.005), "not told apart"),
        ((-0.01, -0.02, -0.015), (0.03, 0.02, 0.025), "each in one"),
        ((0.01, -0.02, 0.005), (0.03, 0.02, 0.025), "worse"),
    ],
)
def test_a_word_for_two_paired_differences(
    errors: tuple[float, ...], violations: tuple[float, ...], expected: str
) -> None:
    """Tilt − rival by seed; the rival lacks one of tilt's seeds, which takes no part."""
    tilt = _of("tilt", 1.0)
    theirs = tuple(
        (seed, error - e, violation - v)
        for (seed, error, violation), e, v in zip(tilt.by_seed, errors, violations, strict=True)
    )
    extra = replace(tilt, by_seed=(*tilt.by_seed, (3, 9.0, 9.0)))
    rival = Rival("them", WHERE, 1.0, 0.2, 0.05, by_seed=theirs)
    found = compare(rival, [extra], "logistic")
    assert found is not None
    assert (found.word, found.seeds) == (expected, 3)
    interval = ttest_rel(errors, [0.0] * 3).confidence_interval(0.95)
    assert found.error.mean - found.error.half == pytest.approx(interval.low)
    assert found.error.mean + found.error.half == pytest.approx(interval.high)


def test_tilt_is_met_at_the_nearest_violation_and_no_larger_budget() -> None:
    near = replace(_of("tilt", 1.0), violation=0.04, tolerance=0.05)
    tilts = [mean for mean in _means() if mean.strategy == "tilt"] + [near]
    assert _compared(Rival("them", WHERE, 3.0, 0.2, 0.05), tilts).tilt is near
    assert _compared(Rival("them", WHERE, None, 0.2, 0.01), tilts).tilt.tolerance == 0.01
    assert _compared(Rival("them", WHERE, 0.7, 0.2, 0.05), tilts).tilt.epsilon == 0.5
    assert compare(Rival("them", WHERE, 0.4, 0.2, 0.05), tilts, "logistic") is None
    assert compare(Rival("them", WHERE, 1.0, 0.2, 0.05), tilts, "gbdt") is None
    elsewhere = Rival("them", ("adult", "sex", "demographic_parity"), 1.0, 1.0, 1.0)
    assert compare(elsewhere, tilts, "logistic") is None


def _compared(rival: Rival, tilts: list[Mean]) -> Comparison:
    found = compare(rival, tilts, "logistic")
    assert found is not None
    return found


def test_one_seed_tells_nothing_apart() -> None:
    assert difference([-0.5]).word == "not told apart"
    assert difference([0.0, 0.0]).word == "not told apart"
    assert difference([-0.1, -0.1]).word == "better"


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


def test_the_summary_counts_every_rival_at_small_budgets() -> None:
    theirs = [Rival("DP-FERMI", WHERE, epsilon, 0.1, 0.001) for epsilon in (1.0, 3.0)]
    text = summary_table(_means(), theirs)
    assert "| DP-FERMI, published | 1 | 0 | 0 | 0 | 1 | – | – | – | – |" in text
    assert "| PF-LD, our code | 3 | 3 | 0 | 0 | 0 | – | – | – | – |" in text
    assert "no constraint" not in text


def test_every_comparison_has_its_intervals() -> None:
    text = comparison_table(_means(), [Rival("DP-FERMI", WHERE, 1.0, 0.1, 0.001)])
    head = "| lending | demographic parity | PF-LD, our code, logistic | 0.5 | 0.1820 @ 0.0490 |"
    assert f"{head} 0.1720 @ 0.0190, logistic | 3 | -0.0100 ± 0.0000 | -0.0300 ±" in text
    assert "DP-FERMI, published, logistic" in text  # not beaten: shown
    beaten = comparison_table(_means(), [Rival("DP-FERMI", WHERE, 1.0, 0.9, 0.5)])
    assert "DP-FERMI" not in beaten


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


def test_the_table_alone_is_enough_to_go_on_and_to_draw_the_same(tmp_path: Path) -> None:
    todo = [
        cell(),
        cell(seed=1, tolerance=0.04),
        cell(strategy="pf_ld", options=(("primal_norm", 1.0),)),
        cell(strategy="pf_ld", options=(("rounds", 3), ("average", True))),
        cell(strategy="f_ld", epsilon=None, attribute="sex*origin"),
    ]
    lines = [line(own, test_error=1 / 3, group_fairness=None) for own in todo]
    lines[-1]["accounting"] = "none: trained on the true attributes"
    first, again = tmp_path / "first", tmp_path / "again"
    write(lines, first)
    again.mkdir()
    table = (first / "results.csv").read_bytes()
    (again / "results.csv").write_bytes(table)

    restore(again)
    with Store(again) as store:
        assert pending(todo, store) == []  # the same keys, from cells that are the same
    records = read_records(again)
    for record, own in zip(records, todo, strict=True):
        assert record["cell"] == own.to_json()
    write(records, again)
    for path in (path for path in first.rglob("*") if path.suffix in (".csv", ".md", ".svg")):
        assert (again / path.relative_to(first)).read_bytes() == path.read_bytes()


def test_the_table_that_comes_with_the_docs_is_read(tmp_path: Path) -> None:
    table = Path(__file__).parents[3] / "docs" / "lab" / "benchmark-results.csv"
    (tmp_path / "results.csv").write_bytes(table.read_bytes())
    restore(tmp_path)
    records = read_records(tmp_path)
    assert len(records) == len(table.read_text().splitlines()) - 1
    tidy(records).to_csv(tmp_path / "again.csv", index=False)
    assert (tmp_path / "again.csv").read_bytes() == table.read_bytes()


def test_a_table_never_replaces_finished_cells_and_another_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text("key,cell\n1,2\n")
    with pytest.raises(ConfigError, match="not a table of"):
        restore(tmp_path)
    assert not (tmp_path / FILE_OF_CELLS).exists()
    with Store(tmp_path) as store:
        store.add(line(cell()))
    restore(tmp_path)
    assert len(read_records(tmp_path)) == 1


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
