"""The relay's adder of few-shot rounds: places, sizes, memory, and no second thoughts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from round_kit import make_federation

from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.base.errors import ProtocolError
from isonomy.common.crypto.params import DEFAULT_PARAMETERS as PARAMS
from isonomy.common.crypto.params import add_answers
from isonomy.common.wire.envelopes import Data, Envelope, parse, payload_digest
from isonomy.common.wire.messages import SumPart, decode, encode
from isonomy.server.relay._rounds import RoundAdder

RNG = np.random.default_rng(2)
PARTS = 3


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> FewShotPlan:
    return make_federation(tmp_path_factory.mktemp("federation")).plan  # type: ignore[return-value]


@pytest.fixture
def adder(plan: FewShotPlan) -> RoundAdder:
    return RoundAdder(plan.public())


def ciphertext() -> bytes:
    return RNG.integers(0, PARAMS.primes[0], 2 * PARAMS.poly_degree, np.uint64).tobytes()


def envelope(sender: str, index: int, part: bytes, attempt: str = "round-0", **data: Any) -> Any:
    payload = encode(SumPart(data.pop("says", index), part))
    fields = {"last": index == PARTS - 1, "chunk": 0, "chunks": 1, **data}
    digest = payload_digest(payload)
    body = Data(1, index, payload=payload, digest=digest, signature=b"s" * 64, **fields)
    other = "regulator" if sender == "company" else "company"
    return Envelope(
        sender, other, b"p" * 32, body, 1, 0, b"l" * 16, query_id=attempt, purpose="sum"
    )


def passed(adder: RoundAdder, sent: Envelope) -> Data:
    body = parse(adder.take(sent, b"")).body
    assert isinstance(body, Data)
    assert body.summed
    assert not body.payload
    assert body.digest == sent.body.digest  # type: ignore[union-attr]
    return body


def test_both_are_added_and_neither_passes(adder: RoundAdder) -> None:
    mine, theirs = ciphertext(), ciphertext()
    assert not passed(adder, envelope("company", 0, mine)).total
    total = decode(passed(adder, envelope("regulator", 0, theirs)).total, SumPart)
    assert total == SumPart(0, add_answers(PARAMS, [mine, theirs]))
    again = decode(passed(adder, envelope("regulator", 0, theirs)).total, SumPart)
    assert again == total  # an envelope that is sent again


@pytest.mark.parametrize("attempt", ["round-0", "round-1"])
def test_without_the_company_s_there_is_no_total(adder: RoundAdder, attempt: str) -> None:
    passed(adder, envelope("company", 1, ciphertext()))
    assert not passed(adder, envelope("regulator", 0, ciphertext(), attempt)).total


def test_a_new_attempt_takes_the_place_of_the_old_one(adder: RoundAdder) -> None:
    for attempt in range(20):
        for index in range(PARTS):
            passed(adder, envelope("company", index, ciphertext(), f"round-{attempt}"))
    assert len(adder._stored) == PARTS  # whatever a company sends
    assert not passed(adder, envelope("regulator", 0, ciphertext(), "round-3")).total


@pytest.mark.parametrize("sender", ["company", "regulator"])
def test_a_ciphertext_is_not_replaced(adder: RoundAdder, sender: str) -> None:
    passed(adder, envelope("company", 0, ciphertext()))
    passed(adder, envelope("regulator", 0, ciphertext()))
    with pytest.raises(ProtocolError, match="replaces"):
        adder.take(envelope(sender, 0, ciphertext()), b"")


@pytest.mark.parametrize(
    "wrong",
    [
        {"index": 3},
        {"index": 1, "last": True},
        {"index": 2, "last": False},
        {"index": 0, "says": 1},
        {"index": 0, "chunks": 2},
    ],
)
def test_a_wrong_place_is_refused(adder: RoundAdder, wrong: dict[str, Any]) -> None:
    index = wrong.pop("index")
    with pytest.raises(ProtocolError):
        adder.take(envelope("company", index, ciphertext(), **wrong), b"")


@pytest.mark.parametrize("part", [b"", bytes(131_064), b"\xff" * 131_072])
def test_a_malformed_ciphertext_is_refused(adder: RoundAdder, part: bytes) -> None:
    with pytest.raises(ProtocolError):
        adder.take(envelope("company", 0, part), b"")


def test_something_else_than_a_ciphertext_is_refused(adder: RoundAdder) -> None:
    sent = envelope("company", 0, ciphertext())
    with pytest.raises(ProtocolError):
        adder.take(replace(sent, body=replace(sent.body, payload=b"x")), b"")
