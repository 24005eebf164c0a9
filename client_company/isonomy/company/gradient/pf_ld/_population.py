"""What is public about a run's people: who is in which event, with what weight.

Nothing here knows an attribute. A person's weight in an event is the part of their rows that
belong to it, so group means are means among persons; a person is in at most `width` events at full
weight, so their row of weights is at most √width long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.common.base.errors import ConfigError, IsonomyError
from isonomy.common.privacy.dual import ONE, Multipliers
from isonomy.common.sums.oracle import Release
from isonomy.company.gradient.per_sample.ghost import ChunkGradients, Slope
from isonomy.company.gradient.run.notions import Event, Notion, checked_events
from isonomy.company.gradient.run.strategy import Persons, RoundRecord, Run, logits_of
from isonomy.company.gradient.sums.primal import CentredGradients


@dataclass(frozen=True)
class _Members:
    """Those of some rows that belong to one event, and what every round needs of them."""

    key: Tensor  # the rows in question; keeping them keeps their `id` unique
    rows: Tensor  # (b,) the same object if all belong
    mass: Tensor  # (b,) float64
    weight: Tensor  # (b,) the same as the model wants it
    target: Tensor  # (b,) on the model's device
    people: NDArray[np.int64]  # (b,)
    even: bool  # does every row weigh 1?


@dataclass(frozen=True)
class Population:
    """A run's events and the people in them, computed once."""

    run: Run
    events: tuple[Event, ...]
    mass: Tensor  # (rows, events) float64: the row's weight in the event, 0 for non-members
    persons: Persons
    sizes: tuple[int, ...]  # groups of each attribute
    overlap: int  # events that one person can be in: primal queries per round about them
    width: int  # events that one row can be in; by labels, so it is public
    _members: dict[tuple[int, int], _Members] = field(default_factory=dict, repr=False)
    _rounds: dict[int, int] = field(default_factory=dict, repr=False)  # event -> its last round

    @classmethod
    def of(cls, run: Run, notion: Notion) -> Population:
        events = checked_events(notion, run.target, run.classes)
        members = torch.stack([event.members(run.target) for event in events], dim=1)
        mass = members.double() * run.weight[:, None]
        persons = Persons.of(run.people)
        labels = [event.label for event in events]
        width = labels.count(None) + max(labels.count(label) for label in range(run.classes))
        overlap = int((persons.fold(mass) > 0).sum(dim=1).max())
        if run.record is not None:  # how many events somebody's rows are in is about records
            overlap = width if len(persons) == len(run.people) else len(events)
        return cls(
            run,
            events,
            mass,
            persons,
            tuple(len(run.oracle.labels(name)) for name in run.attributes),
            overlap,
            width,
        )

    def measured(self, *, hard: bool, centre: NDArray[np.float64] | None = None) -> Tensor:
        """(persons, events) float64 Σ_r w_r·(h_r − c), c the mean over the event's members.

        Under record privacy that mean may not be looked at: `centre` (events,) gives another c.
        """
        run = self.run
        with torch.no_grad():
            everyone = torch.split(torch.arange(len(run.target)), 65_536)
            logits = torch.cat([run.outputs(part) for part in everyone])
        columns = []
        for number, event in enumerate(self.events):
            h = event.measured(logits, run.target.to(logits.device), hard=hard)
            mass = self.mass[:, number]
            mean = (mass @ h) / mass.sum() if centre is None else float(centre[number])
            columns.append(mass * (h - mean))
        return self.persons.fold(torch.stack(columns, dim=1))

    def inside(self, rows: Tensor, number: int) -> Tensor:
        """Those of the rows that belong to an event. Labels decide, never groups."""
        return self._members_of(rows, number).rows

    def _members_of(self, rows: Tensor, number: int) -> _Members:
        """Chunks are fixed, so this is worked out once for each of them."""
        key = (id(rows), number)
        if key not in self._members:
            member = self.mass[rows, number] > 0
            inside = rows if bool(member.all()) else rows[member]
            target = self.run.target[inside].to(self.run.device)
            mass, people = self.mass[inside, number], self.run.people[inside.numpy()]
            first = next(self.run.model.parameters())
            even = bool((mass == 1.0).all())
            members = _Members(rows, inside, mass, mass.to(first), target, people, even)
            self._members[key] = self._members[id(inside), number] = members
        return self._members[key]

    def gradients(
        self, number: int, inside: Tensor, kappa: float | None = None
    ) -> CentredGradients:
        """Centred gradients of w·h for rows of one event, added up by person."""
        run, event, members = self.run, self.events[number], self._members_of(inside, number)

        def scalar(outputs: Tensor) -> Tensor:
            h = event.h(logits_of(outputs, run.classes), members.target)
            return h * members.weight.to(h)

        slope = None if event.slope is None else _weighted(event.slope, members, run.classes)
        inputs = run.inputs_of(inside)
        grads = ChunkGradients.of(run.model, scalar, inputs, members.people, slope)
        return CentredGradients(grads, grads.fold(members.mass), kappa, self._checked(number))

    def _checked(self, number: int) -> bool:
        """Did this event have gradients in this round already?

        Checking once a round that they are finite is enough: later explosions show in outputs and
        losses, which are checked at every step.
        """
        before, self._rounds[number] = self._rounds.get(number), self.run.round
        return before == self.run.round

    def rehearse(self, kappa: float | None) -> None:
        """Values and gradients of every event for one chunk, looked at before anything is spent.

        What a notion or a model cannot do (no value per row, no gradient per row, NaN, rows that
        look at each other) is the caller's error, and known without a single attribute.
        """
        run = self.run
        for number, event in enumerate(self.events):
            candidates = (self.inside(chunk.rows, number) for chunk in run.chunks)
            inside = next(rows for rows in candidates if len(rows))
            try:
                with torch.no_grad():
                    logits, target = run.outputs(inside), run.target[inside].to(run.device)
                    scores = (event.h, event.decided or event.h)
                    values = [score(logits, target) for score in scores]
                    alone = event.h(logits[:1], target[:1])
                lengths = torch.from_numpy(self.gradients(number, inside, kappa).lengths)
            except IsonomyError:
                raise
            except Exception as error:  # a notion and a model may raise anything
                raise ConfigError(
                    f"the gradients of event {event.name!r} cannot be taken row by row: {error}"
                ) from error
            if any(value.shape != inside.shape for value in values):
                raise ConfigError(f"event {event.name!r} must give one value per row")
            if not all(bool(torch.isfinite(value).all()) for value in (*values, lengths)):
                raise ConfigError(
                    f"event {event.name!r} has values or gradients that are NaN or infinite; scale "
                    "the inputs, or look for NaN in the model"
                )
            if not torch.allclose(alone, values[0][:1], rtol=1e-3, atol=1e-5):
                raise ConfigError(
                    f"event {event.name!r} looks at several rows at once: its value for one row "
                    "must not depend on the others"
                )

    def labels(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of groups and events, for tables and plots."""
        run = self.run
        several = len(run.attributes) > 1  # whose groups may be called alike
        groups = tuple(
            f"{name}: {label}" if several else label
            for name in run.attributes
            for label in run.oracle.labels(name)
        )
        return groups, tuple(event.name for event in self.events)


def _weighted(
    slope_of_h: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], members: _Members, classes: int
) -> Slope:
    """w·h and its gradient in the outputs, from those of h in the logits."""

    def slope(outputs: Tensor) -> tuple[Tensor, Tensor]:
        h, gradient = slope_of_h(logits_of(outputs, classes), members.target)
        if members.even and gradient.ndim == 1:
            return h, gradient
        weight = members.weight.to(h)
        if gradient.ndim == 1:  # two classes: one number says it, whatever the outputs are
            return h * weight, gradient * weight
        gradient *= weight[:, None]
        if gradient.shape != outputs.shape:  # one logit, for class 1
            gradient = gradient[:, 1].reshape(outputs.shape)
        return h * weight, gradient

    return slope


def record_of(lam: Multipliers, release: Release) -> RoundRecord:
    """The largest released difference between two groups, its noise, and λ."""
    violation = np.array(lam.violation, dtype=np.float64) / ONE  # (groups, events)
    counts = np.array(lam.counts, dtype=np.float64) / lam.row_bound
    worst, deviation, start = 0.0, float("nan"), 0
    for size in lam.rule.sizes:
        for event in range(lam.rule.events):
            groups = [g for g in range(start, start + size) if counts[g, event] > 0]
            column = violation[groups, event]
            if len(groups) > 1 and column.max() - column.min() >= worst:
                worst = float(column.max() - column.min())
                ends = [groups[int(column.argmax())], groups[int(column.argmin())]]
                parts = release.deviation[ends] / counts[ends, event]
                # two groups mirror each other's noise; of more, two are nearly independent
                deviation = float(parts.sum() if size == 2 else np.hypot(*parts))
        start += size
    return RoundRecord(worst, deviation, np.array(lam.values()))


def released_integers(
    release: Release, norm: float, row_bound: int, sizes: tuple[int, ...]
) -> list[list[int]]:
    """The integers as released, without each attribute's last group (which was computed here)."""
    whole = np.rint(release.values * (row_bound / norm)).astype(np.int64)
    integers: list[list[int]] = []
    start = 0
    for size in sizes:
        integers += whole[start : start + size - 1].tolist()
        start += size
    return integers
