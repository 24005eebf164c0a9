"""Small classifiers run by hand: linear layers and simple activations, one after the other.

For `nn.Sequential` of the layers below, the forward pass and the signals that go back from the
outputs take a line each:

    forward     x ← W x + b           x ← φ(x)
    back        s ← Wᵀ s              s ← s ∘ φ′, from what left the layer

Autograd would do the same products and, for layers of a hundred units, spend as long again on its
records. It is done by hand because it matters: without this module a PF-LD step of
`isonomy bench step` takes 11 to 15 % longer. Only models with one or two outputs qualify, because
then the gradient of the loss comes from the same signals (ghost.along_line).

`tracing` compares the gradients with plain back-propagation before it uses them.
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
    nn.ReLU: (torch.relu_, lambda signal, out: torch.ops.aten.threshold_backward(signal, out, 0)),
    nn.Tanh: (torch.tanh_, torch.ops.aten.tanh_backward),
    nn.Sigmoid: (torch.sigmoid_, torch.ops.aten.sigmoid_backward),
}


@dataclass(frozen=True)
class Chain:
    """A forward pass: each layer with its input and its output."""

    steps: tuple[tuple[nn.Module, Tensor, Tensor], ...]

    @property
    def outputs(self) -> Tensor:
        return self.steps[-1][2]

    @classmethod
    def run(cls, model: nn.Module, inputs: Tensor) -> Chain | None:
        """Run the model; None for models and inputs of any other kind.

        Exact types and no hooks: a subclass or a hook may change what a layer does.
        """
        if type(model) is not nn.Sequential or inputs.ndim != 2 or _hooked(model):
            return None
        layers = list(model._modules.values())
        last = layers[-1] if layers else None
        if type(last) is not nn.Linear or last.out_features > 2 or len(set(layers)) < len(layers):
            return None
        steps: list[tuple[nn.Module, Tensor, Tensor]] = []
        output = inputs
        with torch.no_grad():
            for layer in layers:
                if layer is None or _hooked(layer):
                    return None
                entering = output
                if type(layer) is nn.Linear:
                    output = functional.linear(entering, layer.weight, layer.bias)
                elif type(layer) in _ACTIVATIONS:
                    # In place after a linear layer: nothing else refers to that layer's output.
                    fresh = bool(steps) and type(steps[-1][0]) is nn.Linear
                    output = _ACTIVATIONS[type(layer)][0](entering if fresh else entering.clone())
                else:
                    return None
                steps.append((layer, entering, output))
        return cls(tuple(steps))

    def signals(self, upstream: Tensor) -> dict[nn.Module, Tensor]:
        """The signal at each linear layer if `upstream` is sent back from the outputs."""
        signals: dict[nn.Module, Tensor] = {}
        signal = upstream
        with torch.no_grad():
            for number, (layer, _, output) in reversed(list(enumerate(self.steps))):
                if type(layer) is not nn.Linear:
                    signal = _ACTIVATIONS[type(layer)][1](signal, output)
                    continue
                signals[layer] = signal
                if number:
                    signal = signal @ layer.weight
        return signals


def _hooked(layer: nn.Module) -> bool:
    return bool(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
    )
