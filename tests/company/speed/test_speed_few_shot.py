"""`isonomy bench few-shot` measures what it says, on a model small enough for a test."""

from __future__ import annotations

import pytest

from isonomy.common.agreements.few_shot_settings import FewShotSettings
from isonomy.company.speed.few_shot import ROUNDS, measure


@pytest.mark.slow
def test_a_round_of_a_small_model() -> None:
    settings = FewShotSettings(
        model="mlp",
        width=8,
        input_shape=(6,),
        rounds=ROUNDS,
        inner_noise=2_000_000,
        query_noise=2_000_000,
    )
    found = measure(lambda _: None, settings)
    assert found["parameters"] == 6 * 8 + 8 + 8 * 8 + 8 + 8 * 5 + 5
    assert found["bytes_per_round"] > 4 * found["parameters"] + 196_608 + 2 * 131_072
    assert 0 < found["plain_s"] < 30
    assert found["ratio"] == pytest.approx(found["encrypted_s"] / found["plain_s"], rel=0.2)
