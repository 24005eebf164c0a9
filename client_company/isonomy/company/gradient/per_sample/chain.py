"""Small classifiers run by hand: linear layers and simple activations, one after the other.

For `nn.Sequential` of the layers below, the forward pass and the signals that go back from the
outputs are a line each. Autograd would do the same products and, for layers of a hundred units,
spend as long again on its records. Two outputs or one, because then the loss's gradient, too, comes
from these signals (ghost.along_line), so that nobody misses the records.

    forward     x ← W x + b           x ← φ(x)
    back        s ← Wᵀ s              s ← s ∘ φ′, from what left the layer

`tracing` compares the gradients that come of this with back-propagation before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

_Forward = Callable[[Tensor], Tensor]
_Back = Callable[[Tensor, Tensor], Tensor]  # signal, what left the layer -> signal before it

_ACTIVATIONS: dict[type[nn.Module], tuple[_Forward, _Back]] = {
    nn.ReLU: (torch.relu_, lambda signal, left: torch.ops.aten.threshold_backward(signal, left, 0)),
    nn.Tanh: (torch.tanh_, torch.ops.aten.tanh_backward),
    nn.Sigmoid: (torch.sigmoid_, torch.ops.aten.sigmoid_backward),
}


@dataclass(frozen=True)
class Chain:
    """A forward pass: each layer with what entered and what left it."""

    steps: tuple[tuple[nn.Module, Tensor, Tensor], ...]

    @property
    def outputs(self) -> Tensor:
        return self.steps[-1][2]

    @classmethod
    def run(cls, model: nn.Module, inputs: Tensor) -> Chain | None:
        """None for models and inputs of any other kind; exact types, and nobody hooked in."""
        if type(model) is not nn.Sequential or inputs.ndim != 2 or _hooked(model):
            return None
        layers = list(model._modules.values())
        last = layers[-1] if layers else None
        if type(last) is not nn.Linear or last.out_features > 2 or len(set(layers)) < len(layers):
            return None
        steps: list[tuple[nn.Module, Tensor, Tensor]] = []
        left = inputs
        with torch.no_grad():
            for layer in layers:
                if layer is None or _hooked(layer):
                    return None
                entered = left
                if type(layer) is nn.Linear:
                    left = functional.linear(entered, layer.weight, layer.bias)
                elif type(layer) in _ACTIVATIONS:
                    # in place of what a linear layer has just made: nobody needs it as it was
                    ours = bool(steps) and type(steps[-1][0]) is nn.Linear
                    left = _ACTIVATIONS[type(layer)][0](entered if ours else entered.clone())
                else:
                    return None
                steps.append((layer, entered, left))
        return cls(tuple(steps))

    def signals(self, upstream: Tensor) -> dict[nn.Module, Tensor]:
        """What arrives at each linear layer if `upstream` is sent back from the outputs."""
        made: dict[nn.Module, Tensor] = {}
        signal = upstream
        with torch.no_grad():
            for number, (layer, _, left) in reversed(list(enumerate(self.steps))):
                if type(layer) is not nn.Linear:
                    signal = _ACTIVATIONS[type(layer)][1](signal, left)
                    continue
                made[layer] = signal
                if number:
                    signal = signal @ layer.weight
        return made


def parameters_of(model: nn.Module) -> list[nn.Parameter]:
    """`list(model.parameters())`; for layers in a row without the search through the tree."""
    layers = list(model._modules.values())
    plain = type(model) is nn.Sequential and not model._parameters
    if not plain or any(layer is None or layer._modules for layer in layers):
        return list(model.parameters())
    held = [layer._parameters.values() for layer in layers if layer is not None]
    own = [p for parameters in held for p in parameters if p is not None]
    return list(dict.fromkeys(own))


def set_training(model: nn.Module, mode: bool) -> None:
    """`model.train(mode)`; for layers in a row without the search through the tree."""
    layers = [model, *model._modules.values()]
    plain = type(model) is nn.Sequential and not model.__dict__.keys() & _MODE
    if not plain or any(layer is None or not _plain_mode(layer) for layer in layers[1:]):
        model.train(mode)
        return
    for layer in layers:
        if layer is not None:
            layer.__dict__["training"] = mode


_MODE = {"train", "eval"}


def _plain_mode(layer: nn.Module) -> bool:
    """Is the layer's mode one entry of its own, that nobody has taken charge of?"""
    own = layer.__dict__
    return (
        type(layer).train is nn.Module.train
        and not layer._modules
        and "training" in own  # a compiled layer keeps it elsewhere
        and "train" not in own  # `layer.train = …` is how people freeze a mode
        and "eval" not in own
    )


def _hooked(layer: nn.Module) -> bool:
    return bool(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
    )


__all__ = ["Chain", "parameters_of", "set_training"]
