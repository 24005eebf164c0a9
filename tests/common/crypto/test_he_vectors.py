"""Two vectors added under one key: exact to the last bit of what a contribution may be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kits.noise_budget import noise_budget_bits

from isonomy.common.base.errors import CapacityError, ProtocolError
from isonomy.common.crypto.he_vectors import VectorEncryptor, VectorKey, parts_of
from isonomy.common.crypto.params import DEFAULT_PARAMETERS as PARAMS
from isonomy.common.crypto.params import Seeded, add_answers, check_answer
from isonomy.common.few_shot.rounds.sides import MAX_ABS

N = PARAMS.poly_degree


@pytest.fixture(scope="module")
def key() -> VectorKey:
    return VectorKey(PARAMS)


@pytest.fixture(scope="module")
def encryptor(key: VectorKey) -> VectorEncryptor:
    return VectorEncryptor(PARAMS, key.public)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, N))
def test_the_sum_of_two_is_exact(key, encryptor, seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-MAX_ABS + 1, MAX_ABS, (2, count))
    total = add_answers(PARAMS, [encryptor.encrypt(a), encryptor.encrypt(b)])
    assert (key.decrypt(total, count) == a + b).all()


@pytest.mark.parametrize("value", [MAX_ABS - 1, 1 - MAX_ABS])
def test_the_largest_numbers_add_up(key, encryptor, value: int) -> None:
    both = np.full(N, value, np.int64)
    total = add_answers(PARAMS, [encryptor.encrypt(both), encryptor.encrypt(both)])
    assert (key.decrypt(total, N) == 2 * both).all()
    assert noise_budget_bits(key._key, total) >= 5  # of about 15: two parties leave room


def test_a_ciphertext_has_the_format_of_an_answer(encryptor) -> None:
    made = encryptor.encrypt(np.arange(5))
    assert len(made) == PARAMS.answer_bytes == 131_072
    check_answer(PARAMS, made)
    assert made != encryptor.encrypt(np.arange(5))


def test_another_key_reads_nothing(encryptor) -> None:
    values = np.zeros(N, np.int64)
    wrong = VectorKey(PARAMS).decrypt(encryptor.encrypt(values), N)
    assert np.abs(wrong).max() > MAX_ABS


@pytest.mark.parametrize("values", [np.full(3, 2**43), np.zeros(N + 1, np.int64), np.zeros(3)])
def test_what_does_not_fit_is_refused(encryptor, values: np.ndarray) -> None:
    with pytest.raises(CapacityError):
        encryptor.encrypt(values)


def test_a_malformed_key_does_not_reach_seal(key) -> None:
    cut = Seeded(key.public.body[:-8], key.public.seed)
    high = Seeded(b"\xff" * len(key.public.body), key.public.seed)
    for public in (cut, high):
        with pytest.raises(ProtocolError):
            VectorEncryptor(PARAMS, public)


def test_parts() -> None:
    assert [parts_of(PARAMS, size) for size in (1, N, N + 1, 110_000)] == [1, 1, 2, 14]
