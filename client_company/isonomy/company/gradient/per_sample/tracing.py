"""Which layers of a model have a rule for per-sample gradients, and whether samples stay apart.

This is checked once per model, on three samples, before the oracle is asked anything:

    (1) no BatchNorm: it makes one sample's output depend on the others
    (2) outputs of a batch are the outputs of its samples
    (3) a layer is *native* if it has a rule and is called once, with samples along the first axis;
        the parameters of all other layers go through `torch.func`
    (4) gradients made this way are those of plain back-propagation, sample by sample

A model that fails (2) or (4) is refused: clipping would not bound what one person adds. (The
privacy guarantee never rests on this: the oracle clips whatever rows it receives.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.modules.batchnorm import _BatchNorm

from isonomy.common.base.errors import ConfigError
from isonomy.company.gradient.per_sample._chain import Chain
from isonomy.company.gradient.per_sample._per_sample import Factors, Rule, rows_of, rule_for

_TOLERANCE = {torch.float64: 1e-8}  # relative; float32 and below: 1e-3, they are for finding bugs


@dataclass(frozen=True, eq=False)
class LayerPlan:
    """How a model's gradients are made. Valid while the same parameters are trainable."""

    native: tuple[tuple[nn.Module, Rule], ...]
    generic: tuple[str, ...]  # names of the parameters that torch.func takes care of
    trainable: tuple[bool, ...]

    @property
    def layers(self) -> tuple[nn.Module, ...]:
        return tuple(layer for layer, _ in self.native)


Call = tuple[Tensor, GradientEdge | None, torch.Size]


@dataclass(frozen=True)
class Trace:
    """One forward pass: what entered each native layer, and where its signal will arrive."""

    outputs: Tensor  # with their graph, unless `chain` has all that is needed
    calls: tuple[Call, ...]
    chain: Chain | None = None

    @property
    def depends(self) -> bool:
        """Do the outputs depend on trainable parameters?"""
        return self.outputs.requires_grad or self.chain is not None


_plans: WeakKeyDictionary[nn.Module, LayerPlan] = WeakKeyDictionary()


def plan_of(model: nn.Module, parameters: Sequence[nn.Parameter], inputs: Tensor) -> LayerPlan:
    """The model's plan; checked on the first call, then remembered with the model."""
    trainable = tuple(p.requires_grad for p in parameters)
    plan = _plans.get(model)
    if plan is None or plan.trainable != trainable:
        plan = _checked_plan(model, inputs, trainable)
        _plans[model] = plan
    return plan


def trace(model: nn.Module, layers: tuple[nn.Module, ...], inputs: Tensor) -> Trace:
    """Run the model and note the calls of these layers; each must be called exactly once."""
    chain = Chain.run(model, inputs)
    if chain is not None:
        entered = {layer: entering for layer, entering, _ in chain.steps}
        calls = tuple((entered[layer], None, torch.Size()) for layer in layers)
        return Trace(chain.outputs, calls, chain)
    return _trace_hooked(model, layers, inputs)


def _trace_hooked(model: nn.Module, layers: tuple[nn.Module, ...], inputs: Tensor) -> Trace:
    calls: dict[nn.Module, Call] = {}
    times: Counter[nn.Module] = Counter()

    def note(layer: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        # The edge, not the tensor: an in-place activation may write over the tensor.
        edge = get_gradient_edge(output) if output.requires_grad else None
        calls[layer] = (arguments[0].detach(), edge, output.shape)
        times[layer] += 1

    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        with torch.enable_grad():
            outputs = model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    if not isinstance(outputs, Tensor) or outputs.ndim == 0 or len(outputs) != len(inputs):
        raise ConfigError("a model must return one tensor, with samples along its first axis")
    if any(times[layer] != 1 for layer in layers):
        raise ConfigError("the model must use the same layers in the same order at every call")
    return Trace(outputs, tuple(calls[layer] for layer in layers))


def factors_of(
    model: nn.Module, plan: LayerPlan, traced: Trace, inputs: Tensor, upstream: Tensor
) -> list[Factors]:
    """Per-sample gradients of upstream_i · outputs_i, `upstream` (b, …) as the outputs are."""
    factors: list[Factors] = []
    signals = _signals(plan, traced, upstream)
    for (layer, rule), (entering, _, shape) in zip(plan.native, traced.calls, strict=True):
        signal = signals.get(layer)
        if signal is None:  # the outputs do not depend on this layer
            signal = torch.zeros(shape, dtype=entering.dtype, device=entering.device)
        factors.append(rule(layer, entering, signal))
    if plan.generic:
        factors.append(rows_of(model, plan.generic, inputs, upstream))
    return factors


def _signals(plan: LayerPlan, traced: Trace, upstream: Tensor) -> Mapping[nn.Module, Tensor | None]:
    if traced.chain is not None:
        return traced.chain.signals(upstream)
    edges = {
        layer: edge
        for layer, (_, edge, _) in zip(plan.layers, traced.calls, strict=True)
        if edge is not None
    }
    if not edges:
        return {}
    signals = torch.autograd.grad(
        traced.outputs, list(edges.values()), upstream, retain_graph=True, allow_unused=True
    )
    return dict(zip(edges, signals, strict=True))


# --- The check, once per model -----------------------------------------------------------------


def refuse_batch_norm(model: nn.Module) -> None:
    """Raise if the model has a BatchNorm layer."""
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm):
            raise ConfigError(
                f"layer {name or type(layer).__name__!r} is a BatchNorm: its output for one person "
                "depends on the others in the batch, so nobody has a gradient of their own and "
                "clipping bounds nothing. Replace it by nn.GroupNorm or nn.LayerNorm."
            )


def _checked_plan(model: nn.Module, inputs: Tensor, trainable: tuple[bool, ...]) -> LayerPlan:
    refuse_batch_norm(model)  # (1)
    if not any(trainable):
        raise ConfigError("the model has no trainable parameters")
    sample = inputs.detach()[torch.arange(3, device=inputs.device) % len(inputs)]
    with _quiet(model), torch.random.fork_rng(devices=[]):
        _check_apart(model, sample)  # (2)
        native = _native(model, sample)  # (3)
        for layers in (native, ()):  # a rule that does not hold here gives way to torch.func
            plan = LayerPlan(layers, _others(model, layers), trainable)
            if _gradients_agree(model, plan, sample):  # (4)
                return plan
    raise ConfigError(
        "per-sample gradients of this model are not those of back-propagation: a layer mixes "
        "samples, or draws at random even in evaluation mode. Replace that layer."
    )


def _check_apart(model: nn.Module, sample: Tensor) -> None:
    with torch.no_grad():
        together = model(sample)
        alone = torch.cat([model(one[None]) for one in sample])
    if not _close(together, alone):
        raise ConfigError(
            "the model's output for one sample depends on the other samples of the batch, so "
            "nobody has a gradient of their own. Normalise within a sample (nn.LayerNorm, "
            "nn.GroupNorm), and keep samples along the first axis."
        )


def _native(model: nn.Module, sample: Tensor) -> tuple[tuple[nn.Module, Rule], ...]:
    """Layers with a rule, called once, samples first: tried with three samples and with two."""
    owners = Counter(id(p) for layer in model.modules() for p in layer.parameters(recurse=False))
    candidates: dict[nn.Module, Rule] = {}
    for layer in model.modules():
        rule, direct = rule_for(layer), list(layer.parameters(recurse=False))
        alone = all(owners[id(p)] == 1 for p in direct)
        if rule and alone and any(p.requires_grad for p in direct):
            candidates[layer] = rule
    for count in (3, 2):
        for layer in _unfit(model, tuple(candidates), sample[:count]):
            del candidates[layer]
    return tuple(candidates.items())


def _unfit(model: nn.Module, layers: tuple[nn.Module, ...], sample: Tensor) -> list[nn.Module]:
    fits: dict[nn.Module, list[bool]] = {layer: [] for layer in layers}

    def note(layer: nn.Module, arguments: tuple[object, ...], output: object) -> None:
        tensors = (arguments[0] if len(arguments) == 1 else None, output)
        fits[layer].append(
            all(isinstance(t, Tensor) and t.ndim >= 2 and len(t) == len(sample) for t in tensors)
        )

    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        with torch.enable_grad():  # as in training: without, some layers take other paths
            model(sample)
    finally:
        for handle in handles:
            handle.remove()
    return [layer for layer, calls in fits.items() if calls != [True]]


def _others(model: nn.Module, native: tuple[tuple[nn.Module, Rule], ...]) -> tuple[str, ...]:
    covered = {id(p) for layer, _ in native for p in layer.parameters(recurse=False)}
    return tuple(
        name for name, p in model.named_parameters() if p.requires_grad and id(p) not in covered
    )


def _gradients_agree(model: nn.Module, plan: LayerPlan, sample: Tensor) -> bool:
    """Against plain back-propagation of one sample at a time, with random upstream signals."""
    traced = trace(model, plan.layers, sample)
    upstream = torch.randn_like(traced.outputs)
    rows = {
        id(parameter): row
        for factors in factors_of(model, plan, traced, sample, upstream)
        for parameter, row in zip(factors.parameters, factors.rows(), strict=True)
    }
    parameters = [p for p in model.parameters() if p.requires_grad]
    for index in range(len(sample)):
        with torch.enable_grad():
            value = (model(sample[index][None])[0] * upstream[index].detach()).sum()
        truth = torch.autograd.grad(value, parameters, materialize_grads=True)
        for parameter, gradient in zip(parameters, truth, strict=True):
            if not _close(rows[id(parameter)][index], gradient):
                return False
    return True


def _close(actual: Tensor, expected: Tensor) -> bool:
    """Equal up to rounding, relative to the largest expected value."""
    if actual.shape != expected.shape:
        return False
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    tolerance = _TOLERANCE.get(actual.dtype, 1e-3)
    return bool(((actual - expected).abs() <= tolerance * (scale + 1e-12)).all())


@contextmanager
def _quiet(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while: Dropout draws nothing, so that two passes can be compared."""
    modes = [(layer, layer.training) for layer in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode
