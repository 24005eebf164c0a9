"""A few-shot run through relay and TLS on loopback, with learners that need no torch."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from round_kit import (
    ROUNDS,
    SIZE,
    Company,
    Pair,
    Regulator,
    few_shot_settings,
    in_memory,
    pair,
)
from session_kit import FAST

from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.base.errors import (
    BudgetExceeded,
    ModelsDiffer,
    PartyTimeout,
    ProtocolError,
    ReplayRefused,
    SessionClosed,
    VerificationError,
)
from isonomy.common.crypto.he_vectors import VectorEncryptor, VectorKey
from isonomy.common.crypto.params import DEFAULT_PARAMETERS
from isonomy.common.few_shot.rounds import serving as round_serving
from isonomy.common.few_shot.rounds._messages import RoundReceipt, RoundRequest
from isonomy.common.few_shot.rounds._rounds import Attempt
from isonomy.common.few_shot.rounds.session import RoundSummary, train
from isonomy.common.few_shot.rounds.state import CompanyState
from isonomy.common.ledger.ledger import verify_ledger
from isonomy.server.relay._rounds import RoundAdder


class Stop(Exception):  # noqa: N818
    """The test ends a run here."""


def stop_after(number: int) -> Any:
    def stop(summary: RoundSummary) -> None:
        if summary.number == number:
            raise Stop

    return stop


def debits(folder: Path) -> int:
    return verify_ledger(folder / "regulator" / "ledger.jsonl").debits


def one_run(both: Pair, company: Company, desk: Any, **options: Any) -> Any:
    """A session to its end: what the company's side raised or returned, and the regulator's."""
    with both.regulator(desk) as outcome:
        try:
            result: Any = both.train(company, **options)
        except Exception as error:
            result = error
    return result, outcome


def test_the_encrypted_run_equals_the_plain_run_bit_for_bit(tmp_path: Path) -> None:
    rounds: list[RoundSummary] = []
    with pair(tmp_path) as both, both.ledger() as ledger:
        company = Company()
        result, outcome = one_run(both, company, both.desk(ledger), on_round=rounds.append)
        passed = both.relay.summary()["by_purpose"]
    assert (result, outcome.error) == (ROUNDS, None)
    assert company.theta().tobytes() == in_memory().tobytes()
    assert debits(tmp_path) == ROUNDS
    assert [summary.number for summary in rounds] == [1, 2, 3, 4]
    expected = 4 * SIZE + 196_608 + 2 * 3 * 131_072  # θ, key, both sides' ciphertexts
    assert expected < rounds[1].wire_bytes < expected + 1000
    # Of the company's ciphertexts only the envelopes went on: a total per piece, no more.
    assert passed["sum"] < ROUNDS * 3 * (131_072 + 2_000)


def test_the_relay_never_passes_a_ciphertext_of_either_side_on(tmp_path: Path) -> None:
    leaks = []
    with pair(tmp_path) as both, both.ledger() as ledger:
        original = RoundAdder.take

        def spy(self: RoundAdder, envelope: Any, raw: bytes) -> bytes:
            passed = original(self, envelope, raw)
            part = bytes(envelope.body.payload)[16:-16]
            leaks.append(part in passed)
            return passed

        RoundAdder.take = spy  # type: ignore[method-assign]
        try:
            one_run(both, Company(), both.desk(ledger), on_round=stop_after(1))
        finally:
            RoundAdder.take = original  # type: ignore[method-assign]
    assert leaks == [False] * 6


# --- Going on -------------------------------------------------------------------------------------


def test_a_killed_company_goes_on_after_its_last_round(tmp_path: Path) -> None:
    with pair(tmp_path) as both, both.ledger() as ledger:
        desk = both.desk(ledger)
        first, _ = one_run(both, Company(), desk, on_round=stop_after(2))
        again = Company()
        second, outcome = one_run(both, again, desk)
    assert isinstance(first, Stop)
    assert (second, outcome.error) == (ROUNDS, None)
    assert again.requested == [2, 3]
    assert again.theta().tobytes() == in_memory().tobytes()
    assert debits(tmp_path) == ROUNDS


def test_a_company_killed_before_it_saved_gets_the_same_contribution(tmp_path: Path) -> None:
    learner = Regulator()
    with pair(tmp_path) as both, both.ledger() as ledger:
        desk = both.desk(ledger, lambda: learner)
        company = Company()
        company.step = lambda number, total: (_ for _ in ()).throw(Stop)  # type: ignore[method-assign]
        first, _ = one_run(both, company, desk)
        again = Company()
        second, outcome = one_run(both, again, desk)
    assert isinstance(first, Stop)
    assert (second, outcome.error) == (ROUNDS, None)
    assert learner.learned == [0, 1, 2, 3]  # round 0 was not learned twice
    assert again.theta().tobytes() == in_memory().tobytes()
    assert debits(tmp_path) == ROUNDS


def test_a_killed_regulator_goes_on_with_its_stored_round(tmp_path: Path) -> None:
    """Its process ends after the record of a round was written and before anything left."""
    with pair(tmp_path) as both:
        company, results = Company(), []
        worker = threading.Thread(target=lambda: results.append(both.train(company)))
        with both.ledger() as ledger:
            desk = both.desk(ledger)
            answer = round_serving.encrypted_parts

            def die(*arguments: Any) -> Any:
                if ledger.answers(both.plan.hash) == 2:
                    raise Stop
                return answer(*arguments)

            ticket = both.relay.issue_ticket("regulator", "regulator")
            session = both.federation.session(ticket).start()
            worker.start()
            round_serving.encrypted_parts = die
            try:
                with pytest.raises(Stop):
                    round_serving.serve_rounds(session, desk)
            finally:
                round_serving.encrypted_parts = answer
            session._ending = True  # gone without a word
            session._stream.stop()
        learner = Regulator()
        with both.ledger() as ledger, both.regulator(both.desk(ledger, lambda: learner)):
            worker.join(30)
    assert results == [ROUNDS]
    assert learner.learned == [2, 3]  # round 1 came from the disk
    assert company.theta().tobytes() == in_memory().tobytes()
    assert debits(tmp_path) == ROUNDS


def test_a_killed_relay_loses_its_parts_and_the_round_is_sent_again(tmp_path: Path) -> None:
    rounds: list[RoundSummary] = []
    with pair(tmp_path) as both, both.ledger() as ledger:
        original = RoundAdder.take

        def forgetful(self: RoundAdder, envelope: Any, raw: bytes) -> bytes:
            if envelope.sender == "regulator" and not rounds and not losses:
                losses.append(True)
                self._stored.clear()
            return original(self, envelope, raw)

        losses: list[bool] = []
        RoundAdder.take = forgetful  # type: ignore[method-assign]
        learner, company = Regulator(), Company()
        try:
            result, outcome = one_run(
                both, company, both.desk(ledger, lambda: learner), on_round=rounds.append
            )
        finally:
            RoundAdder.take = original  # type: ignore[method-assign]
    assert (result, outcome.error) == (ROUNDS, None)
    assert [summary.attempts for summary in rounds] == [2, 1, 1, 1]
    assert company.requested == learner.learned == [0, 1, 2, 3]
    assert company.theta().tobytes() == in_memory().tobytes()
    assert debits(tmp_path) == ROUNDS


def test_a_relay_that_is_started_anew_in_the_middle(tmp_path: Path) -> None:
    with pair(tmp_path) as both, both.ledger() as ledger:
        address = both.relay.address
        tickets = {
            role: both.relay.issue_ticket(role, role)  # type: ignore[arg-type]
            for role in ("company", "regulator")
        }
        company, rounds = Company(), list[RoundSummary]()

        def restart(summary: RoundSummary) -> None:
            rounds.append(summary)
            if summary.number == 2:
                both.relay.stop()
                both.relay = both.federation.relay(address).start()

        regulator = both.federation.session(tickets["regulator"])

        def serve() -> None:
            with regulator:
                round_serving.serve_rounds(regulator, both.desk(ledger))

        worker = threading.Thread(target=serve)
        worker.start()
        try:
            with both.federation.session(tickets["company"]) as session:
                state = CompanyState(tmp_path / "company")
                assert train(session, company, state, on_round=restart) == ROUNDS
            worker.join(30)
        finally:
            both.relay.stop()
    assert not worker.is_alive()
    assert company.theta().tobytes() == in_memory().tobytes()
    assert debits(tmp_path) == ROUNDS


def test_a_party_that_leaves_in_the_middle_of_a_round(tmp_path: Path) -> None:
    class Leaving:
        def __init__(self, desk: Any) -> None:
            self.desk = desk

        def contribute(self, number: int, theta: Any) -> Any:
            if number == 1:
                raise Stop
            return self.desk.contribute(number, theta)

    with pair(tmp_path) as both, both.ledger() as ledger:
        desk = both.desk(ledger)
        first, outcome = one_run(both, Company(), Leaving(desk))
        assert isinstance(first, SessionClosed)
        assert isinstance(outcome.error, Stop)
        again = Company()
        second, _ = one_run(both, again, desk)
    assert second == ROUNDS
    assert again.theta().tobytes() == in_memory().tobytes()


def test_a_regulator_that_never_comes_is_a_timeout(tmp_path: Path) -> None:
    with pair(tmp_path) as both:
        ticket = both.relay.issue_ticket("company", "company")
        timing = replace(FAST, absence_s=0.5)
        with (
            pytest.raises(PartyTimeout),
            both.federation.session(ticket, timing=timing) as session,
        ):
            train(session, Company(), CompanyState(tmp_path / "company"))


# --- Who breaks the rules -------------------------------------------------------------------------


def test_models_that_differ_are_found_before_anything_is_spent(tmp_path: Path) -> None:
    with pair(tmp_path) as both, both.ledger() as ledger:
        with pytest.raises(ModelsDiffer):
            both.desk(ledger, lambda: Regulator(fingerprint=b"x" * 32))
        with pytest.raises(ModelsDiffer):
            both.desk(ledger, lambda: Regulator(size=SIZE + 1))
        assert not ledger.plans()
        assert isinstance(one_run(both, Company(SIZE + 1), both.desk(ledger))[0], ModelsDiffer)
        assert ledger.answers(both.plan.hash) == 0


def test_a_company_that_sends_a_model_of_another_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair(tmp_path) as both, both.ledger() as ledger:
        desk = both.desk(ledger)
        monkeypatch.setattr(FewShotPlan, "check_model", lambda plan, fingerprint, size: None)
        result, outcome = one_run(both, Company(SIZE + 1), desk)
        assert isinstance(outcome.error, ProtocolError)
        assert "bytes for 20000 parameters" in str(outcome.error)
        assert isinstance(result, SessionClosed | ProtocolError)
        assert ledger.answers(both.plan.hash) == 0


def test_a_relay_that_adds_wrongly_is_caught(tmp_path: Path) -> None:
    from isonomy.server.relay import _rounds as relay_rounds

    with pair(tmp_path) as both, both.ledger() as ledger:
        add = relay_rounds.add_answers
        relay_rounds.add_answers = lambda params, parts: add(params, [*parts, parts[0]])
        try:
            result, _ = one_run(both, Company(), both.desk(ledger))
        finally:
            relay_rounds.add_answers = add
    assert isinstance(result, VerificationError)
    assert "server's sum" in str(result)


class Crooked:
    """A desk that answers with whatever it likes: what a regulator's own checks would stop."""

    def __init__(self, desk: Any, values: np.ndarray) -> None:
        self.desk, self.values = desk, values

    def contribute(self, number: int, theta: Any) -> Any:
        return self.values, self.desk.contribute(number, theta)[1]


@pytest.mark.parametrize("number", [2**41, -(2**41), 2**43 - 1])
def test_a_contribution_out_of_range_is_refused(tmp_path: Path, number: int) -> None:
    values = np.zeros(SIZE, np.int64)
    values[12_345] = number
    with pair(tmp_path) as both, both.ledger() as ledger:
        desk = both.desk(ledger)
        result, _ = one_run(both, Company(), Crooked(desk, values))
        assert isinstance(result, ProtocolError)
        assert "outside the range" in str(result)
        honest, _ = one_run(both, Company(), desk)  # nothing was lost
    assert honest == ROUNDS


def test_a_regulator_does_not_send_what_is_out_of_range(tmp_path: Path) -> None:
    with pair(tmp_path) as both, both.ledger() as ledger:
        desk = both.desk(ledger, lambda: Regulator(spoil=lambda values: values + 2**41))
        result, outcome = one_run(both, Company(), desk)
        assert type(result).__name__ == "CapacityError"
        assert ledger.answers(both.plan.hash) == 0
    assert not (tmp_path / "regulator" / "few-shot" / "contribution").exists()
    assert outcome.rounds == []
    assert len(outcome.refusals) == 1


def test_ciphertexts_under_a_wrong_key_are_refused(tmp_path: Path) -> None:
    stranger = VectorKey(DEFAULT_PARAMETERS)
    original = round_serving.VectorEncryptor
    with pair(tmp_path) as both, both.ledger() as ledger:
        round_serving.VectorEncryptor = lambda params, public: original(params, stranger.public)  # type: ignore[misc,assignment]
        try:
            result, _ = one_run(both, Company(), both.desk(ledger))
        finally:
            round_serving.VectorEncryptor = original  # type: ignore[misc]
    assert isinstance(result, ProtocolError)


def test_a_truncated_ciphertext_is_stopped_at_the_relay(tmp_path: Path) -> None:
    encrypt = VectorEncryptor.encrypt
    with pair(tmp_path) as both, both.ledger() as ledger:
        both.timing = replace(FAST, absence_s=1.0)
        parts = round_serving.encrypted_parts

        def cut(params: Any, encryptor: Any, values: Any) -> Any:
            encryptor.encrypt = lambda piece: encrypt(encryptor, piece)[:-8]
            return parts(params, encryptor, values)

        round_serving.encrypted_parts = cut
        try:
            result, outcome = one_run(both, Company(), both.desk(ledger))
        finally:
            round_serving.encrypted_parts = parts
        assert isinstance(outcome.error, ProtocolError)
        assert isinstance(result, SessionClosed | PartyTimeout | ProtocolError)
        both.timing = FAST
        honest, _ = one_run(both, Company(), both.desk(ledger))
    assert honest == ROUNDS


def test_a_company_with_other_parameters_for_an_answered_round_is_refused(tmp_path: Path) -> None:
    with pair(tmp_path) as both, both.ledger() as ledger:
        desk = both.desk(ledger)
        one_run(both, Company(), desk, on_round=stop_after(1))
        other = Company()
        other.step(0, np.ones(SIZE, np.int64))
        (tmp_path / "elsewhere").mkdir()
        result, _ = one_run(both, other, desk, folder="elsewhere")
    assert isinstance(result, ReplayRefused)
    assert debits(tmp_path) == 1


def test_the_regulator_s_receipt_is_signed_and_stored(tmp_path: Path) -> None:
    with pair(tmp_path) as both, both.ledger() as ledger:
        one_run(both, Company(), both.desk(ledger), on_round=stop_after(2))
        state = CompanyState(tmp_path / "company")
        receipt = state.receipt(both.plan)
        assert receipt is not None
        assert (receipt.number, receipt.ledger_head) == (1, ledger.head)
        path = tmp_path / "company" / "few-shot.state"
        raw = bytearray(path.read_bytes())
        raw[19 + 40 + 60 + 8] ^= 1  # of the sequence number or the head
        path.write_bytes(raw)
        with pytest.raises(VerificationError):
            state.receipt(both.plan)


def test_a_receipt_that_somebody_else_signed_is_refused(tmp_path: Path) -> None:
    with pair(tmp_path) as both, both.ledger() as ledger:
        signed = RoundReceipt.signed
        forger = both.federation.keys("company").identity
        RoundReceipt.signed = lambda receipt, identity, plan: signed(receipt, forger, plan)  # type: ignore[method-assign]
        try:
            result, _ = one_run(both, Company(), both.desk(ledger))
        finally:
            RoundReceipt.signed = signed  # type: ignore[method-assign]
    assert isinstance(result, VerificationError)


def test_a_company_put_back_to_an_older_state_is_told(tmp_path: Path) -> None:
    with pair(tmp_path) as both, both.ledger() as ledger:
        desk = both.desk(ledger)
        one_run(both, Company(), desk, on_round=stop_after(3))
        (tmp_path / "elsewhere").mkdir()
        result, _ = one_run(both, Company(), desk, folder="elsewhere")
    assert isinstance(result, ReplayRefused)
    assert "older state" in str(result)


def test_a_spent_budget_ends_the_run_with_what_was_learned(tmp_path: Path) -> None:
    class Spent(Regulator):
        def contribute(self, number: int, theta: Any) -> Any:
            if number == 2:
                raise BudgetExceeded("nobody can pay")
            return super().contribute(number, theta)

    with pair(tmp_path) as both, both.ledger() as ledger:
        company = Company()
        result, outcome = one_run(both, company, both.desk(ledger, Spent))
    assert (result, outcome.error) == (2, None)
    assert company.theta().tobytes() == in_memory(2).tobytes()
    assert debits(tmp_path) == 2


def test_no_budget_at_all_is_an_error(tmp_path: Path) -> None:
    class Broke(Regulator):
        def contribute(self, number: int, theta: Any) -> Any:
            raise BudgetExceeded("nobody can pay")

    with pair(tmp_path) as both, both.ledger() as ledger:
        result, _ = one_run(both, Company(), both.desk(ledger, Broke))
    assert isinstance(result, BudgetExceeded)


def test_more_rounds_than_the_plan_allows_are_refused(tmp_path: Path) -> None:
    with pair(tmp_path, settings=few_shot_settings(rounds=1)) as both, both.ledger() as ledger:
        desk = both.desk(ledger)
        assert one_run(both, Company(), desk)[0] == 1
        with pytest.raises(BudgetExceeded):
            desk.contribute(1, Company().theta())


def test_a_key_serves_one_attempt_and_a_crafted_ciphertext_reads_no_other() -> None:
    """(0, 2^30·q0/t) decrypts to 2^30·s: the crafter learns that attempt's key, and that one only.

    With the key it opens the attempt's ciphertexts; those of the next attempt stay closed.
    """
    params, theta = DEFAULT_PARAMETERS, np.zeros(SIZE, np.float32)
    first, second = Attempt(params, 0, theta), Attempt(params, 0, theta)
    assert first.request.public != second.request.public
    assert first.request.attempt != second.request.attempt

    def secret_of(attempt: Attempt) -> np.ndarray:
        crafted = np.zeros((2, params.poly_degree), np.uint64)
        crafted[1, 0] = round((params.primes[0] << 30) / params.plain_modulus)
        return attempt._key.decrypt(crafted.tobytes(), params.poly_degree) >> 30

    keys = [secret_of(first), secret_of(second)]
    for key in keys:
        assert set(np.unique(key)) == {-1, 0, 1}
    assert (keys[0] != keys[1]).mean() > 0.5


def test_a_request_does_not_print_its_content() -> None:
    theta = np.full(SIZE, 0.125, np.float32)
    request = Attempt(DEFAULT_PARAMETERS, 0, theta).request
    assert isinstance(request, RoundRequest)
    assert "0.125" not in repr(request)
