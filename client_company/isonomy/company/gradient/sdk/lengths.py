"""How long a company's own gradients and values are: what clipping bounds are chosen from.

    lengths = own_lengths(model, "demographic_parity", inputs, target)["selected"]
    primal_tradeoff(lengths.gradients, lam, sigma=…, bound=…, …).plot()    Eq. (12)
    dual_tradeoff(lengths.values, sigma=…, smallest_group=…).plot()        Eq. (13)

No attribute is involved, so nothing is asked and nothing is spent. As in the paper, and unlike in
a run (primal.py), gradients are not centred.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from isonomy.company.gradient.per_sample.ghost import ChunkGradients
from isonomy.company.gradient.run.notions import Event, Notion, checked_events, notion_of
from isonomy.company.gradient.run.strategy import logits_of
from isonomy.company.gradient.training.checks import check_model, checked_data

_ROWS = 2048  # at a time


@dataclass(frozen=True)
class Lengths:
    """Of one event, for every row that belongs to it."""

    gradients: NDArray[np.float64]  # |∇h|
    values: NDArray[np.float64]  # |h|


def own_lengths(
    model: nn.Module, notion: str | Notion, inputs: Any, target: Any
) -> dict[str, Lengths]:
    """Lengths by the event's name, for the model as it is now."""
    check_model(model)
    x, y, classes = checked_data(inputs, target)
    first = next(model.parameters())
    if x.dtype.is_floating_point:
        x = x.to(first.dtype)
    model.eval()
    return {
        event.name: _of(model, event, x[event.members(y)], y[event.members(y)], classes)
        for event in checked_events(notion_of(notion), y, classes)
    }


def _of(model: nn.Module, event: Event, x: Tensor, y: Tensor, classes: int) -> Lengths:
    device = next(model.parameters()).device
    gradients, values = [], []
    for rows, labels in zip(torch.split(x, _ROWS), torch.split(y, _ROWS), strict=True):

        def scalar(outputs: Tensor, target: Tensor = labels) -> Tensor:
            return event.h(logits_of(outputs, classes), target.to(device))

        gradients.append(ChunkGradients.of(model, scalar, rows.to(device)).lengths)
        with torch.no_grad():
            values.append(scalar(model(rows.to(device))).abs().cpu().numpy())
    return Lengths(
        np.concatenate(gradients).astype(np.float64), np.concatenate(values).astype(np.float64)
    )
