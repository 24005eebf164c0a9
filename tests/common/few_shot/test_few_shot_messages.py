"""What the two sides of a few-shot run say: whatever arrives is checked, or refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isonomy.common.base.errors import BudgetExceeded, IsonomyError, ModelsDiffer, ProtocolError
from isonomy.common.crypto.ciphertexts import Seeded
from isonomy.common.crypto.he_vectors import VectorKey
from isonomy.common.crypto.params import DEFAULT_PARAMETERS as PARAMS
from isonomy.common.few_shot.rounds.messages import (
    Ask,
    Begin,
    Given,
    Ready,
    parse_company,
    parse_regulator,
    refused,
    theta_hash,
)

THETA = np.linspace(-3, 3, 100, dtype=np.float32)
PUBLIC = VectorKey(PARAMS).public


def test_each_message_comes_back_as_it_was() -> None:
    begin = Begin(b"f" * 32, 100)
    assert parse_company(begin.dump(), PARAMS, 100) == begin
    ask = parse_company(Ask(7, b"a" * 16, PUBLIC, THETA).dump(), PARAMS, 100)
    assert isinstance(ask, Ask)
    assert (ask.number, ask.attempt, ask.public) == (7, b"a" * 16, PUBLIC)
    assert ask.theta.tobytes() == THETA.tobytes()
    assert theta_hash(ask.theta) == theta_hash(THETA)
    for said in (Ready(b"f" * 32, 100, 3), Given(7, b"a" * 16, b"h" * 32, 9, b"l" * 32)):
        assert parse_regulator(said.dump()) == said


@pytest.mark.parametrize("error", [ModelsDiffer("other"), BudgetExceeded("spent")])
def test_a_refusal_is_raised_as_what_it_is(error: IsonomyError) -> None:
    with pytest.raises(type(error), match=str(error)):
        parse_regulator(refused(error))


def test_the_bytes_stay_what_they_are() -> None:
    """Golden: another version must read what this one wrote."""
    given = Given(7, b"a" * 16, b"h" * 32, 9, b"l" * 32, b"s" * 64)
    tail = "61" * 16 + "68" * 32 + "0900000000000000" + "6c" * 32 + "73" * 64
    assert given.dump().hex() == "4749564e" + "0700000000000000" + tail
    assert Begin(b"f" * 32, 100).dump().hex() == "4245474e" + "66" * 32 + "6400000000000000"
    ready = "52454459" + "66" * 32 + "6400000000000000" + "0300000000000000"
    assert Ready(b"f" * 32, 100, 3).dump().hex() == ready
    ask = Ask(7, b"a" * 16, PUBLIC, THETA).dump()
    assert ask[:36].hex() == "524f4e44" + "0700000000000000" + "61" * 16 + "6400000000000000"
    assert ask[36:-400] == PUBLIC.body + PUBLIC.seed
    assert ask[-400:] == THETA.astype("<f4").tobytes()


def test_what_a_regulator_says_of_its_own_files_stays_at_home() -> None:
    with pytest.raises(IsonomyError) as caught:
        parse_regulator(refused(IsonomyError("/srv/regulator/tasks/secret.bin")))
    assert "/srv" not in str(caught.value)


def test_a_key_with_a_residue_above_its_prime_is_refused() -> None:
    body = bytearray(PUBLIC.body)
    body[:8] = PARAMS.primes[0].to_bytes(8, "little")
    with pytest.raises(ProtocolError, match="below its prime"):
        parse_company(
            Ask(0, b"a" * 16, Seeded(bytes(body), PUBLIC.seed), THETA).dump(), PARAMS, 100
        )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_parameters_that_are_no_numbers_are_refused(value: float) -> None:
    theta = THETA.copy()
    theta[3] = value
    with pytest.raises(ProtocolError, match="finite"):
        parse_company(Ask(0, b"a" * 16, PUBLIC, theta).dump(), PARAMS, 100)


@pytest.mark.parametrize("size", [99, 101, 0])
def test_another_number_of_parameters_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError):
        parse_company(Ask(0, b"a" * 16, PUBLIC, THETA).dump(), PARAMS, size)


@given(raw=st.binary(max_size=300), tag=st.sampled_from([b"", b"BEGN", b"ROND", b"REDY", b"GIVN"]))
def test_parsers_are_total(raw: bytes, tag: bytes) -> None:
    for parse in (lambda: parse_company(tag + raw, PARAMS, 3), lambda: parse_regulator(tag + raw)):
        try:
            parse()
        except IsonomyError:
            continue
