"""One layer's per-sample gradients, in the form that costs least.

For a sample i let a_i be what enters a layer and s_i the back-propagated signal: the gradient of
the scalar with respect to what leaves the layer. Private training needs no more of a layer than

    gram(dtype)  (b, b)  the inner products of the samples' gradients, in that precision
    squares()    (b,)    their squared lengths, in numpy
    rows()       (b, …)  the gradients themselves, per parameter (small models only)
    combine(w)           Σ_i w_i g_i, per parameter, in the precision of w
    times(c)             the same form for the gradients c_i g_i

| layer | gradient of sample i | Gram matrix |
|---|---|---|
| `nn.Linear` on (b, in) | s_i a_iᵀ and s_i | (A Aᵀ + 1) ∘ (S Sᵀ): nothing of size d |
| `nn.Linear` on (b, …, in), `nn.Conv1d`, `nn.Conv2d` | Σ_t s_it a_itᵀ and Σ_t s_it | by slices |
| `nn.LayerNorm`, `nn.GroupNorm` | `torch.func` on the layer alone | from rows, which are small |
| anything else | `torch.func` on the whole model | from rows of these parameters |

The first line is the ghost trick (Goodfellow 2015, "Efficient per-example gradient computations").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from isonomy.common.base.errors import ConfigError

_SLICE_CELLS = 1 << 23  # per-sample cells in memory at a time: 32 MB of float32
_DUST = 1e-17

Squares = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class Outer:
    """A linear layer on one vector per sample, or on T of them (words, pixels): Σ_t s_it a_itᵀ.

    With one vector the inner products are a product of two: ⟨a_i, a_j⟩·⟨s_i, s_j⟩.
    """

    weight: nn.Parameter | None  # None: absent or frozen
    bias: nn.Parameter | None
    entering: Tensor  # (b, in) or (b, T, in)
    signal: Tensor  # (b, out) or (b, T, out)

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        return tuple(p for p in (self.weight, self.bias) if p is not None)

    def gram(self, dtype: torch.dtype) -> Tensor:
        if self.signal.ndim == 3:
            return _gram(self._slices(), dtype)
        signal = _without_dust(self.signal.to(dtype))
        outer = signal @ signal.T
        if self.weight is None:
            return outer
        entering = self.entering.to(dtype)
        inner = entering @ entering.T
        return outer.mul_(inner if self.bias is None else inner.add_(1.0))

    def squares(self) -> Squares:
        if self.signal.ndim == 3:
            return _squares(self._slices())
        signal = _squared(self.signal)
        if self.weight is None:
            return signal
        return signal * (_squared(self.entering) + (0.0 if self.bias is None else 1.0))

    def rows(self) -> list[Tensor]:
        many = self.signal.ndim == 3
        signal, entering = (t if many else t[:, None] for t in (self.signal, self.entering))
        rows = []
        if self.weight is not None:
            outer = signal.transpose(1, 2) @ entering  # (b, out, in)
            rows.append(outer.reshape(len(outer), *self.weight.shape))
        if self.bias is not None:
            rows.append(signal.sum(dim=1))
        return rows

    def combine(self, weights: Tensor) -> list[Tensor]:
        weighted = (self.signal * _along(weights, self.signal)).flatten(0, -2)  # (b·T, out)
        sums = []
        if self.weight is not None:
            outer = weighted.T @ self.entering.flatten(0, -2).to(weighted.dtype)
            sums.append(outer.reshape(self.weight.shape))
        if self.bias is not None:
            sums.append(weighted.sum(dim=0))
        return sums

    def times(self, scale: Tensor) -> Self:
        return replace(self, signal=self.signal * _along(scale, self.signal))

    def _slices(self) -> Iterator[Tensor]:
        """(b, cells) pieces of the rows, so that memory does not grow with the layer."""
        if self.weight is not None:
            samples, _, width = self.entering.shape
            step = max(1, _SLICE_CELLS // max(1, samples * width))
            for part in torch.split(self.signal, step, dim=2):
                yield (part.transpose(1, 2) @ self.entering).flatten(1)
        if self.bias is not None:
            yield self.signal.sum(dim=1)


@dataclass(frozen=True, eq=False)
class Rows:
    """Gradients that are in memory one by one."""

    parameters: tuple[nn.Parameter, ...]
    values: Sequence[Tensor]  # (b, *parameter.shape) each

    def gram(self, dtype: torch.dtype) -> Tensor:
        return _gram((row.reshape(len(row), -1) for row in self.values), dtype)

    def squares(self) -> Squares:
        return _squares(row.reshape(len(row), -1) for row in self.values)

    def rows(self) -> list[Tensor]:
        return list(self.values)

    def combine(self, weights: Tensor) -> list[Tensor]:
        return [torch.tensordot(weights, row.to(weights.dtype), dims=1) for row in self.values]

    def times(self, scale: Tensor) -> Self:
        return replace(self, values=[row * _along(scale, row) for row in self.values])


Factors = Outer | Rows  # every list of theirs runs along `parameters`


# --- Which form a layer takes ------------------------------------------------------------------


def _linear(layer: nn.Linear, entering: Tensor, signal: Tensor) -> Factors:
    weight, bias = _trainable(layer)
    if entering.ndim > 2:
        entering, signal = entering.flatten(1, -2), signal.flatten(1, -2)
    return Outer(weight, bias, entering, signal)


def _conv(layer: nn.Conv1d | nn.Conv2d, entering: Tensor, signal: Tensor) -> Factors:
    """A convolution is a linear layer on patches: `unfold` lays them out."""
    settings = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    kernel, stride, padding, dilation = (tuple(int(n) for n in value) for value in settings)
    if isinstance(layer, nn.Conv1d):  # one more axis of length 1
        entering = entering[:, :, None, :]
        kernel, stride, padding, dilation = (
            (1, *kernel),
            (1, *stride),
            (0, *padding),
            (1, *dilation),
        )
    patches = functional.unfold(entering, kernel, dilation, padding, stride)  # (b, in·kernel, T)
    weight, bias = _trainable(layer)
    return Outer(weight, bias, patches.transpose(1, 2), signal.flatten(2).transpose(1, 2))


def _by_torch_func(layer: nn.Module, entering: Tensor, signal: Tensor) -> Factors:
    names = [name for name, p in layer.named_parameters(recurse=False) if p.requires_grad]
    return rows_of(layer, names, entering, signal)


def rows_of(model: nn.Module, names: Sequence[str], inputs: Tensor, upstream: Tensor) -> Rows:
    """Rows of these parameters, of upstream_i · outputs_i: one vectorised gradient per sample."""
    parameters = dict(model.named_parameters())
    state = {**parameters, **dict(model.named_buffers())}
    moving = {name: state[name].detach() for name in names}
    fixed = {name: value.detach() for name, value in state.items() if name not in moving}
    places = _places(model)

    def value(values: dict[str, Tensor], sample: Tensor, weight: Tensor) -> Tensor:
        everywhere = {place: values[name] for name in values for place in places[name]}
        # Torch's own tying swaps a layer that stands twice in a model twice, and never back.
        outputs: Tensor = functional_call(
            model, {**fixed, **everywhere}, (sample[None],), tie_weights=False
        )
        return (outputs[0] * weight).sum()

    try:
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels of attention cannot be vectorised
            rows = vmap(grad(value), in_dims=(None, 0, 0))(moving, inputs, upstream)
    except RuntimeError as error:
        raise ConfigError(
            f"gradients of {', '.join(names[:3])} cannot be taken sample by sample. Random layers "
            f"(Dropout) beside them need model.eval(); torch says: {error}"
        ) from None
    return Rows(tuple(parameters[name] for name in names), [rows[name] for name in names])


def _places(model: nn.Module) -> dict[str, list[str]]:
    """Where each parameter stands, by its first name: several layers may share one."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    places: dict[str, list[str]] = {name: [] for name in names.values()}
    for path, layer in model.named_modules():  # every layer once, under its first name
        for name, parameter in layer._parameters.items():
            if parameter is not None:
                places[names[id(parameter)]].append(f"{path}.{name}" if path else name)
    return places


Rule = Callable[..., Factors]
_RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Conv1d: _conv,
    nn.Conv2d: _conv,
    nn.LayerNorm: _by_torch_func,
    nn.GroupNorm: _by_torch_func,
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


def _along(scale: Tensor, rows: Tensor) -> Tensor:
    """(b, 1, …) one factor per sample, to multiply `rows` (b, …) with."""
    return scale.reshape(-1, *[1] * (rows.ndim - 1))


def _without_dust(signal: Tensor) -> Tensor:
    """Signals whose squares would be denormal numbers become 0: they are slow, up to 100 times."""
    return signal if signal.dtype == torch.float64 else functional.hardshrink(signal, _DUST)


def _gram(slices: Iterable[Tensor], dtype: torch.dtype) -> Tensor:
    products = (part.to(dtype) @ part.to(dtype).T for part in slices)
    total = next(products)
    for product in products:
        total += product
    return total


def _squares(slices: Iterator[Tensor]) -> Squares:
    return sum((_squared(part) for part in slices), start=_squared(next(slices)))


def _squared(rows: Tensor) -> Squares:
    values = rows.detach().cpu().numpy()
    squares: Squares = np.vecdot(values, values)  # in the precision of the rows
    return squares
