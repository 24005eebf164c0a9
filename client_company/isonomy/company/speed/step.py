"""`isonomy bench step`: what a private and fair training step costs (PF-LD's Table 1).

| column | a step is |
|---|---|
| plain (N) | forward, loss, backward, Adam |
| F-LD | the same plus the constraint's gradient, with known groups |
| Opacus (P) | DP-SGD: the loss itself private, per-sample gradients and all |
| PF-LD | the plain step plus one private constraint gradient, local oracle |
| PF-LD, encrypted | the same through the encrypted exchange, both halves in this process |
| PF-LD, pads | the same by pads, both halves in this process; keys were transferred before |
| processes | the same by pads through server, relay and daemon as processes, TLS on loopback |

The steps are the trainer's own. They take turns on one core, so that a machine that slows down
slows all of them; the figure is the quicker tenth of the turns, what a step takes when nothing
else wants the processor. Figures are processor time, but for the step through processes and the
local one that takes turns with it (`local_wall_ms`), which are what a clock shows. Rehearsals keep
their ledger in memory where they can, and so do all parties of that federation: disks add one fsync
at the regulator and two at the company to each PF-LD step.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from isonomy.common.base.errors import DataError
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.demo.layout import DemoSettings
from isonomy.company.demo.population import Population
from isonomy.company.fair.inputs.columns import ColumnCoder
from isonomy.company.gradient.pf_ld.f_ld import FLD
from isonomy.company.gradient.pf_ld.pf_ld import PFLD
from isonomy.company.gradient.run.strategy import Strategy
from isonomy.company.gradient.training.checks import prepare_run
from isonomy.company.gradient.training.trainer import Trainer
from isonomy.company.rehearsal.datasets import lending, load
from isonomy.company.rehearsal.strategies import rehearsal_oracle
from isonomy.company.speed._relay import federated_oracle
from isonomy.company.speed._step_memory import MEMORY_CASES, measure_memory

LAYERS, BATCHES, WIDTH = (2, 10), (16, 64, 256), 100
TURNS, ENCRYPTED_TURNS, CHUNKS = 120, 12, 4
WARM_UP_BATCH = 256
QUICK = 0.1  # the quicker tenth of the turns
EPSILON, DELTA = 20.0, 1e-5  # a budget for the turns; noise takes as long at any level

Step = Callable[[], None]


@dataclass(frozen=True)
class Sample:
    """The people that steps are measured on."""

    inputs: Tensor  # (n, columns)
    target: Tensor  # (n,)
    ids: list[str]
    attribute: str
    values: list[str | None]
    groups: tuple[str, ...]

    @classmethod
    def of(cls, data_dir: Path | None, people: int | None = None) -> Sample:
        """Bank, with its age groups; without a folder, synthetic lending data."""
        data = lending(people or 45_211) if data_dir is None else load("bank", data_dir, "age")
        attribute = next(iter(data.groups))
        count = min(people or len(data.target), len(data.target))
        coded = ColumnCoder.fit(data.features).code(data.features)[:count]
        return cls(
            torch.tensor(coded, dtype=torch.float32),
            torch.tensor(np.asarray(data.target)[:count], dtype=torch.int64),
            [str(number) for number in range(count)],
            attribute,
            list(data.attributes[attribute])[:count],
            tuple(data.groups[attribute]),
        )

    @classmethod
    def of_population(cls, population: Population) -> Sample:
        """The people of a demonstration's plan, in its order."""
        data, attribute, ids = population.data, population.attribute, population.training_ids
        number = {person: index for index, person in enumerate(data.ids)}
        rows = [number[person] for person in ids]
        values = data.attributes[attribute]
        return cls(
            torch.tensor(ColumnCoder.fit(data.features).code(data.features)[rows]).float(),
            torch.tensor(np.asarray(data.target)[rows], dtype=torch.int64),
            ids,
            attribute,
            [values[row] for row in rows],
            population.labels,
        )


def network(inputs: int, layers: int, width: int = WIDTH) -> nn.Module:
    """The paper's: `layers` hidden layers of 100."""
    sizes = [inputs, *[width] * layers]
    hidden = [
        part for wide, narrow in pairwise(sizes) for part in (nn.Linear(wide, narrow), nn.ReLU())
    ]
    return nn.Sequential(*hidden, nn.Linear(width, 2))


def measure_row(
    sample: Sample,
    layers: int,
    batch: int,
    *,
    turns: int = TURNS,
    encrypted_turns: int = ENCRYPTED_TURNS,
) -> dict[str, Any]:
    """All six kinds of step for one network and batch size, in turns."""
    torch.manual_seed(0)
    model = network(sample.inputs.shape[1], layers)
    _warm_up(model, sample)
    people = (sample.ids, {sample.attribute: sample.values}, {sample.attribute: sample.groups})
    oracle_of = partial(rehearsal_oracle, *people, epsilon=EPSILON, delta=DELTA)
    with (
        oracle_of() as local,
        oracle_of(encrypted=True) as encrypted,
        oracle_of(pads=True) as pads,
    ):
        rounds = -(-turns // CHUNKS) + 2
        steps: dict[str, Step] = {
            "plain": _step(sample, model, None, local, batch, rounds),
            "f_ld": _step(sample, model, FLD(), local, batch, rounds),
            "opacus": _opacus_step(sample, model, batch),
            "pf_ld": _step(sample, model, PFLD(), local, batch, rounds),
            "pf_ld_encrypted": _step(sample, model, PFLD(), encrypted, batch, rounds),
            "pf_ld_pads": _step(sample, model, PFLD(), pads, batch, rounds),
        }
        times = _in_turns(steps, turns, {"pf_ld_encrypted": encrypted_turns})
        _check_asked((local, turns), (encrypted, encrypted_turns), (pads, turns))
    quick = {f"{name}_ms": float(np.quantile(turn, QUICK)) for name, turn in times.items()}
    return {
        "layers": layers,
        "batch": batch,
        **quick,
        "pf_ld_over_plain": quick["pf_ld_ms"] / quick["plain_ms"],
        "pf_ld_pads_in_process": quick["pf_ld_pads_ms"] / quick["pf_ld_ms"],
    }


def measure_processes(layers: int, batch: int, *, turns: int = TURNS) -> dict[str, float]:
    """A step by pads through a federation, and a local one, in turns by the clock."""
    settings = DemoSettings(epsilon=f"{EPSILON:g}", strategy="pf_ld")
    with federated_oracle(settings) as (population, remote):
        sample = Sample.of_population(population)
        torch.manual_seed(0)
        model = network(sample.inputs.shape[1], layers)
        _warm_up(model, sample)
        people = (sample.ids, {sample.attribute: sample.values}, {sample.attribute: sample.groups})
        with rehearsal_oracle(*people, epsilon=EPSILON, delta=DELTA) as local:
            rounds = -(-turns // CHUNKS) + 2
            steps = {
                name: _step(sample, model, PFLD(), oracle, batch, rounds)
                for name, oracle in (("local", local), ("pads", remote))
            }
            times = _in_turns(steps, turns, {}, clock=time.perf_counter)
            _check_asked((local, turns), (remote, turns))
    local_ms, pads_ms = (float(np.quantile(times[name], QUICK)) for name in ("local", "pads"))
    return {
        "local_wall_ms": local_ms,
        "pf_ld_processes_ms": pads_ms,
        "pf_ld_pads_over_local": pads_ms / local_ms,
    }


def _check_asked(*least: tuple[GroupOracle, int]) -> None:
    """Raise if λ was 0 in some steps: they asked nothing, so there was nothing to measure."""
    if any(oracle.position[0] < queries for oracle, queries in least):
        raise DataError("the constraint was met already, so PF-LD steps asked nothing")


def _warm_up(model: nn.Module, sample: Sample) -> None:
    """Train a little: an untrained network decides alike for all, and fairness asks nothing."""
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    order = torch.randperm(len(sample.target), generator=torch.Generator().manual_seed(1))
    for rows in torch.split(order, WARM_UP_BATCH):
        loss = nn.functional.cross_entropy(model(sample.inputs[rows]), sample.target[rows])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()


def _in_turns(
    steps: dict[str, Step],
    turns: int,
    fewer: dict[str, int],
    clock: Callable[[], float] = time.process_time,
) -> dict[str, list[float]]:
    """Milliseconds of each step; the first rounds over the chunks warm up and do not count."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(-CHUNKS, turns):
        for name, step in steps.items():
            if turn >= fewer.get(name, turns):
                continue
            start = clock()
            step()
            if turn >= 0:
                times[name].append((clock() - start) * 1e3)
    return times


def _step(
    sample: Sample,
    model: nn.Module,
    strategy: Strategy | None,
    oracle: GroupOracle,
    batch: int,
    rounds: int,
) -> Step:
    """A step of the trainer on its next chunk, with or without a constraint."""
    twin = copy.deepcopy(model)
    trainer = Trainer(twin, strategy or PFLD(), oracle, rounds=rounds, chunk_size=batch)
    generator = torch.Generator().manual_seed(0)
    run = prepare_run(trainer, sample.inputs, sample.target, sample.ids, generator)
    optimiser = torch.optim.Adam(twin.parameters(), lr=1e-3)
    if strategy is not None:
        strategy.prepare(run)
    chunks = cycle(run.chunks[:CHUNKS])

    def step() -> None:
        chunk = next(chunks)
        constraint = None if strategy is None else trainer._constraint(run, chunk)
        trainer._step(run, optimiser, chunk.rows, constraint)

    return step


def _opacus_step(sample: Sample, model: nn.Module, batch: int) -> Step:
    """DP-SGD as Opacus does it: hooks for per-sample gradients, clipping, noise, Adam."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about its own imports
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer
    twin = GradSampleModule(copy.deepcopy(model))
    optimiser = DPOptimizer(
        torch.optim.Adam(twin.parameters(), lr=1e-3),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=batch,
    )
    order = torch.randperm(len(sample.target), generator=torch.Generator().manual_seed(0))
    chunks = cycle(torch.split(order[: CHUNKS * batch], batch))

    def step() -> None:
        rows = next(chunks)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch about Opacus' hooks
            loss = nn.functional.cross_entropy(twin(sample.inputs[rows]), sample.target[rows])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()

    return step


# --- The command -------------------------------------------------------------------------------


def measure(announce: Callable[[str], Any], data_dir: Path | None) -> dict[str, Any]:
    """The whole benchmark as the JSON that `--json` prints."""
    announce("reading the data")
    sample, rows, before = Sample.of(data_dir), [], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            for layers in LAYERS:
                for batch in BATCHES:
                    announce(f"{layers} hidden layers, batch {batch}")
                    rows.append(measure_row(sample, layers, batch))
                announce(f"{layers} hidden layers, batch {batch}, through processes")
                rows[-1] |= measure_processes(layers, batch)
    finally:
        torch.set_num_threads(before)
    memory = []
    for case in MEMORY_CASES:
        announce(f"memory: {case.parameters:,} parameters, batch {case.batch}")
        memory.append(measure_memory(case))
    return {"rows": rows, "memory": memory}


def tables(result: dict[str, Any]) -> tuple[Table, Table, Table]:
    """Milliseconds of the steps, of those through processes, and megabytes of the gradients."""
    names = ("layers", "batch", "plain", "F-LD", "Opacus", "PF-LD", "encrypted", "pads")
    ratios = ("PF-LD / plain", "pads / PF-LD")
    steps = Table(*names, *ratios, title="Milliseconds per step", title_justify="left")
    clock = Table("layers", "local", "processes", "ratio", title="By the clock, batch 256")
    for row in result["rows"]:
        layers, batch, *times = (f"{value:.4g}" for value in row.values())
        cut = len(names) + len(ratios) - 2
        steps.add_row(layers, batch, *times[:cut])
        if times[cut:]:
            clock.add_row(layers, *times[cut:])
    headings = ("parameters", "batch", "private MB", "rows MB")
    memory = Table(*headings, title="Memory of a gradient query")
    for row in result["memory"]:
        rows_mb = "–" if row["per_sample_mb"] is None else f"{row['per_sample_mb']:.0f}"
        memory.add_row(
            f"{row['parameters']:,}", str(row["batch"]), f"{row['private_mb']:.1f}", rows_mb
        )
    return steps, clock, memory
