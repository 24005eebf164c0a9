"""Whole records: what the model is made of; the same through breaks and by every channel."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gradient_kit import Toy, linear, regulator, same, toy, trainer
from record_kit import (
    CASES,
    FAST,
    PLAN,
    Tape,
    case_data,
    train_case,
)

from isonomy.common.base.errors import ConfigError
from isonomy.company.gradient.pf_ld.pf_ld import PFLD
from isonomy.company.gradient.record import privacy as record_privacy
from isonomy.company.gradient.record.privacy import RecordPrivacy, RecordRun


def _other_record(data: Toy, person: int = 7) -> Toy:
    """One person with another label and far-out features; the attribute is another one, too."""
    x, y, group = data.x.copy(), data.y.copy(), data.group.copy()
    x[person] = [40.0, -30.0, 5.0, 9.0]
    y[person] = (y[person] + 1) % (y.max() + 1)
    group[person] = (group[person] + 1) % (group.max() + 1)
    return Toy(x, y, group)


@pytest.mark.parametrize("name", CASES)
def test_the_model_is_a_function_of_the_releases(tmp_path: Path, name: str) -> None:
    """Made to hear the releases of other data, a run ends with the other data's model.

    Whatever else of the records reached the model (a mean, a quantile, a warm-up step, the span of
    the gradients, a count) would show here.
    """
    data = case_data(name)[1]
    first = Tape()
    here = train_case(tmp_path / "a", name, data, first)
    again = Tape(first.seen)
    there = train_case(tmp_path / "b", name, _other_record(data), again)
    assert same(here.model, there.model)
    for own, other in zip(here.history, there.history, strict=True):
        assert own.violation == other.violation
        assert np.array_equal(own.multipliers, other.multipliers)
        assert math.isnan(own.loss)  # not released, so not told
        assert own.epsilon_spent == other.epsilon_spent
    assert here.epsilons == there.epsilons
    apart = [
        not np.array_equal(a, b) for (_, a), (_, b) in zip(first.seen, again.seen, strict=True)
    ]
    assert any(apart)  # the record was seen: by the releases, and by nothing else


def test_what_was_spent_does_not_tell_who_was_drawn(tmp_path: Path) -> None:
    """The most that somebody spent is the budget of whoever was drawn most, if their label was
    asked about: a figure about one record, without noise."""
    data, results = toy(600, classes=2), []
    first, drawn, made = Tape(), [], RecordRun.of
    for number, y in enumerate((data.y, data.y.copy())):
        (folder := tmp_path / str(number)).mkdir()
        home = regulator(folder, data.group, epsilon=PLAN)
        if number:  # another label for those who were drawn most: the query leaves them out
            y[drawn[0].times == drawn[0].times[y == 1].max()] = 0
        with pytest.MonkeyPatch.context() as patch:
            (Tape(first.seen) if number else first)(patch)
            patch.setattr(RecordRun, "of", lambda *a, **k: drawn.append(made(*a, **k)) or drawn[-1])
            patch.setattr(record_privacy.os, "urandom", lambda n: b"s" * n)
            strategy = PFLD("equal_opportunity", primal_norm=0.5)
            settings = {**FAST, "record_privacy": RecordPrivacy(epsilon=2000.0)}
            own = trainer(linear(), strategy, home.local(), chunk_size=75, **settings)
            results.append((own.fit(data.x, y), own.oracle.budget.spent_units))
    (here, spent), (there, other) = results
    assert spent != other  # the company's own book, which nobody else is shown
    assert here.epsilons == there.epsilons
    assert here.epsilons.spent == here.epsilons.cap
    assert [r.epsilon_spent for r in here.history] == [r.epsilon_spent for r in there.history]


def test_a_broken_run_ends_with_the_same_model(tmp_path: Path) -> None:
    """Samples, noise and accounts go on where they were; other data are refused."""
    data = toy(200)
    home = regulator(tmp_path, data.group, epsilon=PLAN)

    def made(**more: Any) -> Any:
        return trainer(
            linear(), PFLD(primal_norm=0.5), home.local(), chunk_size=50,
            **{**FAST, "rounds": 3, "checkpoint": tmp_path / "c", **more},
        )  # fmt: skip

    def stop(own: Any, record: Any) -> None:
        if record.round == 2:
            raise InterruptedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_privacy.os, "urandom", lambda n: b"s" * n)
        whole = made(checkpoint=None).fit(data.x, data.y)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_privacy.os, "urandom", lambda n: b"s" * n)
        with pytest.raises(InterruptedError):
            made(callbacks=[stop]).fit(data.x, data.y)  # stored answers: the same noise
    spent = home.local().budget.spent_units
    result = made().fit(data.x, data.y, resume=tmp_path / "c")
    assert same(whole.model, result.model)
    assert result.epsilons.as_in_papers == whole.epsilons.as_in_papers
    assert spent == 0
    other = data.x.copy()
    other[0] += 1
    with pytest.raises(ConfigError, match="another run: data differ"):
        made().fit(other, data.y, resume=tmp_path / "c")


@pytest.mark.parametrize("name", ["pf_ld, odds, classes", "fermi, odds, classes"])
def test_the_encrypted_oracle_gives_the_same_model(tmp_path: Path, name: str) -> None:
    """Bit for bit; PF-LD's λ is computed by the regulator as well, from noised totals only."""
    made = []
    for encrypted in (False, True):
        folder = tmp_path / str(encrypted)
        folder.mkdir()
        strategy, data, model, _ = case_data(name, 1200)
        home = regulator(folder, data.group, epsilon=4 * PLAN)
        oracle = home.company() if encrypted else home.local()
        settings = {**FAST, "rounds": 1, "record_privacy": RecordPrivacy(epsilon=100.0)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(record_privacy.os, "urandom", lambda n: b"s" * n)
            own = trainer(model, strategy, oracle, **settings)
            own.fit(data.x, data.y, ids=oracle.cohort.ids)
        made.append(model)
    assert same(*made)


def test_records_protected_and_still_fair(tmp_path: Path) -> None:
    """With people enough, noise on everything still lets much of the gap close."""
    data = toy(6000)
    home = regulator(tmp_path, data.group, epsilon=8.0, seed=None)
    result = trainer(
        linear(), PFLD(primal_norm=0.4, step=1.5), home.local(), rounds=10, local_steps=10,
        warmup_steps=50, record_privacy=RecordPrivacy(epsilon=8.0),
        optimiser=lambda p: torch.optim.Adam(p, lr=0.05),
    ).fit(data.x, data.y)  # fmt: skip
    with torch.no_grad():
        chosen = (result.model(torch.from_numpy(data.x))[:, 0] > 0).numpy()
    gap = abs(chosen[data.group == 0].mean() - chosen[data.group == 1].mean())
    base = abs(data.y[data.group == 0].mean() - data.y[data.group == 1].mean())
    assert base > 0.35
    assert gap < 0.6 * base
    assert np.mean(chosen == data.y) > 0.6
