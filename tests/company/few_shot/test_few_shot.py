"""The company's few-shot command and SDK on scikit-learn's digits."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from few_shot_kit import save_pool
from typer.testing import CliRunner

from isonomy.common.base.errors import ConfigError, DataError, VerificationError
from isonomy.common.few_shot.learning.learners import RegulatorLearner
from isonomy.common.few_shot.learning.tasks import planned_uses
from isonomy.common.privacy.accounting import epsilon_of
from isonomy.company.cli.main import app
from isonomy.company.compare.benchmark.store import read_records
from isonomy.company.few_shot._rehearse import FewShotCell, rehearse, warm_start
from isonomy.company.few_shot._variants import ROOM, VARIANTS, settings_for
from isonomy.company.few_shot.data import digits_pools, load
from isonomy.company.few_shot.experiments import (
    RECIPES,
    Rehearsals,
    cells,
    experiment,
    run_cells,
)
from isonomy.company.few_shot.model import FewShotModel
from isonomy.company.few_shot.summaries import differences, plot, summarise, write

DATA = Path(os.environ.get("ISONOMY_DATA_DIR", Path(__file__).parents[4] / "shared" / "data"))
QUICK = replace(
    RECIPES["digits"],
    base={**RECIPES["digits"].base, "rounds": 2, "width": 16},
    warm_rounds=40,
    test_tasks=10,
)


def test_digits_are_learned_in_seconds_and_saved(tmp_path: Path) -> None:
    pools = digits_pools(0)
    start, cell = warm_start(pools, QUICK, 0), FewShotCell("digits", "irdp", 8.0, 0)
    untrained = rehearse(pools, replace(QUICK, warm_rounds=0), cell)
    outcome = rehearse(pools, QUICK, cell, start)
    trained = outcome.evaluation.natural.accuracy
    assert trained > 0.6
    assert trained > untrained.evaluation.natural.accuracy
    saved = FewShotModel(outcome.settings, outcome.theta, {"seed": 0}).save(tmp_path / "model")
    model = FewShotModel.load(saved)
    assert np.array_equal(model.theta, outcome.theta)
    test = pools.test.pool
    names = np.array(["zero", "one", "two"])
    examples = np.concatenate([np.flatnonzero(test.labels == c)[:10] for c in range(3)])
    few = examples.reshape(3, 10)[:, :5].ravel()
    classifier = model.adapt(test.inputs[few], names[test.labels[few]])
    right = classifier.predict(test.inputs[examples]) == names[test.labels[examples]]
    assert right.mean() > 0.7
    (saved / "model.safetensors").write_bytes(b"other")
    with pytest.raises(VerificationError):
        FewShotModel.load(saved)


def test_adapting_refuses_what_it_cannot_use() -> None:
    settings = settings_for("none", 1.0, dict(QUICK.base), 100)
    theta = np.zeros(_size(settings), np.float32)
    model, images = FewShotModel(settings, theta), np.zeros((4, 3, 8, 8))
    with pytest.raises(DataError, match="2 to 5 classes"):
        model.adapt(images, np.zeros(4))
    with pytest.raises(DataError, match="one label"):
        model.adapt(images, np.arange(3))
    with pytest.raises(DataError, match="NaN"):
        model.adapt(images * np.nan, np.array([0, 0, 1, 1]))
    with pytest.raises(DataError, match="shape"):
        model.adapt(np.zeros((4, 8, 8)), np.array([0, 0, 1, 1]))
    with pytest.raises(DataError, match="finite"):
        FewShotModel(settings, theta[:-1])


def _size(settings: object) -> int:
    from isonomy.common.agreements.few_shot_settings import FewShotSettings
    from isonomy.common.few_shot.learning.models import Network

    assert isinstance(settings, FewShotSettings)
    return Network.of(settings).size


@pytest.mark.parametrize("name", ["dp_sgd", "l_d", "sc_reptile"])
def test_planned_noise_lets_worst_case_accounts_last_exactly(name: str) -> None:
    """u uses, each at full price, cost at most ε, and more than nine tenths of it."""
    settings = settings_for(name, 4.0, dict(RECIPES["omniglot"].base), 6060)
    uses = planned_uses(settings, 6060)
    support = settings.inner_steps / settings.real("inner_noise") ** 2
    query = 1 / settings.real("query_noise") ** 2
    shares = 0.0
    if settings.fair:
        query += 1 / settings.real("dual_noise") ** 2
        shares = 1 / settings.real("share_noise") ** 2
    worst = math.floor(1e12 * (uses * max(support, query) + shares))
    assert epsilon_of(worst, 1e-5) <= 4.0
    assert epsilon_of(worst, 1e-5) > 3.6


def test_individual_accounts_have_the_same_noise_and_room_for_longer_rows() -> None:
    base = dict(RECIPES["omniglot"].base)
    for plain, paced in (("dp_sgd", "irdp"), ("l_d", "pf_ld")):
        first, second = (settings_for(name, 4.0, base, 6060) for name in (plain, paced))
        for kind in ("inner", "query"):
            noise = [s.real(f"{kind}_noise") * s.real(f"{kind}_norm") for s in (first, second)]
            assert noise[1] == pytest.approx(noise[0], rel=1e-5)
            assert second.real(f"{kind}_norm") == ROOM * first.real(f"{kind}_norm")
    with pytest.raises(ConfigError, match="unknown method"):
        settings_for("best", 4.0, base, 6060)
    with pytest.raises(ConfigError, match="no budget"):
        settings_for("irdp", 0.0, base, 6060)


def test_cells_are_resumed_and_drawn(tmp_path: Path) -> None:
    listed = cells("digits", ("none", "dp_sgd", "pf_ld"), (2.0, 8.0), (0,))
    assert listed[0].key == "digits/none/0/0"
    assert len(listed) == 5
    assert run_cells(listed[:2], Rehearsals(QUICK, None), tmp_path) == (2, 0, [])
    assert run_cells(listed, Rehearsals(QUICK, None), tmp_path) == (3, 2, [])
    lines = summarise(read_records(tmp_path))
    assert list(lines["method"]) == ["none", "dp_sgd", "pf_ld", "dp_sgd", "pf_ld"]
    picture = plot(lines, "digits").svg()
    assert picture.startswith("<svg")
    assert all(VARIANTS[m].label in picture for m in ("none", "dp_sgd", "pf_ld"))


def test_the_wide_experiment_has_its_own_budget() -> None:
    dataset, listed = experiment("wide", 3)
    assert {cell.epsilon for cell in listed} == {0.0, 10.0}
    assert {cell.seed for cell in listed} == {20, 21, 22}  # lower ones chose the settings
    assert len(listed) == 15
    assert RECIPES[dataset].base["width"] == 64
    assert {cell.epsilon for cell in experiment("wide", 1, (4.0,))[1]} == {0.0, 4.0}


def test_methods_of_an_experiment_meet_the_same_noise_and_rehearsals_fresh_noise() -> None:
    cell = FewShotCell("digits", "pf_ld", 8.0, 0)
    short = replace(QUICK, base={**QUICK.base, "rounds": 1}, warm_rounds=0, test_tasks=2)
    same = [Rehearsals(short, None, same_noise=True).outcome(cell).theta for _ in range(2)]
    assert np.array_equal(*same)
    assert not np.array_equal(same[0], Rehearsals(short, None).outcome(cell).theta)


def test_standard_errors_are_over_seeds() -> None:
    cell = {"dataset": "digits", "method": "irdp", "epsilon": 2.0}
    records = [
        {"status": "ok", "cell": {**cell, "seed": seed},
         "balanced": {"accuracy": accuracy, "gf": 0.5, "eo": -0.1}}
        for seed, accuracy in enumerate((0.5, 0.7))
    ]  # fmt: skip
    ((_, line),) = summarise(records).iterrows()
    assert line["accuracy"] == pytest.approx(0.6)
    assert line["accuracy_se"] == pytest.approx(0.1)  # √0.02/√2


def test_the_command_rehearses_saves_and_adapts(tmp_path: Path) -> None:
    runner, model = CliRunner(), tmp_path / "model"
    done = runner.invoke(
        app,
        ["few-shot", "rehearse", "--method", "pf_ld", "--rounds", "2", "--warm-rounds", "5",
         "--out", str(tmp_path / "out"), "--save", str(model), "--json"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout.splitlines()[0])["records"][0]
    assert record["cell"]["method"] == "pf_ld"
    assert 0 < record["spent"] <= 1
    assert (tmp_path / "out" / "digits.svg").is_file()
    test = digits_pools(0).test.pool
    rows = np.concatenate([np.flatnonzero(test.labels == c)[:5] for c in range(3)])
    task = tmp_path / "task.npz"
    np.savez(task, inputs=test.inputs[rows], labels=test.labels[rows], queries=test.inputs[:4])
    done = runner.invoke(app, ["few-shot", "adapt", "--model", str(model), "--task", str(task)])
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) == 4


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["rehearse", "--method", "best"], "unknown method"),
        (["rehearse", "--dataset", "cats"], "unknown data set"),
        (["rehearse", "--epsilon", "0"], "without a budget"),
        (["rehearse", "--epsilon", "much"], "takes numbers"),
        (["experiment", "table9", "--out", "x"], "unknown experiment"),
        (["adapt", "--model", "nowhere", "--task", "nothing.npz"], "does not exist"),
    ],
)
def test_the_command_says_what_is_wrong(
    arguments: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["few-shot", *arguments])
    assert isinstance(done.exception, ConfigError | DataError)
    assert text in str(done.exception)


def test_a_folder_of_your_own_is_rehearsed(tmp_path: Path) -> None:
    pools = digits_pools(1)
    save_pool(pools.company, tmp_path / "company.npz")
    save_pool(pools.regulator, tmp_path / "regulator.npz")
    save_pool(pools.test.pool, tmp_path / "test.npz")
    done = CliRunner().invoke(
        app,
        ["few-shot", "rehearse", "--dataset", str(tmp_path), "--method", "irdp", "--rounds", "1",
         "--warm-rounds", "1", "--ways", "4", "--shots", "2", "--queries", "2", "--json"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout.splitlines()[0])["records"][0]
    assert record["settings"]["ways"] == 4
    assert record["balanced"] == record["natural"]  # nothing to recolour: one reading
    (tmp_path / "test.npz").unlink()
    done = CliRunner().invoke(app, ["few-shot", "rehearse", "--dataset", str(tmp_path)])
    assert isinstance(done.exception, DataError)
    assert "test.npz does not exist" in str(done.exception)


def test_colour_predicts_the_half_and_the_swap_is_the_other_colour() -> None:
    pools = digits_pools(3)
    assert pools.company.groups is None
    pool = pools.regulator
    assert pool.groups is not None
    assert pool.positive is not None
    halves = pool.positive[pool.labels]
    assert pool.groups[halves].mean() == pytest.approx(0.9, abs=0.05)
    assert pool.groups[~halves].mean() == pytest.approx(0.1, abs=0.05)
    test = pools.test
    grey = np.ptp(test.pool.inputs, axis=1).max(axis=(1, 2)) == 0  # three equal channels
    assert test.pool.groups is not None
    assert np.array_equal(grey, test.pool.groups == 0)
    swapped = np.ptp(test.swapped, axis=1).max(axis=(1, 2)) == 0
    assert np.array_equal(swapped, ~grey)
    assert np.allclose(test.swapped.max(axis=1), test.pool.inputs.max(axis=1))  # same drawing


@pytest.mark.skipif(not (DATA / "omniglot").is_dir(), reason=f"no Omniglot in {DATA}")
def test_omniglot_classes_are_apart_and_reserved_ones_too() -> None:
    reported = load("omniglot", 0, DATA)
    assert len(reported.company) == 4 * 150 * 20
    assert len(reported.regulator) == 303 * 20
    page = reported.test.pool.inputs[reported.test.pool.groups == 0]
    assert np.median(page) == 1.0  # dark strokes on a bright page
    RegulatorLearner(
        settings_for("pf_ld", 2.0, dict(RECIPES["omniglot"].base), 6060), reported.regulator
    )


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="data-dir"):
        load("mnist", 0)
    with pytest.raises(DataError, match="does not exist"):
        load("omniglot", 0, tmp_path)


def test_differences_are_paired_by_seed(tmp_path: Path) -> None:
    def record(method: str, seed: int, accuracy: float, gf: float, epsilon: float = 2.0) -> Any:
        figures = {"accuracy": accuracy, "gf": gf, "eo": -0.5}
        cell = {"dataset": "digits", "method": method, "epsilon": epsilon, "seed": seed}
        return {"status": "ok", "cell": cell, "balanced": figures, "natural": figures}

    records = [
        record("irdp", 0, 0.9, 0.5), record("irdp", 1, 0.5, 0.9),
        record("dp_sgd", 0, 0.8, 0.4), record("dp_sgd", 1, 0.41, 1.2),
        record("dp_sgd", 2, 0.1, 0.1),  # without a partner
    ]  # fmt: skip
    head = "| 2 | IRDP − DP-SGD | 2 |"
    # 0.095 ± 12.706·0.005, the t-quantile of one degree of freedom
    assert differences(records).splitlines()[2] == (
        f"{head} +0.095 ± 0.064, better | -0.100 ± 0.000, better | +0.000 ± 0.000, not told apart |"
    )
    more = [
        record(method, seed, accuracy, 1.0, 4.0)
        for seed in (0, 1)
        for method, accuracy in (("irdp", 0.5), ("dp_sgd", 0.6 + 0.01 * seed))
    ]
    lines = differences([*records, *more]).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| 2", "| 4", "| all"]
    assert "| 4 | IRDP − DP-SGD | 2 | -0.105 ± 0.064, worse |" in lines[3]
    assert "| all | IRDP − DP-SGD | 2 | -0.005 ± 0.064, not told apart |" in lines[4]
    write([*records, *more], tmp_path)
    assert "no difference" in (tmp_path / "digits-differences.svg").read_text()


def test_alone_leaves_the_regulators_share_out() -> None:
    pools = digits_pools(0)
    settings = settings_for("alone", 8.0, dict(QUICK.base), len(pools.regulator))
    regulator = RegulatorLearner(settings, pools.regulator)
    part = regulator.contribute(0, regulator.network.initial(0))
    assert not part.values.any()
    assert not part.spent.any()


def test_where_all_of_theta_adapts_the_rate_is_half() -> None:
    usual, half = (settings_for(name, 4.0, {"width": 8}, 6060) for name in ("dp_sgd", "sc_reptile"))
    assert half.inner_part == "all"
    assert half.inner_rate * 2 == usual.inner_rate


def test_figures_of_an_own_folder_stay_in_out_and_claim_no_colours(tmp_path: Path) -> None:
    figures = {"accuracy": 0.5, "gf": 1.0, "eo": 0.0}
    cell = {"dataset": str(tmp_path / "mine"), "method": "pf_ld", "epsilon": 8.0, "seed": 0}
    record = {"key": "k", "status": "ok", "cell": cell, "balanced": figures, "natural": figures}
    files = write([record], tmp_path / "out")
    assert {path.parent for path in files} == {tmp_path / "out"}
    assert "colours" not in (tmp_path / "out" / "mine.svg").read_text()
    assert "1 seed," in (tmp_path / "out" / "mine.svg").read_text()
