"""The benchmark's parts run and count right; its numbers are shown, never asserted."""

from __future__ import annotations

from isonomy.common.crypto.params import DEFAULT_PARAMETERS as P
from isonomy.company.speed._pads import measure_pads
from isonomy.company.speed.sums import measure_exchange


def test_an_exchange_counts_its_bytes() -> None:
    exchange = measure_exchange(300, 5)
    blocks = -(-300 // exchange.block)
    assert (exchange.people, exchange.columns) == (300, 5)
    assert blocks * P.column_bytes < exchange.bytes_down < blocks * (P.column_bytes + 200)
    assert P.answer_bytes < exchange.bytes_up < P.answer_bytes + 50
    assert exchange.company_ms > 0
    assert exchange.regulator_ms > 0


def test_pads_count_their_bytes() -> None:
    cost = measure_pads(300, 5, repeats=1)
    assert 300 * 5 * 4 < cost.bytes_up < 300 * 5 * 4 + 400
    check = (256 + 1 + 256) * 16  # of the one frame: random bits, their hash, the hashes of columns
    assert 32 <= cost.transfer_bytes_per_person - check / 300 < 34
    assert cost.company_ms > 0
    assert cost.regulator_ms > 0
