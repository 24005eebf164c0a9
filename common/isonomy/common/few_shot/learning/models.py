"""The two networks as functions of a flat parameter vector θ: Conv-4 for images, MLP for rows.

    conv4   4 × (3×3 convolution of stride 2, group normalisation, ReLU), then a linear head
    mlp     2 × (linear, ReLU), then a linear head

Strides instead of pooling as in Finn et al. 2017 on Omniglot. Group normalisation, because batch
statistics would mix samples: a sample's gradient must depend on that sample and θ alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from isonomy.common.agreements.few_shot_settings import FewShotSettings
from isonomy.common.base.canonical import canonical_json, hash_bytes
from isonomy.common.base.errors import ConfigError

Parameters = dict[str, Tensor]
HEAD = ("head.weight", "head.bias")
_BLOCKS = 4


@dataclass(frozen=True)
class Network:
    """Shapes and the forward pass; parameters come from outside."""

    kind: str
    width: int
    input_shape: tuple[int, ...]
    ways: int

    @classmethod
    def of(cls, settings: FewShotSettings) -> Network:
        return cls(settings.model, settings.width, tuple(settings.input_shape), settings.ways)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameters in their order in θ."""
        shapes = self._conv_shapes() if self.kind == "conv4" else self._mlp_shapes()
        return shapes | {HEAD[0]: (self.ways, self.feature_size), HEAD[1]: (self.ways,)}

    @cached_property
    def size(self) -> int:
        """d, the length of θ."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @cached_property
    def feature_size(self) -> int:
        if self.kind != "conv4":
            return self.width
        side = [*self.input_shape[1:]]
        for _ in range(_BLOCKS):
            side = [(length + 1) // 2 for length in side]
        return self.width * math.prod(side)

    def part(self, name: str) -> tuple[str, ...]:
        """Names of the parameters that an inner loop moves; `name` is "head" or "all"."""
        return HEAD if name == "head" else tuple(self.shapes)

    def initial(self, seed: int) -> NDArray[np.float32]:
        """(d,) He's normal weights from the seed, unit scales, zero biases and zero head."""
        generator = torch.Generator().manual_seed(seed)
        values = []
        for name, shape in self.shapes.items():
            if name.endswith("weight") and name not in HEAD:
                spread = math.sqrt(2 / math.prod(shape[1:]))
                values.append(torch.randn(shape, generator=generator) * spread)
            else:
                values.append(torch.full(shape, 1.0 if name.endswith("scale") else 0.0))
        return np.asarray(torch.cat([v.flatten() for v in values]).numpy(), np.float32)

    def unflatten(self, flat: Tensor, names: Iterable[str] | None = None) -> Parameters:
        """Tensors by name from the last dimension of `flat`: all of θ, or the parameters `names`.

        Leading dimensions stay in front of each parameter's own shape.
        """
        shapes = {name: self.shapes[name] for name in names or self.shapes}
        sizes = [math.prod(shape) for shape in shapes.values()]
        if flat.shape[-1] != sum(sizes):
            raise ConfigError(f"expected {sum(sizes)} parameters, got {tuple(flat.shape)}")
        parts = torch.split(flat, sizes, dim=-1)
        return {
            name: part.reshape(*flat.shape[:-1], *shape)
            for (name, shape), part in zip(shapes.items(), parts, strict=True)
        }

    def flatten(self, values: Mapping[str, Tensor], lead: int = 0) -> Tensor:
        """Named tensors as one, in the order of θ; `lead` leading dimensions are kept."""
        names = [name for name in self.shapes if name in values]
        return torch.cat([values[name].flatten(lead) for name in names], dim=lead)

    def features(self, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """(b, f) what the head sees."""
        if self.kind != "conv4":
            for i in range(2):
                x = functional.linear(x.flatten(1), params[f"{i}.weight"], params[f"{i}.bias"])
                x = functional.relu(x)
            return x
        for i in range(_BLOCKS):
            x = functional.conv2d(x, params[f"{i}.weight"], params[f"{i}.bias"], 2, 1)
            x = functional.group_norm(x, self._groups, params[f"{i}.scale"], params[f"{i}.shift"])
            x = functional.relu(x)
        return x.flatten(1)

    def head(self, params: Mapping[str, Tensor], features: Tensor) -> Tensor:
        """(b, ways) logits."""
        return functional.linear(features, params[HEAD[0]], params[HEAD[1]])

    def logits(self, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return self.head(params, self.features(params, x))

    @property
    def _groups(self) -> int:
        return math.gcd(4, self.width)

    def _conv_shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for i in range(_BLOCKS):
            channels = self.width if i else self.input_shape[0]
            shapes[f"{i}.weight"] = (self.width, channels, 3, 3)
            shapes |= {f"{i}.{name}": (self.width,) for name in ("bias", "scale", "shift")}
        return shapes

    def _mlp_shapes(self) -> dict[str, tuple[int, ...]]:
        columns = math.prod(self.input_shape)
        return {
            "0.weight": (self.width, columns),
            "0.bias": (self.width,),
            "1.weight": (self.width, self.width),
            "1.bias": (self.width,),
        }


def fingerprint(settings: FewShotSettings) -> bytes:
    """SHA-256 over the architecture and the settings; it must be the same on both sides."""
    shapes = [[name, list(shape)] for name, shape in Network.of(settings).shapes.items()]
    agreed = canonical_json({"shapes": shapes, "settings": settings.model_dump(mode="json")})
    return hash_bytes("isonomy/few-shot/v1", agreed)
