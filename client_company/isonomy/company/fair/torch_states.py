"""Torch modules inside copies and files of an estimator: names and numbers, nothing to run.

skops knows no tensor, and a pickled module carries torch's own pickles. So `PlainModules` puts a
description in the place of each module: its class, its settings, its weights as arrays. Loading
makes the object without calling its constructor. A module that a description would change (hooks,
weights in two places, a class with pickling code) stays as it is: it can be pickled, and skops
refuses it.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

_STANDARD = frozenset(nn.Module().__dict__)
_PARTS = {"training", "_parameters", "_buffers", "_non_persistent_buffers_set", "_modules"}


@dataclass(frozen=True)
class ModuleData:
    """One module. `buffers`: array, and whether state_dict has it; `frozen`: not trained."""

    kind: type[nn.Module]
    settings: dict[str, Any]
    parameters: dict[str, NDArray[Any] | None]
    frozen: tuple[str, ...]
    buffers: dict[str, tuple[NDArray[Any] | None, bool]]
    children: dict[str, ModuleData | None]

    @classmethod
    def of(cls, module: nn.Module) -> ModuleData | None:
        """The description; None if the module would not come back as it is."""
        weights = [p for _, p in module.named_parameters(remove_duplicate=False)]
        alike = len({id(p) for p in weights}) == len(weights)
        if not alike or not all(_is_plain(each) for each in module.modules()):
            return None
        return cls._described(module)

    @classmethod
    def _described(cls, module: nn.Module) -> ModuleData:
        attributes = {name: value for name, value in vars(module).items() if name not in _STANDARD}
        parameters, unsaved = module._parameters, module._non_persistent_buffers_set
        return cls(
            type(module),
            {**attributes, "training": module.training},
            {name: _array(each) for name, each in parameters.items()},
            tuple(name for name, each in parameters.items() if not _is_trained(each)),
            {name: (_array(each), name not in unsaved) for name, each in module._buffers.items()},
            {n: None if m is None else cls._described(m) for n, m in module._modules.items()},
        )

    def module(self) -> nn.Module:
        """The module; its constructor is not called."""
        if not issubclass(self.kind, nn.Module):
            raise TypeError(f"{self.kind} is no torch module")
        module = self.kind.__new__(self.kind)
        nn.Module.__init__(module)
        vars(module).update(self.settings)
        for name, array in self.parameters.items():
            value = _tensor(array)
            if value is not None:
                value = nn.Parameter(value, name not in self.frozen)
            module._parameters[name] = value
        for name, (array, saved) in self.buffers.items():
            module.register_buffer(name, _tensor(array), persistent=saved)
        for name, child in self.children.items():
            module._modules[name] = None if child is None else child.module()
        return module


class PlainModules:
    """Mixin for estimators: `__getstate__` describes modules, `__setstate__` makes them again.

    A fitted estimator whose `module` is a function without a name that can be imported (a lambda)
    carries the trained network there instead.
    """

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[assignment]
        if "module_" in state and _is_nameless(state["module"]):
            state = {**state, "module": state["module_"]}
        return {
            name: (ModuleData.of(value) or value) if isinstance(value, nn.Module) else value
            for name, value in state.items()
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        modules = {n: v.module() for n, v in state.items() if isinstance(v, ModuleData)}
        super().__setstate__({**state, **modules})  # type: ignore[misc]


def _is_plain(module: nn.Module) -> bool:
    """Whether class, attributes and tensors say everything about this module, without its parts."""
    kind = type(module)
    pickles = any(
        getattr(kind, name) is not getattr(nn.Module, name)
        for name in ("__reduce__", "__reduce_ex__", "__getstate__")
    )
    hooks = any(vars(module)[name] for name in _STANDARD - _PARTS if "hooks" in name)
    attributes = [value for name, value in vars(module).items() if name not in _STANDARD]
    tensors = (*module._parameters.values(), *module._buffers.values())
    return not (
        pickles
        or hooks
        or any(_has_tensor(value) for value in attributes)
        or any(t is not None and type(t) not in (Tensor, nn.Parameter) for t in tensors)
        or any(t is not None and t.dtype == torch.bfloat16 for t in tensors)  # numpy has none
    )


def _has_tensor(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set):
        return any(_has_tensor(each) for each in value)
    return isinstance(value, Tensor | nn.Module)


def _is_nameless(function: Any) -> bool:
    if not inspect.isfunction(function):
        return False
    module = sys.modules.get(function.__module__)
    return getattr(module, function.__qualname__, None) is not function


def _is_trained(parameter: Tensor | None) -> bool:
    return parameter is None or parameter.requires_grad


def _array(tensor: Tensor | None) -> NDArray[Any] | None:
    return None if tensor is None else tensor.detach().cpu().numpy().copy()


def _tensor(array: NDArray[Any] | None) -> Tensor | None:
    return None if array is None else torch.from_numpy(array.copy())
