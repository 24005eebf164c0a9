"""One layer's per-sample gradients, in the form that costs least.

For a sample i let a_i be what enters a layer and s_i the back-propagated signal: the gradient of
the scalar with respect to what leaves it. All that private training needs of a layer is

    gram(dtype)          the samples' inner products, (b, b), made in that precision; what is
                         above the diagonal has no meaning
    squares()   (b,)     their squared lengths, in numpy: many small steps
    total()              no less than the sum of these, as one number
    reach()     (b,)     no less than these, at the price of a look at the factors
    rows()      (b, …)   the gradients themselves, per parameter (small models only)
    combine(w)           Σ_i w_i g_i, per parameter, in the precision of w
    times(c)             the same for c_i g_i
    add_about(m, total, rest)  adds the inner products of g_i − m_i c to `total`, and to `rest`
                         pairs (l, r) that stand for l rᵀ + r lᵀ

The last is for gradients that have most in common: c is near Σ g_i/Σ m_i, and the differences are
taken in the factors, before anything is multiplied, so rounding is relative to what is left.

| layer | gradient of sample i | Gram matrix |
|---|---|---|
| `nn.Linear` on (b, in) | s_i a_iᵀ and s_i | (A Aᵀ + 1) ∘ (S Sᵀ): nothing of size d |
| `nn.Linear` on (b, …, in), `nn.Conv1d`, `nn.Conv2d` | Σ_t s_it a_itᵀ and Σ_t s_it | by slices |
| `nn.LayerNorm`, `nn.GroupNorm` | Σ_t s_it ∘ x̂_it and Σ_t s_it | rows, they are small |
| anything else | `torch.func`, in `tracing` | rows of these parameters |

The first line is the ghost trick (Goodfellow 2015, "Efficient per-example gradient computations").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from isonomy.company.gradient.per_sample.triangles import product

_SLICE_CELLS = 1 << 23  # per-sample cells held at a time: 32 MB of float32
_DUST = 1e-17

Pairs = list[tuple[Tensor, Tensor]]
Squares = NDArray[np.floating]


class Factors(Protocol):
    """Per-sample gradients of some parameters; every list runs along `parameters`."""

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]: ...
    def gram(self, dtype: torch.dtype) -> Tensor: ...
    def squares(self) -> Squares: ...
    def reach(self) -> Squares: ...
    def total(self) -> float: ...
    def rows(self) -> list[Tensor]: ...
    def combine(self, weights: Tensor) -> list[Tensor]: ...
    def times(self, scale: Tensor) -> Self: ...
    def add_about(self, mass: Tensor, total: Tensor, rest: Pairs) -> None: ...


@dataclass(frozen=True, eq=False)
class Outer:
    """`nn.Linear` on one vector per sample: g_i = s_i a_iᵀ, so the Gram matrix is a product."""

    weight: nn.Parameter | None  # None: absent or frozen
    bias: nn.Parameter | None
    entering: Tensor  # (b, in)
    signal: Tensor  # (b, out)
    known: Tensor | None = None  # what `inner` gives, if somebody has it

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        return tuple(p for p in (self.weight, self.bias) if p is not None)

    def gram(self, dtype: torch.dtype) -> Tensor:
        outer = product(_without_dust(self.signal.to(dtype)))
        if self.weight is None:
            return outer
        known = self.known
        return outer.mul_(self.inner(dtype) if known is None or known.dtype != dtype else known)

    def inner(self, dtype: torch.dtype) -> Tensor:
        """A Aᵀ, and 1 more for a bias."""
        made = product(self.entering.to(dtype))
        return made if self.bias is None else made.add_(1.0)

    def squares(self) -> Squares:
        signal = _squared(self.signal)
        if self.weight is None:
            return signal
        entering = _squared(self.entering)
        if self.bias is not None:
            entering += 1.0
        return signal * entering

    def reach(self) -> Squares:
        return self.squares()

    def total(self) -> float:
        """Σ|s_i|²·(Σ|a_i|² + 1), more than Σ|s_i|²(|a_i|² + 1)."""
        return all_squared(self.signal) * (all_squared(self.entering) + 1.0)

    def rows(self) -> list[Tensor]:
        made = []
        if self.weight is not None:
            made.append(self.signal[:, :, None] * self.entering[:, None, :])
        if self.bias is not None:
            made.append(self.signal)
        return made

    def combine(self, weights: Tensor) -> list[Tensor]:
        weighted = self.signal * weights[:, None]
        made = []
        if self.weight is not None:
            made.append(weighted.T @ self.entering.to(weighted.dtype))
        if self.bias is not None:
            made.append(weighted.sum(dim=0))
        return made

    def times(self, scale: Tensor) -> Self:
        return replace(self, signal=self.signal * scale[:, None])

    def add_about(self, mass: Tensor, total: Tensor, rest: Pairs) -> None:
        """c = s̄ āᵀ (and s̄ for the bias), with s_i = m_i s̄ + δs_i and a_i = ā + δa_i.

        g_i − m_i c = s_i δa_iᵀ + δs_i āᵀ, so with D = ΔS ΔSᵀ, E = ΔA ΔAᵀ, p_i = ā·δa_i,
        q_i = s̄·δs_i and S Sᵀ − D = m vᵀ + v mᵀ for v = q + ½|s̄|² m

            inner products = D ∘ (A Aᵀ + 1) + (S Sᵀ − D) ∘ E + (m∘p) qᵀ + q (m∘p)ᵀ

        As many large products as without c.
        """
        common = self.signal.sum(dim=0) / mass.sum()  # s̄
        differences = _without_dust(torch.addr(self.signal, mass, common, alpha=-1.0))
        inner = differences @ differences.T  # D
        if self.weight is None:
            total += inner
            return
        mean = self.entering.mean(dim=0)  # ā
        moved = self.entering - mean
        outer = moved @ moved.T  # E
        p, q = moved @ mean, differences @ common
        total.addcmul_(_pair(mass, q + mass * (0.5 * common.dot(common))), outer)
        length = mean @ mean + (1.0 if self.bias is not None else 0.0)  # |ā|² and the bias
        outer += (p + length)[:, None]
        outer += p
        total.addcmul_(inner, outer)
        rest.append((mass * p, q))


@dataclass(frozen=True, eq=False)
class SumOfOuter:
    """The same over T places per sample (words, pixels): G_i = Σ_t s_it a_itᵀ."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    entering: Tensor  # (b, T, in)
    signal: Tensor  # (b, T, out)

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        return tuple(p for p in (self.weight, self.bias) if p is not None)

    def _slices(self) -> Iterator[Tensor]:
        """(b, cells) pieces of the rows, so that memory does not grow with the layer."""
        if self.weight is not None:
            samples, _, width = self.entering.shape
            step = max(1, _SLICE_CELLS // max(1, samples * width))
            for part in torch.split(self.signal, step, dim=2):
                yield (part.transpose(1, 2) @ self.entering).flatten(1)
        if self.bias is not None:
            yield self.signal.sum(dim=1)

    def gram(self, dtype: torch.dtype) -> Tensor:
        return _gram(self._slices(), dtype)

    def squares(self) -> Squares:
        return _squares(self._slices())

    def reach(self) -> Squares:
        """|Σ_t s_t a_tᵀ|² <= Σ|s_t|²·Σ|a_t|², and |Σ_t s_t|² <= T·Σ|s_t|²."""
        signal, entering = _squared(self.signal.flatten(1)), _squared(self.entering.flatten(1))
        places = 0 if self.bias is None else self.signal.shape[1]
        return signal * (places if self.weight is None else entering + places)

    def rows(self) -> list[Tensor]:
        made = []
        if self.weight is not None:
            outer = self.signal.transpose(1, 2) @ self.entering  # (b, out, in)
            made.append(outer.reshape(len(outer), *self.weight.shape))
        if self.bias is not None:
            made.append(self.signal.sum(dim=1))
        return made

    def total(self) -> float:
        places = self.signal.shape[1]
        return all_squared(self.signal) * (all_squared(self.entering) + places)

    def combine(self, weights: Tensor) -> list[Tensor]:
        weighted = self.signal * weights[:, None, None]
        made = []
        if self.weight is not None:
            outer = weighted.flatten(0, 1).T @ self.entering.flatten(0, 1).to(weighted.dtype)
            made.append(outer.reshape(self.weight.shape))
        if self.bias is not None:
            made.append(weighted.sum(dim=(0, 1)))
        return made

    def times(self, scale: Tensor) -> Self:
        return replace(self, signal=self.signal * scale[:, None, None])

    def add_about(self, mass: Tensor, total: Tensor, rest: Pairs) -> None:
        _add_about(self._slices(), mass, total)


@dataclass(frozen=True, eq=False)
class Rows:
    """Gradients that are held as they are."""

    parameters: tuple[nn.Parameter, ...]
    held: Sequence[Tensor]  # (b, *parameter.shape) each

    def gram(self, dtype: torch.dtype) -> Tensor:
        return _gram((row.reshape(len(row), -1) for row in self.held), dtype)

    def squares(self) -> Squares:
        return _squares(row.reshape(len(row), -1) for row in self.held)

    def reach(self) -> Squares:
        return self.squares()

    def total(self) -> float:
        return sum(all_squared(row) for row in self.held)

    def rows(self) -> list[Tensor]:
        return list(self.held)

    def combine(self, weights: Tensor) -> list[Tensor]:
        return [torch.tensordot(weights, row.to(weights.dtype), dims=1) for row in self.held]

    def times(self, scale: Tensor) -> Self:
        held = [row * scale.reshape(-1, *[1] * (row.ndim - 1)) for row in self.held]
        return replace(self, held=held)

    def add_about(self, mass: Tensor, total: Tensor, rest: Pairs) -> None:
        _add_about((row.reshape(len(row), -1) for row in self.held), mass, total)


# --- Which form a layer takes ------------------------------------------------------------------


def _linear(layer: nn.Linear, entering: Tensor, signal: Tensor) -> Factors:
    weight, bias = _trainable(layer)
    if entering.ndim == 2:
        return Outer(weight, bias, entering, signal)
    return SumOfOuter(weight, bias, entering.flatten(1, -2), signal.flatten(1, -2))


def _conv(layer: nn.Conv1d | nn.Conv2d, entering: Tensor, signal: Tensor) -> Factors:
    """A convolution is a linear layer on patches: `unfold` lays them out."""
    flat = isinstance(layer, nn.Conv1d)
    kernel, stride, padding, dilation = (
        tuple(int(n) for n in value)
        for value in (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    )
    if flat:  # one more axis of length 1
        entering = entering[:, :, None, :]
        kernel, stride, padding, dilation = (
            (1, *kernel),
            (1, *stride),
            (0, *padding),
            (1, *dilation),
        )
    patches = functional.unfold(
        entering, kernel, dilation=dilation, padding=padding, stride=stride
    )  # (b, in·kernel, T)
    weight, bias = _trainable(layer)
    return SumOfOuter(weight, bias, patches.transpose(1, 2), signal.flatten(2).transpose(1, 2))


def _layer_norm(layer: nn.LayerNorm, entering: Tensor, signal: Tensor) -> Factors:
    normal = functional.layer_norm(entering, layer.normalized_shape, eps=layer.eps)
    keep = len(layer.normalized_shape)
    return _scale_and_shift(layer, normal, signal, tuple(range(1, signal.ndim - keep)))


def _group_norm(layer: nn.GroupNorm, entering: Tensor, signal: Tensor) -> Factors:
    normal = functional.group_norm(entering, layer.num_groups, eps=layer.eps)
    return _scale_and_shift(layer, normal, signal, tuple(range(2, signal.ndim)))


def _scale_and_shift(
    layer: nn.Module, normal: Tensor, signal: Tensor, places: tuple[int, ...]
) -> Factors:
    weight, bias = _trainable(layer)
    scaled = signal * normal
    held = [
        (parameter, value.sum(dim=places) if places else value)
        for parameter, value in ((weight, scaled), (bias, signal))
        if parameter is not None
    ]
    return Rows(tuple(p for p, _ in held), [row for _, row in held])


Rule = Callable[..., Factors]
_RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Conv1d: _conv,
    nn.Conv2d: _conv,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
}


def rule_for(layer: nn.Module) -> Rule | None:
    """How this layer's gradients follow from what enters it and its signal; None: not known.

    Exact types only: a subclass may do something else with the same parameters.
    """
    if isinstance(layer, nn.Conv1d | nn.Conv2d) and (
        layer.groups != 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str)
    ):
        return None
    return _RULES.get(type(layer))


def _trainable(layer: nn.Module) -> tuple[nn.Parameter | None, nn.Parameter | None]:
    weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
    return (
        weight if weight is not None and weight.requires_grad else None,
        bias if bias is not None and bias.requires_grad else None,
    )


def _without_dust(signal: Tensor) -> Tensor:
    """Signals whose squares would be denormal numbers become 0: they are slow, up to 100 times."""
    return signal if signal.dtype == torch.float64 else functional.hardshrink(signal, _DUST)


def _gram(slices: Iterator[Tensor], dtype: torch.dtype) -> Tensor:
    total = product(next(slices).to(dtype))
    for part in slices:
        total += product(part.to(dtype))
    return total


def _add_about(slices: Iterator[Tensor], mass: Tensor, total: Tensor) -> None:
    for part in slices:
        common = part.sum(dim=0) / mass.sum()
        moved = torch.addr(part, mass, common, alpha=-1.0)
        total += moved @ moved.T


def _pair(left: Tensor, right: Tensor) -> Tensor:
    """left rightᵀ + right leftᵀ, (b, b)."""
    both = torch.stack([left, right])
    return both.T @ both.flip(0)


def add_pairs(total: Tensor, pairs: Pairs) -> None:
    """Add all of l rᵀ + r lᵀ at once."""
    if pairs:
        left, right = (torch.stack(side) for side in zip(*pairs, strict=True))
        total.addmm_(torch.cat([left, right]).T, torch.cat([right, left]))


def _squares(slices: Iterator[Tensor]) -> Squares:
    return sum((_squared(part) for part in slices), start=_squared(next(slices)))


def all_squared(rows: Tensor) -> float:
    """Σ of all squares; one look at memory, several times quicker than by row."""
    own = rows.detach().cpu().numpy().reshape(-1)
    return float(own @ own)


def _squared(rows: Tensor) -> Squares:
    own = rows.detach().cpu().numpy()
    squares: Squares = np.vecdot(own, own)  # in the precision of the rows
    return squares


__all__ = [
    "Factors",
    "Outer",
    "Pairs",
    "Rows",
    "Rule",
    "SumOfOuter",
    "add_pairs",
    "all_squared",
    "rule_for",
]
