"""`isonomy bench step`: its parts run and count right; its numbers are shown, never asserted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from isonomy.company.cli.main import app
from isonomy.company.speed import step as bench
from isonomy.company.speed._step_memory import MEMORY_CASES, MemoryCase, measure_memory

ROW = [
    "layers",
    "batch",
    "plain_ms",
    "f_ld_ms",
    "opacus_ms",
    "pf_ld_ms",
    "pf_ld_encrypted_ms",
    "pf_ld_pads_ms",
    "pf_ld_over_plain",
    "pf_ld_pads_in_process",
]


@pytest.fixture(scope="module")
def row() -> dict[str, Any]:
    sample = bench.Sample.of(None, people=600)
    return bench.measure_row(sample, 2, 16, turns=4, encrypted_turns=2)


def test_a_row_has_the_fields_of_the_schema(row: dict[str, Any]) -> None:
    assert list(row) == ROW
    assert (row["layers"], row["batch"]) == (2, 16)
    assert all(row[name] > 0 for name in ROW)
    assert row["pf_ld_over_plain"] == pytest.approx(row["pf_ld_ms"] / row["plain_ms"])


def test_steps_take_turns_and_the_first_do_not_count() -> None:
    order: list[str] = []
    steps = {name: lambda name=name: order.append(name) for name in ("a", "b")}
    times = bench._in_turns(steps, 3, {"b": 1})
    assert order[: 2 * bench.CHUNKS] == ["a", "b"] * bench.CHUNKS
    assert order[2 * bench.CHUNKS :] == ["a", "b", "a", "a"]
    assert {name: len(own) for name, own in times.items()} == {"a": 3, "b": 1}


def test_a_private_step_asks_once_and_moves_the_model() -> None:
    """A step that does nothing would be quick."""
    sample = bench.Sample.of(None, people=200)
    torch.manual_seed(0)
    model = bench.network(sample.inputs.shape[1], 2)
    groups = {sample.attribute: sample.groups}
    with bench.rehearsal_oracle(
        sample.ids, {sample.attribute: sample.values}, groups, epsilon=20.0, delta=1e-5
    ) as oracle:
        strategy = bench.PFLD()
        step = bench._step(sample, model, strategy, oracle, 50, 5)
        asked, _ = oracle.position
        step()
        assert oracle.position[0] == asked + 1


def test_the_network_is_the_papers() -> None:
    sizes = [tuple(p.shape) for p in bench.network(49, 10).parameters() if p.ndim == 2]
    assert sizes == [(100, 49), *[(100, 100)] * 9, (2, 100)]


def test_private_memory_is_far_below_that_of_the_rows() -> None:
    case = MemoryCase(300, 128, rows=False)
    found = measure_memory(case)
    assert found["per_sample_mb"] is None
    assert found["private_mb"] < 0.5 * 4 * 128 * case.parameters / 2**20
    assert [each.parameters for each in MEMORY_CASES[:3]] == [10_012, 100_106, 1_002_302]


@pytest.mark.slow
def test_private_memory_does_not_grow_with_the_model() -> None:
    small, large = (measure_memory(MemoryCase(width, 256)) for width in (77, 500))
    rows_mb = 4 * 256 * large["parameters"] / 2**20
    assert large["parameters"] > 25 * small["parameters"]
    assert large["per_sample_mb"] > 0.9 * rows_mb  # b·d numbers are really held there
    assert large["private_mb"] < small["private_mb"] + 0.1 * rows_mb


def test_the_command_prints_one_json_object(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path | None] = []
    clock = ["local_wall_ms", "pf_ld_processes_ms", "pf_ld_pads_over_local"]
    made = dict.fromkeys([*ROW, *clock], 1.0)
    memory = {"parameters": 10, "batch": 2, "private_mb": 1.0, "per_sample_mb": None}

    def measure(announce: object, data_dir: Path | None) -> dict[str, Any]:
        seen.append(data_dir)
        return {"rows": [made], "memory": [memory]}

    monkeypatch.setattr(bench, "measure", measure)
    printed = CliRunner().invoke(app, ["bench", "step", "--json", "--data-dir", "somewhere"])
    printed_fields = json.loads(printed.stdout)
    assert printed_fields.pop("schema") == "isonomy/bench-step/v1"
    assert printed_fields == {"rows": [made], "memory": [memory]}
    assert seen == [Path("somewhere")]
    table = CliRunner().invoke(app, ["bench", "step"])
    assert table.exit_code == 0
    assert "PF-LD" in table.stdout
    assert "By the clock" in table.stdout
