"""Pools, tasks and everything that must be refused before a budget is touched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from few_shot_kit import SeededBytes, save_pool, tiny_pool, tiny_settings
from pydantic import ValidationError

from isonomy.common.base.errors import ConfigError, DataError, VerificationError
from isonomy.common.few_shot.learning._state import pack, unpack
from isonomy.common.few_shot.learning.learners import CompanyLearner, RegulatorLearner
from isonomy.common.few_shot.learning.memory import run_in_memory
from isonomy.common.few_shot.learning.pool_file import load_pool
from isonomy.common.few_shot.learning.tasks import Sampler


def test_no_sample_is_twice_in_a_round_and_labels_are_in_order() -> None:
    pool, settings = tiny_pool(), tiny_settings()
    sampler = Sampler(pool, settings)
    for seed in range(20):
        tasks = sampler.draw(3, SeededBytes(seed))
        everyone = np.concatenate([tasks.support.ravel(), tasks.query.ravel()])
        assert len(set(everyone.tolist())) == len(everyone)
        assert pool.positive is not None
        for t in range(3):
            support = pool.labels[tasks.support[t]].reshape(4, 2)
            query = pool.labels[tasks.query[t]].reshape(4, 2)
            assert (support == support[:, :1]).all()
            assert (support == query).all()
            assert len(set(support[:, 0].tolist())) == 4
            halves = pool.positive[support[:, 0]]
            assert halves.tolist() == tasks.positive[t].tolist()
            assert halves.sum() == 2  # a task mixes the halves


def test_uses_stay_even() -> None:
    sampler = Sampler(tiny_pool(), tiny_settings())
    for seed in range(60):
        sampler.draw(2, SeededBytes(seed))
    assert sampler.uses.max() - sampler.uses.min() <= 3
    assert sampler.uses.sum() == 60 * 2 * 4 * 4


def test_choice_of_tasks_does_not_look_at_what_is_in_a_slot() -> None:
    pool = tiny_pool()
    assert pool.groups is not None
    other = replace(pool, inputs=-5 * pool.inputs, groups=1 - pool.groups)
    draws = [Sampler(p, tiny_settings()).draw(2, SeededBytes(3)) for p in (pool, other)]
    assert np.array_equal(draws[0].support, draws[1].support)
    assert np.array_equal(draws[0].query, draws[1].query)


BAD = {
    "fewer than": lambda p: replace(
        p, **{n: getattr(p, n)[5 * 12 - 9 :] for n in ("inputs", "labels", "groups")}
    ),
    "NaN": lambda p: replace(p, inputs=np.where(p.inputs > 1.5, np.nan, p.inputs)),
    "missing": lambda p: replace(p, groups=np.where(p.labels == 2, -1, p.groups).astype(np.int8)),
    "lacks one of the groups": lambda p: replace(p, groups=np.zeros(len(p), np.int8)),
    "one group": lambda p: replace(p, groups=None),
    "which classes count": lambda p: replace(p, positive=None),
    "shape": lambda p: replace(p, inputs=p.inputs[:, :2]),
    "one half has fewer": lambda p: replace(p, positive=np.arange(6) == 0),
}


@pytest.mark.parametrize("text", BAD)
def test_bad_pools_are_refused_before_anything_is_spent(text: str) -> None:
    with pytest.raises(DataError, match=text):
        RegulatorLearner(tiny_settings(method="pf_ld"), BAD[text](tiny_pool()))


def test_more_tasks_than_samples_are_refused_at_the_start() -> None:
    with pytest.raises(DataError, match="more samples than there are"):
        RegulatorLearner(tiny_settings(regulator_tasks=6), tiny_pool())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"epsilon": 0}, "no budget"),
        ({"query_noise": 0}, "query_noise"),
        ({"method": "pf_ld", "dual_noise": 0}, "dual_noise"),
        ({"method": "pf_ld", "learner": "reptile"}, "fomaml"),
        ({"delta": "2"}, "delta"),
        ({"method": "best"}, "Input should be"),
        ({"model": "conv4"}, "input_shape"),
        ({"inner_norm": 0}, "inner_norm"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, object], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        tiny_settings(**changes)


def test_models_that_differ_are_refused_before_the_first_round() -> None:
    company = CompanyLearner(tiny_settings(width=7), tiny_pool())
    regulator = RegulatorLearner(tiny_settings(), tiny_pool())
    with pytest.raises(VerificationError, match="different models"):
        run_in_memory(company, regulator, 1)
    with pytest.raises(ConfigError, match="parameters"):
        regulator.contribute(0, company.theta())
    assert not regulator.accounts.spent.any()


def test_a_pool_survives_a_file(tmp_path: Path) -> None:
    pool = tiny_pool()
    save_pool(pool, tmp_path / "pool.npz")
    back = load_pool(tmp_path / "pool.npz")
    for name in ("inputs", "labels", "groups", "positive"):
        assert np.array_equal(getattr(back, name), getattr(pool, name))
    (tmp_path / "no.npz").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(DataError):
        load_pool(tmp_path / "no.npz")
    with pytest.raises(DataError, match="does not exist"):
        load_pool(tmp_path / "absent.npz")
    np.savez(tmp_path / "gaps.npz", inputs=pool.inputs, labels=pool.labels,
             groups=np.full(len(pool), np.nan), positive=pool.positive)  # fmt: skip
    with pytest.raises(DataError, match="missing"):
        RegulatorLearner(tiny_settings(method="pf_ld"), load_pool(tmp_path / "gaps.npz"))


def test_states_are_the_same_bytes_and_reading_is_total() -> None:
    arrays = {"a": np.arange(3), "b": np.array([[0.5]], np.float32), "c": np.array([True])}
    state = pack(arrays)
    assert state == pack(arrays)
    assert all(np.array_equal(unpack(state)[name], arrays[name]) for name in arrays)
    for wrong in (b"", state[:-1], state + b"x", b"\xff" * 40, b"\x00\x00\x00\x02[]"):
        with pytest.raises(DataError):
            unpack(wrong)
