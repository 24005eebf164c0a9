"""Runs that protect whole records: the cases, a tape of their releases, and other records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import Federation, federation, labels
from gradient_kit import Toy, linear, regulator, toy, trainer
from numpy.typing import NDArray
from torch import nn

from isonomy.common.privacy.dual import DualKeeper
from isonomy.common.sums.local import LocalChannel
from isonomy.company.gradient.fermi.fermi import DpFermi
from isonomy.company.gradient.pf_ld.pf_ld import PFLD
from isonomy.company.gradient.record import privacy as record_privacy
from isonomy.company.gradient.record.privacy import RecordPrivacy, RecordRun
from isonomy.company.gradient.run.notions import Event
from isonomy.company.gradient.run.strategy import Run

OWN = RecordPrivacy(epsilon=20.0)


PLAN = 10.0


FAST = {"rounds": 2, "local_steps": 2, "warmup_steps": 3, "record_privacy": OWN}


Strategies = Callable[[], Any]


def score_parity() -> Any:
    class ScoreParity:
        name = "score_parity"

        def events(self, classes: int) -> tuple[Event, ...]:
            return (Event("score", lambda z, y: z[:, 1] - z[:, 0], bound=8.0),)

    return ScoreParity()


CASES: dict[str, tuple[Strategies, int, int, int | None]] = {  # strategy, classes, groups, chunk
    "pf_ld": (lambda: PFLD(primal_norm=0.5), 2, 2, None),
    "pf_ld, samples": (lambda: PFLD(primal_norm=0.5), 2, 2, 750),
    "pf_ld, odds, classes": (lambda: PFLD("equalized_odds", primal_norm=0.5), 3, 3, 1500),
    "pf_ld, own notion": (lambda: PFLD(score_parity(), primal_norm=0.5, step=0.1), 2, 3, None),
    "pf_ld, two attributes": (lambda: PFLD(primal_norm=0.5), 2, 3, None),
    "fermi": (lambda: DpFermi(clip=0.5, strength=2.0), 2, 2, None),
    "fermi, samples": (lambda: DpFermi(clip=0.5, strength=2.0), 2, 3, 1000),
    "fermi, classes": (lambda: DpFermi(clip=0.5, ascent="gradient", strength=0.5), 3, 3, None),
    "fermi, odds, classes": (lambda: DpFermi("equalized_odds", clip=0.5), 3, 2, None),
}


def case_data(name: str, people: int = 3000) -> tuple[Any, Toy, nn.Module, int | None]:
    make, classes, groups, chunk = CASES[name]
    model = linear(outputs=1 if classes == 2 else classes)
    return make(), toy(people, classes=classes, groups=groups), model, chunk


class Tape:
    """What passed `RecordRun.released`, and what passes instead."""

    def __init__(self, forced: list[tuple[str, Any]] | None = None) -> None:
        self.seen: list[tuple[str, NDArray[np.float64]]] = []
        self.forced = forced

    def __call__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = RecordRun.released

        def released(run: RecordRun, name: str, values: Any) -> Any:
            own = np.asarray(real(run, name, values), np.float64)
            self.seen.append((name, own.copy()))
            if self.forced is None:
                return own
            told, value = self.forced[len(self.seen) - 1]
            assert told == name
            return value

        monkeypatch.setattr(RecordRun, "released", released)
        # The regulator's λ follows its own answers; a run that is made to hear others cannot agree.
        monkeypatch.setattr(DualKeeper, "check", lambda *query: None)
        monkeypatch.setattr(LocalChannel, "confirm_multipliers", lambda *place: None)


def train_case(
    folder: Path, name: str, data: Toy, tape: Tape, home: Federation | None = None
) -> Any:
    strategy, _, model, chunk = case_data(name)
    folder.mkdir()
    home = home or home_of(folder, name, data)
    with pytest.MonkeyPatch.context() as patch:
        tape(patch)
        patch.setattr(record_privacy.os, "urandom", lambda n: b"s" * n)  # the same samples, noise
        own = trainer(
            model, strategy, home.local(), chunk_size=chunk, attribute=attribute_names(name), **FAST
        )
        return own.fit(data.x, data.y)


def attribute_names(name: str) -> list[str]:
    return ["sex", "age"] if "two attributes" in name else ["sex"]


def home_of(folder: Path, name: str, data: Toy) -> Federation:
    """The regulator of a case; a second attribute goes by halves of the cohort."""
    groups = {"sex": [f"g{i}" for i in range(int(data.group.max()) + 1)], "age": ["old", "young"]}
    values = {
        "sex": labels(data.group, groups["sex"]),
        "age": ["young", "old"] * (len(data.y) // 2),
    }
    own = attribute_names(name)
    return federation(
        folder, {n: values[n] for n in own}, {n: groups[n] for n in own}, epsilon=PLAN
    )


def loss_run(folder: Path, data: Toy, **settings: Any) -> Run:
    """A run that only takes loss steps, with its noise solved."""
    from isonomy.company.gradient.training.checks import plan_record, prepare_run

    own = trainer(
        linear(), PFLD(primal_norm=0.5), regulator(folder, data.group, epsilon=1.0).local(),
        **{**FAST, "record_privacy": RecordPrivacy(epsilon=3.0), **settings},
    )  # fmt: skip
    run = prepare_run(own, data.x, data.y, None, torch.Generator())
    plan_record(run, own.strategy)
    return run
