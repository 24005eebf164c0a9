"""Memory of one private gradient: b² and one layer's width, where per-sample rows take b·d.

Each case runs in a process of its own: resident memory at its peak during the query, above what is
resident before it (model, data, oracle, and what a plain step has left).
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from isonomy.common.sums.local import LocalOracle
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.gradient.per_sample.ghost import ChunkGradients
from isonomy.company.gradient.sums.primal import CentredGradients, private_sum
from isonomy.company.speed._memory import reset_peak_mb, status_mb

INPUTS = 49  # as many as Bank's coded columns


@dataclass(frozen=True)
class MemoryCase:
    """A network of two hidden layers, and a chunk. `rows`: measure per-sample rows beside it."""

    width: int
    batch: int
    rows: bool = True

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in _network(self.width, "meta").parameters())


# about 10^4, 10^5 and 10^6 parameters; the last ones hold d and let b grow
MEMORY_CASES = (
    MemoryCase(77, 256),
    MemoryCase(291, 256),
    MemoryCase(975, 256),
    MemoryCase(975, 512, rows=False),
    MemoryCase(975, 1024, rows=False),
)


def measure_memory(case: MemoryCase) -> dict[str, Any]:
    """Peak megabytes of the private gradient, and of per-sample rows of the same chunk."""
    peaks: list[float | None] = []
    for private in (True, False):
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            peak = pool.submit(_peak_mb, case, private) if private or case.rows else None
            peaks.append(None if peak is None else peak.result())
    return {
        "parameters": case.parameters,
        "batch": case.batch,
        "private_mb": peaks[0],
        "per_sample_mb": peaks[1],
    }


def _peak_mb(case: MemoryCase, private: bool) -> float:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = _network(case.width)
    inputs = torch.randn(case.batch, INPUTS)
    groups = [("a", "b")[i % 2] for i in range(case.batch)]
    oracle = LocalOracle.rehearse(
        [str(i) for i in range(case.batch)], {"group": groups}, epsilon=10.0, delta=1e-5
    )
    query = _private if private else _rows
    query(model, inputs[:8], oracle)  # modules, tables and pools are there
    nn.functional.cross_entropy(model(inputs), torch.zeros(case.batch).long()).backward()  # type: ignore[no-untyped-call]
    resident = reset_peak_mb()
    query(model, inputs, oracle)
    return status_mb("VmHWM") - resident


def _private(model: nn.Module, inputs: Tensor, oracle: GroupOracle) -> object:
    grads = ChunkGradients.of(model, _score, inputs, np.arange(len(inputs)))
    return private_sum(
        oracle,
        CentredGradients(grads, None),
        [0.5, -0.5],
        norm=1.0,
        attribute="group",
        noise={"share": 0.01},
        label={"purpose": "memory of a gradient"},
    ).tensors()


def _rows(model: nn.Module, inputs: Tensor, oracle: GroupOracle) -> object:
    """All per-sample gradients at once, as DP-SGD holds them."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def value(weights: dict[str, Tensor], sample: Tensor) -> Tensor:
        outputs: Tensor = functional_call(model, weights, (sample[None],))
        return _score(outputs)[0]

    return vmap(grad(value), in_dims=(None, 0))(parameters, inputs)


def _score(outputs: Tensor) -> Tensor:
    return torch.softmax(outputs, dim=1)[:, 1]


def _network(width: int, device: str = "cpu") -> nn.Module:
    return nn.Sequential(
        nn.Linear(INPUTS, width, device=device),
        nn.ReLU(),
        nn.Linear(width, width, device=device),
        nn.ReLU(),
        nn.Linear(width, 2, device=device),
    )
