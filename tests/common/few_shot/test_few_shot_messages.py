"""What the two sides of a few-shot run say: whatever arrives is checked, or refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isonomy.common.base.errors import BudgetExceeded, IsonomyError, ModelsDiffer, ProtocolError
from isonomy.common.crypto.he_vectors import VectorKey
from isonomy.common.crypto.params import DEFAULT_PARAMETERS as PARAMS
from isonomy.common.crypto.params import Seeded
from isonomy.common.few_shot.rounds._messages import (
    RoundReceipt,
    RoundRequest,
    dump_refusal,
    parse_receipt,
    parse_request,
    theta_hash,
)

THETA = np.linspace(-3, 3, 100, dtype=np.float32)
PUBLIC = VectorKey(PARAMS).public


def test_each_message_comes_back_as_it_was() -> None:
    request = parse_request(RoundRequest(7, b"a" * 16, PUBLIC, THETA).dump(), PARAMS, 100)
    assert (request.number, request.attempt, request.public) == (7, b"a" * 16, PUBLIC)
    assert request.theta.tobytes() == THETA.tobytes()
    assert theta_hash(request.theta) == theta_hash(THETA)
    receipt = RoundReceipt(7, b"a" * 16, b"h" * 32, 9, b"l" * 32)
    assert parse_receipt(receipt.dump()) == receipt


@pytest.mark.parametrize("error", [ModelsDiffer("other"), BudgetExceeded("spent")])
def test_a_refusal_is_raised_as_what_it_is(error: IsonomyError) -> None:
    with pytest.raises(type(error), match=str(error)):
        parse_receipt(dump_refusal(error))


def test_the_bytes_stay_what_they_are() -> None:
    """Golden: another version must read what this one wrote."""
    receipt = RoundReceipt(7, b"a" * 16, b"h" * 32, 9, b"l" * 32, b"s" * 64)
    tail = "61" * 16 + "68" * 32 + "0900000000000000" + "6c" * 32 + "73" * 64
    assert receipt.dump().hex() == "52435054" + "0700000000000000" + tail
    request = RoundRequest(7, b"a" * 16, PUBLIC, THETA).dump()
    assert request[:36].hex() == "52515354" + "0700000000000000" + "61" * 16 + "6400000000000000"
    assert request[36:-400] == PUBLIC.body + PUBLIC.seed
    assert request[-400:] == THETA.astype("<f4").tobytes()


def test_what_a_regulator_says_of_its_own_files_stays_at_home() -> None:
    with pytest.raises(IsonomyError) as caught:
        parse_receipt(dump_refusal(IsonomyError("/srv/regulator/tasks/secret.bin")))
    assert "/srv" not in str(caught.value)


def test_a_key_with_a_residue_above_its_prime_is_refused() -> None:
    body = bytearray(PUBLIC.body)
    body[:8] = PARAMS.primes[0].to_bytes(8, "little")
    with pytest.raises(ProtocolError, match="below its prime"):
        parse_request(
            RoundRequest(0, b"a" * 16, Seeded(bytes(body), PUBLIC.seed), THETA).dump(), PARAMS, 100
        )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_parameters_that_are_no_numbers_are_refused(value: float) -> None:
    theta = THETA.copy()
    theta[3] = value
    with pytest.raises(ProtocolError, match="finite"):
        parse_request(RoundRequest(0, b"a" * 16, PUBLIC, theta).dump(), PARAMS, 100)


@pytest.mark.parametrize("size", [99, 101, 0])
def test_another_number_of_parameters_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError):
        parse_request(RoundRequest(0, b"a" * 16, PUBLIC, THETA).dump(), PARAMS, size)


@given(raw=st.binary(max_size=300), tag=st.sampled_from([b"", b"RQST", b"RCPT", b"RFSL"]))
def test_parsers_are_total(raw: bytes, tag: bytes) -> None:
    for parse in (lambda: parse_request(tag + raw, PARAMS, 3), lambda: parse_receipt(tag + raw)):
        try:
            parse()
        except IsonomyError:
            continue
