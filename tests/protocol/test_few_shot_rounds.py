"""A few-shot run through relay and TLS on loopback, with learners that need no torch."""

from __future__ import annotations

from pathlib import Path

from few_shot_kit import ROUNDS, SIZE, Company, in_memory, pair

from isonomy.common.ledger import verify_ledger


def test_the_encrypted_run_equals_the_plain_run_bit_for_bit(tmp_path: Path) -> None:
    rounds = []
    with pair(tmp_path) as both, both.ledger() as ledger:
        company = Company()
        with both.regulator(both.desk(ledger)) as outcome:
            assert both.train(company, on_round=rounds.append) == ROUNDS
    assert outcome.error is None
    assert company.theta().tobytes() == in_memory().tobytes()
    found = verify_ledger(tmp_path / "regulator" / "ledger.jsonl")
    assert found.debits == ROUNDS
    assert [own.number for own in rounds] == [1, 2, 3, 4]
    assert rounds[1].wire_bytes > 2 * 3 * 131_072 + 4 * SIZE + 196_608
