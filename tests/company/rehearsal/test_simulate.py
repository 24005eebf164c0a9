"""`isonomy simulate`: the split, the JSON, the command's manners, a tiny run of each strategy."""

from __future__ import annotations

import csv
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.company.rehearsal import strategies as rehearsal
from isonomy.company.rehearsal.base_models import BASES, base_model
from isonomy.company.rehearsal.datasets import Dataset, lending
from isonomy.company.rehearsal.measures import violation
from isonomy.company.rehearsal.scores import distance, distance_floor, loss, worst_loss
from isonomy.company.rehearsal.settings import Settings
from isonomy.company.rehearsal.simulate import simulate, split_people
from isonomy.company.rehearsal.strategies import STRATEGIES, Rehearsal, Trained
from isonomy.company.rehearsal.tables_and_plots import _plots, table

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # typer 0.20 imports a name click retires
    from typer.testing import CliRunner

    from isonomy.common.base.command_line import CommandLine
    from isonomy.company.cli.simulate import simulate as command

RUN_KEYS = {
    "seed", "test_error", "test_violation", "base_error", "base_violation", "epsilon_spent",
    "seconds", "returned", "epsilon_cap", "epsilon_as_in_papers", "as_in_papers",
}  # fmt: skip
RESULT_KEYS = {
    "schema", "dataset", "attribute", "strategy", "notion", "epsilon", "delta", "base",
    "tolerance", "first_seed", "runs", "mean", "noise_floor",
}  # fmt: skip

app = CommandLine()
app.command()(command)
runner = CliRunner()


@pytest.fixture(scope="module")
def few() -> Dataset:
    return lending(600, seed=1)


PLAIN = Settings(strategy="unconstrained", base="logistic", seeds=2)


# --- The library ---------------------------------------------------------------------------------


def test_json_has_the_documented_keys(few: Dataset) -> None:
    shown = simulate(few, PLAIN).to_json()
    assert set(shown) == RESULT_KEYS
    assert (shown["schema"], shown["dataset"], shown["attribute"]) == (1, "lending", "sex")
    assert [run["seed"] for run in shown["runs"]] == [0, 1]
    assert all(set(run) == RUN_KEYS for run in shown["runs"])
    assert set(shown["mean"]) == {"test_error", "test_violation", "base_error", "base_violation"}
    mean = np.mean([run["test_error"] for run in shown["runs"]])
    assert shown["mean"]["test_error"] == pytest.approx(mean)
    assert 0 < shown["noise_floor"] < 0.2
    json.dumps(shown, allow_nan=False)


def test_several_epsilons_give_a_list(few: Dataset) -> None:
    shown = simulate(few, replace(PLAIN, epsilons=(0.5, 2.0), seeds=1)).to_json()
    assert set(shown) == {"schema", "results"}
    assert [result["epsilon"] for result in shown["results"]] == [0.5, 2.0]
    assert all(set(result) == RESULT_KEYS for result in shown["results"])


def test_a_seed_fixes_split_and_model(few: Dataset) -> None:
    first, again = (simulate(few, PLAIN).results[0].runs for _ in range(2))
    assert [run.test_error for run in first] == [run.test_error for run in again]
    assert first[0].test_error != first[1].test_error


def test_seeds_begin_where_one_says(few: Dataset) -> None:
    first = simulate(few, PLAIN).results[0].runs
    later = simulate(few, replace(PLAIN, first_seed=1)).results[0]
    assert [run.seed for run in later.runs] == [1, 2]
    assert later.runs[0].test_error == first[1].test_error
    assert later.to_json()["first_seed"] == 1


def test_split_is_three_to_one_and_complete() -> None:
    training, test = split_people(1_000, seed=5)
    assert (len(training), len(test)) == (750, 250)
    assert np.array_equal(np.sort(np.concatenate([training, test])), np.arange(1_000))
    assert not np.array_equal(training, split_people(1_000, seed=6)[0])


def test_rows_of_a_person_stay_on_one_side(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    people = np.repeat(np.arange(40), 10)
    data = Dataset(
        name="repeated",
        features=pd.DataFrame({"person": people, "x": rng.random(400)}),
        target=rng.integers(2, size=400),
        attributes={"group": ["a", "b"] * 20},
        groups={"group": ("a", "b")},
        ids=tuple(f"p{number}" for number in range(40)),
        people=people,
        notes="",
        source="",
    )
    seen: dict[str, set[int]] = {}

    def spy(given: Rehearsal) -> Trained:
        seen["training"] = set(given.features["person"])
        assert set(given.ids) == set(given.oracle.cohort.ids)

        def decide(features: pd.DataFrame) -> Any:
            seen["test"] = set(features["person"])
            return np.arange(len(features)) % 2

        return Trained(decide, decide, "spy")

    monkeypatch.setitem(STRATEGIES, "spy", spy)
    simulate(data, Settings(strategy="spy", base="logistic", seeds=1))
    assert len(seen["training"]) == 30
    assert seen["training"].isdisjoint(seen["test"])
    assert len(seen["training"] | seen["test"]) == 40


def test_error_and_violation_are_those_of_the_test_people(
    few: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule that says yes above an income, judged by hand."""

    def rule(given: Rehearsal) -> Trained:
        def decide(features: pd.DataFrame) -> Any:
            return (features["monthly_income"] > 2_500).to_numpy().astype(int)

        return Trained(decide, lambda features: np.ones(len(features), dtype=int), "rule")

    monkeypatch.setitem(STRATEGIES, "rule", rule)
    run = simulate(few, replace(PLAIN, strategy="rule", attribute="origin")).results[0].runs[1]
    _, test = split_people(600, seed=1)
    chosen = (few.features["monthly_income"] > 2_500).to_numpy().astype(int)[test]
    truth, groups = few.target[test], few.codes("origin")[test]
    assert run.test_error == pytest.approx(np.mean(chosen != truth))
    assert run.test_violation == violation("demographic_parity", truth, chosen, groups, 3)
    assert run.base_violation == 0.0
    assert run.base_error == pytest.approx(1 - truth.mean())
    assert (run.selection_rate, run.base_selection_rate) == (pytest.approx(chosen.mean()), 1.0)


@pytest.mark.parametrize("encrypted", [False, True])
def test_the_oracle_holds_the_training_people(encrypted: bool) -> None:
    ids = [f"p{number}" for number in range(60)]
    groups = {"sex": ("f", "m")}
    with rehearsal.rehearsal_oracle(
        ids, {"sex": ["f", "m", "m"] * 20}, groups, epsilon=50.0, delta=1e-5, encrypted=encrypted
    ) as oracle:
        counts = oracle.counts(share=0.5).values[:, 0]
        assert counts == pytest.approx([20, 40], abs=6 * 1.0)
        assert counts.sum() == pytest.approx(60)
        assert 0 < oracle.budget.spent_epsilon < 50


@pytest.mark.parametrize("base", BASES)
def test_base_models_take_mixed_tables_with_gaps(base: str) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.random(80), "b": rng.choice(["x", "y"], 80), "c": [True] * 80})
    frame.loc[3, "a"] = np.nan
    target = (frame["b"] == "x").to_numpy().astype(int)
    model = base_model(base, seed=0).fit(frame, target)
    unseen = frame.assign(b="never seen")
    assert model.predict_proba(unseen).shape == (80, 2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"strategy": "magic"}, "unknown strategy 'magic'; there are tilt, "),
        ({"notion": "kindness"}, "unknown notion"),
        ({"base": "svm"}, "unknown base model"),
        ({"epsilons": (0.0,)}, "epsilon must be a number above 0"),
        ({"epsilons": (float("nan"),)}, "epsilon must be"),
        ({"epsilons": (1.0, 1.0)}, "given twice"),
        ({"delta": 0.0}, "delta must lie"),
        ({"tolerance": 1.0}, "tolerance must be"),
        ({"tolerance": -0.01}, "tolerance must be"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"record_epsilon": 1.0}, "record privacy is for pf_ld, dp_fermi"),
        ({"stretch": 2.0}, "the individual filter is for pf_ld, dp_fermi, dp_sgda"),
        ({"strategy": "pf_ld", "record_epsilon": 0.0}, "records' epsilon must be above 0"),
        ({"strategy": "pf_ld", "stretch": 0.5}, "stretch must be"),
        ({"strategy": "pf_ld", "stretch": 2.0, "record_epsilon": 1.0}, "do not go together"),
        ({"base": "ridge"}, "unknown base model"),
        ({"notion": "score_parity", "strategy": "zafar"}, "score_parity is for tilt"),
        ({"notion": "score_parity", "keep_selection_rate": True}, "scores, which select nobody"),
        ({"notion": "bounded_group_loss"}, "unknown notion"),
    ],
)
def test_settings_are_checked_before_anything_runs(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings(**wrong)


def test_a_run_that_ends_with_its_budget_says_so(few: Dataset) -> None:
    """Theorem 3.3's noise counts on amplification, so small chunks overspend; filtered runs too."""
    options = {"noise": "theorem", "rounds": 3, "chunk_size": 40, "warmup_steps": 5}
    short = Settings(strategy="dp_sgda", base="logistic", seeds=1, options=options)
    ended = simulate(few, short)
    assert ended.to_json()["runs"][0]["stopped"] == "budget"
    assert "1 of 1 runs ended early: the budget was exhausted" in str(table(ended).caption)
    whole = replace(short, options={"rounds": 1, "warmup_steps": 5}, stretch=2.0)
    done = simulate(few, whole)
    assert done.to_json()["runs"][0]["stopped"] == "rounds"
    assert "exhausted" not in str(table(done).caption)


@pytest.mark.parametrize(
    ("attribute", "notion", "encrypted"),
    [
        ("sex", "demographic_parity", False),
        ("sex", "demographic_parity", True),
        ("origin", "equalized_odds", False),
    ],
)
def test_tilt_on_few_people(few: Dataset, attribute: str, notion: str, encrypted: bool) -> None:
    tiny = Settings(
        attribute=attribute,
        notion=notion,
        epsilons=(4.0,),
        base="logistic",
        seeds=1,
        encrypted=encrypted,
    )
    run = simulate(few, tiny).results[0].runs[0]
    assert run.returned in {"base", "tilt", "shrunk"}
    assert 0 < run.epsilon_spent <= 4.0
    assert 0 <= run.test_violation <= 1
    if run.returned == "base":
        assert (run.test_error, run.test_violation) == (run.base_error, run.base_violation)


# --- Scores --------------------------------------------------------------------------------------

SCORES = Settings(notion="score_parity", epsilons=(6.0,), base="logistic", seeds=1)


def test_scores_of_a_label_and_of_a_number(few: Dataset) -> None:
    """The same path as for decisions; a set with a number is scored by it."""
    probability = simulate(few, SCORES)
    run = probability.results[0].runs[0]
    assert run.test_violation < run.base_violation
    assert run.worst_loss >= run.test_error > 0
    assert 0 < run.epsilon_spent <= 6.0
    assert "explained variance" in _plots(probability)
    shown = table(probability)
    headers = [column.header for column in shown.columns]
    assert headers[1:5] == ["loss", "distance", "floor", "worst"]
    assert "(tolerance 0.05)" in str(shown.title)
    income = few.features["monthly_income"].to_numpy(dtype=float)
    number = simulate(replace(few, score=income), replace(SCORES, base="ridge", tolerance=0.5))
    assert number.results[0].runs[0].base_error < 0.05  # the number is among the features
    with pytest.raises(ConfigError, match="target is a number there are ridge, gbdt"):
        simulate(replace(few, score=income), SCORES)


def test_figures_of_scores_by_hand() -> None:
    truth, groups = np.array([0.0, 1.0, 2.0, 5.0]), np.array([0, 0, 1, 1])
    score = np.array([0.0, 1.0, 2.0, 3.0])
    variance = 3.5
    assert loss(truth, score) == pytest.approx(1 / variance)
    assert worst_loss(truth, score, groups) == pytest.approx(2 / variance)
    assert distance(score, groups) == 1.0
    assert distance(np.array([0.0, 1.0, 0.0, 1.0]), groups) == 0.0
    assert distance(np.array([0.0, 1.0, 1.0, 1.0]), groups) == 0.5
    # Two people in two groups of one: whoever is where, their scores do not overlap.
    assert distance_floor(score, groups, people=groups) == 1.0


# --- The command ---------------------------------------------------------------------------------

QUICK = ["--strategy", "unconstrained", "--base", "logistic", "--seeds", "1"]


def test_json_alone_on_stdout() -> None:
    result = runner.invoke(app, [*QUICK, "--json", "--epsilon", "0.5,1"])
    assert result.exit_code == 0, result.stderr
    shown = json.loads(result.stdout)
    assert [entry["epsilon"] for entry in shown["results"]] == [0.5, 1.0]


def test_a_table_by_default_and_files_on_request(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "results"
    result = runner.invoke(app, [*QUICK, "--epsilon", "0.5", "--epsilon", "1", "--out", str(out)])
    assert result.exit_code == 0, result.stderr
    assert "violation" in result.stdout
    assert sorted(path.name for path in out.iterdir()) == [
        "plots.html", "results.csv", "results.json",
    ]  # fmt: skip
    assert len(json.loads((out / "results.json").read_text())["results"]) == 2
    rows = list(csv.DictReader((out / "results.csv").read_text().splitlines()))
    assert [row["epsilon"] for row in rows] == ["0.5", "1.0"]
    assert 0 < float(rows[0]["selection_rate"]) < 1
    page = (out / "plots.html").read_text()
    assert "expected from sampling alone" in page
    assert "the gap between groups on test people is" in page
    assert "<script src=" not in page  # nothing is loaded from elsewhere
    assert list(out.parent.iterdir()) == [out]  # nothing staged is left


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dataset", "bank", "--data-dir", "/nowhere/at/all"], "does not exist"),
        (["--dataset", "nonesuch"], "unknown data set"),
        (["--attribute", "colour"], "has no attribute 'colour'"),
        (["--strategy", "magic"], "unknown strategy"),
        (["--notion", "kindness"], "unknown notion"),
        (["--epsilon", "0"], "epsilon must be"),
        (["--epsilon", "much"], "takes numbers"),
        (["--seeds", "0"], "seeds must be"),
        (["--first-seed", "-1"], "first seed must be"),
        (["--first-seed", "4294967295", "--seeds", "2"], "the last at most 4294967295"),
        (["--option", "speed=3"], "no option speed; this strategy has none"),
        (["--strategy", "pf_ld", "--option", "speed=3"], "this strategy has step, bound, damping"),
        (["--strategy", "f_ld", "--option", "oracle=3"], "no option oracle"),
        (["--strategy", "dp_fermi", "--option", "strength=much"], "strength takes a number"),
        (["--strategy", "dp_fermi", "--option", "ascent=up"], 'ascent is "newton"'),
        (["--strategy", "pf_ld", "--option", "split=1,2"], "COUNTS,DUAL,PRIMAL"),
        (["--strategy", "pf_ld", "--option", "loss_clip=1"], "no option loss_clip"),
        (["--tolerance", "1"], "tolerance must be"),
        (["--base", "svm"], "unknown base model"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    tmp_path: Path, options: list[str], message: str
) -> None:
    result = runner.invoke(app, [*QUICK, *options, "--json", "--out", str(tmp_path / "out")])
    assert isinstance(result.exception, DataError if "data" in options[0] else ConfigError)
    assert message in str(result.exception)
    assert json.loads(result.stdout)["error"]["text"] == str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_options_are_read_as_what_they_are() -> None:
    few_steps = ["--option", "rounds=1", "--option", "warmup_steps=1", "--option", "local_steps=1"]
    options = ["--option", "weight_decay=.03", "--option", "weights=.1,.4,.5"]
    fermi = ["--strategy", "dp_fermi", *few_steps, *options, "--first-seed", "7"]
    result = runner.invoke(app, [*QUICK, *fermi])
    assert result.exit_code == 0, result.stderr
    assert "seeds 7 to 7" in result.stdout
    refused = runner.invoke(app, [*QUICK, *fermi, "--option", "radius=-1e0"])
    assert isinstance(refused.exception, ConfigError)
    assert "radius must be a positive number, got -1.0" in str(refused.exception)


def test_out_must_be_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "taken"
    file.write_text("mine")
    result = runner.invoke(app, [*QUICK, "--out", str(file)])
    assert isinstance(result.exception, ConfigError)
    assert "is a file" in str(result.exception)
    assert file.read_text() == "mine"


def test_a_users_file(tmp_path: Path, few: Dataset) -> None:
    frame = few.features.assign(
        sex=few.attributes["sex"], repaid=np.where(few.target == 1, "good", "bad")
    )
    path = tmp_path / "mine.csv"
    frame.to_csv(path, index=False)
    options = ["--dataset", str(path), "--target", "repaid", "--attribute", "sex"]
    refused = runner.invoke(app, [*QUICK, *options])
    assert isinstance(refused.exception, DataError)
    assert "--positive" in str(refused.exception)
    result = runner.invoke(app, [*QUICK, *options, "--positive", "good", "--json"])
    assert result.exit_code == 0, result.stderr
    shown = json.loads(result.stdout)
    assert (shown["dataset"], shown["attribute"]) == ("mine.csv", "sex")
