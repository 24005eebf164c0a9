"""The list of experiments, the cells it unfolds to, and the file that finished ones live in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmark_kit import cell, deadly_work, line, quick_work
from few_shot_kit import SeededBytes

from isonomy.common.base.errors import ConfigError, DataError, TransportError
from isonomy.common.sums import noise_and_budget
from isonomy.company.cli.options import spread
from isonomy.company.compare.benchmark import cells as cells_module
from isonomy.company.compare.benchmark import runner
from isonomy.company.compare.benchmark.cells import BUILT_IN, Cell, built_in, parse, unfold
from isonomy.company.compare.benchmark.runner import check_data, outcome, run
from isonomy.company.compare.benchmark.store import FILE, Store, read_records
from isonomy.company.rehearsal.datasets.lending import lending

LIST = """
[[experiment]]
datasets = ["adult/sex", "bank"]
strategies = ["unconstrained", "tilt"]
epsilons = [0.5, 1.0]
seeds = 2
"""


# --- Lists -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_lists_that_come_along_are_sound(name: str) -> None:
    assert unfold(built_in(name))


def test_every_cell_of_the_bar_is_in_the_night() -> None:
    """So a night goes on from a finished bar instead of running it again."""
    night = {own.key for own in unfold(built_in("full"))}
    assert {own.key for own in unfold(built_in("bar"))} <= night


def test_seeds_are_outermost_and_what_is_not_private_runs_once() -> None:
    found = unfold(parse(LIST, "here"))
    assert [own.seed for own in found] == [0] * 6 + [1] * 6
    assert [own.epsilon for own in found[:3]] == [None, 0.5, 1.0]
    assert {own.attribute for own in found if own.dataset == "bank"} == {"age"}


def test_options_are_swept_and_cells_come_once() -> None:
    swept = LIST.replace('["unconstrained", "tilt"]', '["pf_ld"]').replace("seeds = 2", "seeds = 1")
    text = swept + "[experiment.options]\nprimal_norm = [1, 10]\nrounds = 3\n"
    found = unfold(parse(text + text, "here"))
    assert len(found) == 2 * 2 * 2
    assert {dict(own.options)["primal_norm"] for own in found} == {1, 10}
    assert all(own.settings().options["rounds"] == 3 for own in found)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"tilt"', '"tilted"', "unknown strategy 'tilted'; there are tilt"),
        ('"tilt"', '"dp_oracle"', "dp_oracle is for equalized_odds"),
        ("seeds = 2", 'notions = ["score_parity"]', "a benchmark compares decisions"),
        ("adult/sex", "adult/height", "no attribute 'height'"),
        ("adult/sex", "adults", "unknown data set 'adults'"),
        ("seeds = 2", "seeds = 0", "seeds"),
        ("seeds = 2", "seed = 2", "seed"),
        ("[0.5, 1.0]", "[0.0]", "epsilon must be a number above 0"),
        ("[[experiment]]", "[[experiments]]", "[[experiment]] blocks"),
        ("seeds = 2", "seeds =", "not TOML"),
    ],
)
def test_a_wrong_list_is_refused_before_anything_runs(old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        unfold(parse(LIST.replace(old, new), "here"))
    assert said in str(refused.value)


def test_the_key_follows_settings_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [cell(), cell(seed=1), cell(epsilon=None), cell(options=(("rounds", 3),))]
    assert len({own.key for own in keys}) == 4
    before = cell().key
    monkeypatch.setattr(cells_module, "version", lambda: "99")
    assert cell().key != before


# --- The store ---------------------------------------------------------------------------------


def test_a_half_written_line_is_cut_off_and_the_rest_kept(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.add(line(cell()))
        store.add(line(cell(seed=1)))
    path = tmp_path / FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with Store(tmp_path) as store:
        assert store.finished(cell().key)
        assert not store.finished(cell(seed=1).key)
        store.add(line(cell(seed=1)))
    assert path.read_bytes() == whole


def test_damage_in_the_middle_is_refused_by_line(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.add(line(cell()))
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes() + b'{"key": 1}\n' + path.read_bytes())
    with pytest.raises(ConfigError, match="line 2 of"):
        Store(tmp_path)
    with pytest.raises(ConfigError, match="line 2 of"):
        read_records(tmp_path)


def test_a_failure_is_no_result_and_the_last_line_counts(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.add({**line(cell()), "status": "failed"})
        assert not store.finished(cell().key)
        store.add(line(cell(), test_error=0.1))
        assert store.finished(cell().key)
    (only,) = read_records(tmp_path)
    assert only["test_error"] == 0.1


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    with Store(tmp_path), pytest.raises(ConfigError, match="another benchmark"):
        Store(tmp_path)
    Store(tmp_path).__exit__(None, None, None)


def test_nothing_that_is_not_a_number_is_stored(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        with pytest.raises(ValueError):
            store.add(line(cell(), test_error=float("nan")))
        assert store.path.read_bytes() == b""


def test_seeds_can_be_cut_and_the_rest_added_later() -> None:
    whole, cut = unfold(built_in("full")), unfold(built_in("full"), 2)
    assert cut == [own for own in whole if own.seed < 2]
    assert unfold(built_in("full"), 100) == whole


# --- Running -----------------------------------------------------------------------------------


def test_a_killed_worker_loses_only_its_cell_and_the_rest_is_not_run_again(tmp_path: Path) -> None:
    todo = [cell(seed=seed) for seed in range(3)]
    todo.append(cell(seed=3, strategy="zafar", epsilon=None))
    with (
        Store(tmp_path) as store,
        spread(2),
        pytest.raises(TransportError, match=r"with lending.* seed 1 under way"),
    ):
        run(todo, store, data_dir=tmp_path, work=deadly_work)
    with Store(tmp_path) as store, spread(2):
        tally = run(todo, store, data_dir=tmp_path, work=quick_work)
    assert (tally.finished, tally.ran) == (2, 1)
    assert [reason for _, reason in tally.failed] == ["no"]
    ran = sorted((tmp_path / "trace").read_text().splitlines())
    assert ran == ["0 1", "1 1", "2 1", "3 1", "3 1"]  # what failed again; one numeric thread each


@pytest.mark.parametrize("strategy", ["zafar", "unconstrained"])
def test_what_is_not_private_can_be_stored_too(strategy: str, tmp_path: Path) -> None:
    measured = outcome(cell(strategy=strategy, epsilon=None), None)
    assert measured["status"] == "ok"
    with Store(tmp_path) as store:
        store.add(measured)  # an infinite ε has no place in JSON, and means: no budget
        assert store.finished(cell(strategy=strategy, epsilon=None).key)


def test_a_library_that_fails_costs_its_cell_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("within a library")

    monkeypatch.setattr("isonomy.company.compare.benchmark.runner.run_seed", fails)
    line_of_it = outcome(cell(), None)
    assert (line_of_it["status"], line_of_it["reason"]) == (
        "failed",
        "ZeroDivisionError: within a library",
    )


def test_cells_that_share_their_base_models_measure_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cell by cell in a fresh worker, and in one that had other cells of the place before."""
    people = lending(people=1_500, seed=0)
    monkeypatch.setattr(runner, "_dataset", lambda *_: people)
    monkeypatch.setattr(noise_and_budget, "SystemNoise", lambda: SeededBytes(5))
    places = [("logistic", 0), ("gbdt", 0), ("logistic", 1)]
    todo = [
        cell(notion=notion, base=base, seed=seed)
        for notion in ("demographic_parity", "equalized_odds")
        for base, seed in places
    ]

    def measured(own: Cell) -> dict[str, Any]:
        clocks = ("seconds", "started", "wall_seconds")
        return {name: value for name, value in outcome(own, None).items() if name not in clocks}

    def fresh(own: Cell) -> dict[str, Any]:
        runner._fits.cache_clear()
        return measured(own)

    alone = [fresh(own) for own in todo]
    runner._fits.cache_clear()
    together = [measured(own) for own in todo]
    assert runner._fits.cache_info().misses == len(places)  # the second notion fits nothing again
    assert together == alone
    assert {own["status"] for own in alone} == {"ok"}


def test_missing_data_are_named_before_the_night_begins(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"adult_train\.csv\.gz"):
        check_data([cell(dataset="adult")], tmp_path)
