"""Fairness notions for gradient strategies: a differentiable h, and whose mean of it must agree.

    Ê_{z ∈ D_P}[h(z)] − Ê_{z ∈ D_G}[h(z)] = 0          Tran et al., Eq. (1), for each event, group

A notion is a list of events. An event says who belongs to the population term (by label, which the
company knows; never by attribute), and what h is:

| notion | events: members, h |
|---|---|
| demographic_parity | everybody, P(ŷ = c); one event per class but the first |
| equal_opportunity | y = 1, P(ŷ = 1) |
| equal_fpr | y = 0, P(ŷ = 1) |
| equalized_odds | both of these; several classes: one event per label and class |
| accuracy_parity | everybody, P(ŷ ≠ y) |
| loss_parity | everybody, cross-entropy (the paper's accuracy parity; clipped at C_d = 5) |

Your own notion takes a few lines, for example "the mean score must not depend on the group":

    class ScoreParity:
        name = "score_parity"

        def events(self, classes: int) -> tuple[Event, ...]:
            def score(logits: Tensor, target: Tensor) -> Tensor:
                return logits[:, 1] - logits[:, 0]

            return (Event("mean score", score, bound=8.0),)

    Trainer(model, PFLD(ScoreParity()), oracle=oracle).fit(inputs, target)

h must treat rows independently. What decides is `Event.bound`, the C_d of the dual step: values
beyond ±bound are clipped. `Event.decided`, if given, is the undifferentiable figure that the dual
step should measure instead (hard decisions in place of probabilities).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from isonomy.common.agreements.notions import NOTIONS, REHEARSAL_NOTIONS
from isonomy.common.base.errors import ConfigError, DataError

Score = Callable[[Tensor, Tensor], Tensor]  # (logits (b, classes), target (b,)) -> (b,)


@dataclass(frozen=True)
class Event:
    """One mean that must be the same in every group.

    | name | meaning |
    |---|---|
    | h | differentiable, one value per row |
    | label | members: rows with this label; None: everybody |
    | decided | what the dual step measures; None: h itself |
    | bound | C_d: values are clipped to ±bound in the dual step |
    | slope | h together with its gradient in the logits; None: by differentiation |

    A slope's gradient is (b, classes); for two classes (b,) may stand for −g and g. Without slopes
    a PF-LD step of `isonomy bench step` takes 3 to 18 % longer.
    """

    name: str
    h: Score
    label: int | None = None
    decided: Score | None = None
    bound: float = 1.0
    slope: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None

    def members(self, target: Tensor) -> Tensor:
        """(n,) who is in the population term."""
        if self.label is None:
            return torch.ones(len(target), dtype=torch.bool)
        return (target == self.label).cpu()

    def measured(self, logits: Tensor, target: Tensor, *, hard: bool) -> Tensor:
        """(b,) float64 values within ±bound: what a dual step sums."""
        score = self.decided if hard and self.decided is not None else self.h
        return score(logits, target).double().clamp(-self.bound, self.bound).cpu()


@runtime_checkable
class Notion(Protocol):
    """What a custom notion must offer."""

    @property
    def name(self) -> str: ...

    def events(self, classes: int) -> tuple[Event, ...]:
        """The events for a target with this many classes."""


@dataclass(frozen=True)
class BuiltIn:
    """A notion of the table above. `sharpness` β: h = softmax(β·logits), nearer to a decision."""

    name: str
    sharpness: float = 1.0

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ConfigError(f"unknown notion {self.name!r}; there are {', '.join(NAMES)}")
        if not 0 < self.sharpness < float("inf"):
            raise ConfigError(f"sharpness must be a positive number, got {self.sharpness!r}")

    def events(self, classes: int) -> tuple[Event, ...]:
        if self.name == "accuracy_parity":
            return (Event("wrong", self._wrong, decided=_is_wrong, slope=self._wrong_slope),)
        if self.name == "loss_parity":
            return (Event("loss", _loss, bound=5.0),)
        if self.name == "demographic_parity":
            return tuple(self._selected(c, None, classes) for c in range(1, classes))
        if self.name == "equalized_odds":
            return tuple(
                self._selected(c, label, classes)
                for label in range(classes)
                for c in range(1, classes)
            )
        if classes > 2:
            raise ConfigError(f"{self.name} needs two classes; take equalized_odds for {classes}")
        return (self._selected(1, 1 if self.name == "equal_opportunity" else 0, classes),)

    def _selected(self, number: int, label: int | None, classes: int) -> Event:
        def h(logits: Tensor, target: Tensor) -> Tensor:
            return torch.softmax(self.sharpness * logits, dim=1)[:, number]

        def decided(logits: Tensor, target: Tensor) -> Tensor:
            return (logits.argmax(dim=1) == number).to(logits.dtype)

        def slope(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
            if classes == 2:
                return self._two_classes(logits)
            share = torch.softmax(self.sharpness * logits, dim=1)
            value = share[:, number].clone()
            rise = self.sharpness * value  # ∂p_c/∂logits = β p_c (e_c − p)
            share *= -rise[:, None]
            share[:, number] += rise
            return value, share

        what = "selected" if classes == 2 else f"class {number} chosen"
        name = what if label is None else f"{what} | y = {label}"
        return Event(name, h, label, decided, slope=slope)

    def _two_classes(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """P(ŷ = 1) = σ(βx) of the logits' difference x, and β·σ(1 − σ)."""
        value = torch.sigmoid(self.sharpness * (logits[:, 1] - logits[:, 0]))
        rise = torch.addcmul(value, value, value, value=-1.0)
        return value, rise if self.sharpness == 1.0 else self.sharpness * rise

    def _wrong(self, logits: Tensor, target: Tensor) -> Tensor:
        right = torch.softmax(self.sharpness * logits, dim=1)
        return 1 - right.gather(1, target[:, None].to(logits.device))[:, 0]

    def _wrong_slope(self, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        if logits.shape[1] == 2:
            value, rise = self._two_classes(logits)
            label = target.to(logits)
            away = 1.0 - 2.0 * label  # −1 for label 1, whose P(ŷ = 1) is not wrong
            return label + away * value, away * rise
        share = torch.softmax(self.sharpness * logits, dim=1)
        place = target[:, None].to(logits.device)
        right = share.gather(1, place)
        rise = self.sharpness * right
        return 1 - right[:, 0], (share * rise).scatter_add_(1, place, -rise)


NAMES = (*NOTIONS, *REHEARSAL_NOTIONS)


def notion_of(notion: str | Notion) -> Notion:
    """A built-in notion by name, or the caller's own."""
    if isinstance(notion, str):
        return BuiltIn(notion)
    if not isinstance(notion, Notion):
        raise ConfigError("a notion is a name, or an object with `name` and `events(classes)`")
    return notion


def checked_events(notion: Notion, target: Tensor, classes: int) -> tuple[Event, ...]:
    """The notion's events; one that nobody belongs to is an error before anything is spent."""
    events = tuple(notion.events(classes))
    if not events:
        raise ConfigError(f"notion {notion.name!r} has no events for {classes} classes")
    for event in events:
        if not event.members(target).any():
            raise DataError(f"nobody belongs to the event {event.name!r}: no row has its label")
        if not 0 < event.bound < float("inf"):
            raise ConfigError(f"event {event.name!r} needs a finite positive bound")
    return events


def _is_wrong(logits: Tensor, target: Tensor) -> Tensor:
    return (logits.argmax(dim=1) != target.to(logits.device)).to(logits.dtype)


def _loss(logits: Tensor, target: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits, target.to(logits.device), reduction="none")
