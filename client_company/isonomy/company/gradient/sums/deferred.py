"""A constraint gradient that is computed together with the loss's.

An answer of the oracle comes back as weights of per-person gradients (subspace.py), and

    ∇J + Σ_i w_i ∇h_i = ∇(J + Σ_i w_i h_i)

is one backward pass over the outputs that the constraint's own pass has left. So the answer is kept
as weights, and the first loss step on the same rows, with the same parameters, takes both in one
pass. For everything else it is a sequence of tensors like any other, made when first looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, overload

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor, nn

from isonomy.company.gradient.per_sample.ghost import ChunkGradients
from isonomy.company.gradient.sums.primal import CentredGradients

# Layers whose outputs are the same in training and in evaluation. Exact types, and a model of one's
# own may do anything, so whatever is not listed gets a forward pass of its own in the loss step.
_SAME_IN_TRAINING: frozenset[type[nn.Module]] = frozenset(
    {
        nn.Sequential,
        nn.Linear,
        nn.Conv1d,
        nn.Conv2d,
        nn.LayerNorm,
        nn.GroupNorm,
        nn.Flatten,
        nn.Identity,
        nn.ReLU,
        nn.LeakyReLU,
        nn.ELU,
        nn.GELU,
        nn.SiLU,
        nn.Tanh,
        nn.Sigmoid,
        nn.Softplus,
        nn.MaxPool1d,
        nn.MaxPool2d,
        nn.AvgPool1d,
        nn.AvgPool2d,
    }
)


class Pass(NamedTuple):
    """Outputs to make a loss of, and what to back-propagate from them besides it."""

    outputs: Tensor  # with their graph, or (if `grads` stands on a line) a leaf
    weights: Tensor  # (rows,) of the gradients in `grads`
    grads: ChunkGradients

    @property
    def upstream(self) -> Tensor:
        """(rows, classes) what the constraint sends back."""
        sent = self.grads.upstream
        return sent * self.weights.reshape(-1, *[1] * (sent.ndim - 1))


class Deferred(Sequence[Tensor]):
    """Σ_p w_p (g_p − m_p ḡ): one tensor per parameter once somebody looks, weights until then."""

    def __init__(
        self,
        grads: CentredGradients,
        weights: Tensor,
        rows: Tensor,
        length: float | None = None,
    ) -> None:
        """`rows` as the chunk has them; `length` of the sum, if it is known."""
        self._grads, self._weights, self._rows, self._length = grads, weights, rows, length
        self._versions: tuple[int, ...] | None = self._now()

    def plus(self, other: Deferred) -> Deferred | None:
        """The sum, where both weigh the same gradients (answers about several attributes)."""
        if other._grads is not self._grads:
            return None
        return Deferred(self._grads, self._weights + other._weights, self._rows)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, index: int | slice) -> Tensor | Sequence[Tensor]:
        return self._tensors[index]

    def __len__(self) -> int:
        return len(self._grads.inner.parameters)

    @cached_property
    def _tensors(self) -> list[Tensor]:
        return self._grads.combine(self._weights, self._length)

    def take_pass(self, model: nn.Module, rows: Tensor) -> Pass | None:
        """For the loss step on the same rows.

        Once only, because the graph is used up. None where a pass of the loss's own is needed:
        other rows, parameters that have moved since, a model that draws at random in training, or
        weights that cancel so far that single precision is too coarse for them.
        """
        versions, self._versions = self._versions, None
        if rows is not self._rows or versions is None or versions != self._now():
            return None
        inner = self._grads.inner
        if not inner.by_hand and not _same_in_training(model):
            return None
        weights = self._grads.plain_weights(self._weights, self._length)
        if weights is None:
            return None
        weights = weights.to(inner.outputs.dtype)
        if inner.scale is not None and not any(map(_watched, inner.parameters)):
            return Pass(inner.outputs.detach().requires_grad_(), weights, inner)
        return Pass(inner.outputs_again(), weights, inner)

    def _now(self) -> tuple[int, ...]:
        """In-place changes of the parameters so far: after one the graph is stale."""
        return tuple(parameter._version for parameter in self._grads.inner.parameters)


def back_propagate(loss: Tensor, shared: Pass) -> None:
    """The gradients of the loss and of upstream · outputs, added up in the parameters.

    Where the loss, too, sends back along the line that the gradients stand on, they are put
    together from those; else by one backward pass. What the loss has of the parameters besides the
    outputs (a penalty on weights) arrives by itself.
    """
    outputs, _, grads = shared
    if not outputs.is_leaf:
        torch.autograd.backward([loss, outputs], [None, shared.upstream])
        return
    outputs.grad = None
    loss.backward()  # type: ignore[no-untyped-call]
    both = shared.upstream if outputs.grad is None else shared.upstream + outputs.grad
    made = grads.pull_back(both)
    if made is None:
        torch.autograd.backward([grads.outputs_again()], [both])
        return
    for parameter, more in zip(grads.parameters, made, strict=True):
        parameter.grad = more if parameter.grad is None else parameter.grad + more


class LineStep(NamedTuple):
    """The mean cross-entropy of two classes over a shared pass, and how to descend it.

    With x the difference of the logits the loss is ln(1 + eˣ) − y·x, and what it sends back along
    the line is σ(x) − y: in closed form and in numpy, because for a small network autograd's
    records of these two lines take as long as its products.
    """

    loss: float
    slope: Tensor  # (rows,) along the line, for the mean
    shared: Pass

    @classmethod
    def of(cls, shared: Pass, target: Tensor) -> LineStep | None:
        """None if the pass is not one along the line of two classes."""
        if shared.grads.scale is None or not shared.outputs.is_leaf:
            return None
        outputs, own = shared.outputs.detach().cpu().numpy(), target.cpu().numpy()
        two = outputs.ndim == 2 and outputs.shape[1] == 2
        x = outputs[:, 1] - outputs[:, 0] if two else outputs.reshape(len(own))
        loss = float((np.logaddexp(0, x) - own * x).mean())
        slope = (expit(x) - own) / len(own)
        return cls(loss, torch.from_numpy(slope).to(shared.outputs), shared)

    def back_propagate(self) -> None:
        """Both gradients into the parameters, in place of what was there."""
        grads, scale = self.shared.grads, self.shared.grads.scale
        weights = self.slope if scale is None else self.slope.addcmul(self.shared.weights, scale)
        for parameter, made in zip(grads.parameters, grads.pull_back_line(weights), strict=True):
            parameter.grad = made


def _same_in_training(model: nn.Module) -> bool:
    return all(type(layer) in _SAME_IN_TRAINING for layer in model.modules())


def _watched(parameter: nn.Parameter) -> bool:
    """Does somebody wait for its gradient to arrive by a backward pass?"""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


__all__ = ["Deferred", "LineStep", "Pass", "back_propagate"]
