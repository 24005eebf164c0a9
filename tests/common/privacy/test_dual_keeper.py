"""λ at the regulator: weights that do not follow from the answers are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from session_kit import FAST, Federation, people, serving

from isonomy.common.base.errors import ProtocolError
from isonomy.common.privacy.declarations import (
    ConstraintGradient,
    Content,
    Declaration,
    DualStep,
    Plain,
)
from isonomy.common.privacy.dual import DualRule, Multipliers, declared_counts
from isonomy.common.remote.exchanges import remote_channel, remote_oracle
from isonomy.common.sums.channel import Wrapper
from isonomy.common.sums.local import LocalOracle
from isonomy.common.sums.oracle import GroupOracle, Release

RULE = DualRule.of((2,), 1, step=0.5, bound=5.0)


def integers(release: Release, norm: float, bound: int) -> list[list[int]]:
    return np.rint(release.values[:-1] * (bound / norm)).astype(np.int64).tolist()


def start(oracle: GroupOracle) -> Multipliers:
    """Counts and one dual step, as PF-LD asks for them."""
    n, bound = len(oracle.cohort), oracle.params.row_bound
    totals = [n * bound]
    declaration = Declaration(declared_counts(RULE, totals))
    counts = oracle.open_sum(np.ones((n, 1)), norm=1.0, share=0.1, declaration=declaration)
    lam = Multipliers.start(RULE, integers(counts, 1.0, bound), totals, bound)
    return step(oracle, lam)


def step(oracle: GroupOracle, lam: Multipliers) -> Multipliers:
    rows = np.linspace(-1, 1, len(oracle.cohort))[:, None]
    release = oracle.open_sum(rows, norm=1.0, share=0.1, declaration=Declaration(DualStep()))
    lam = lam.advance(integers(release, 1.0, lam.row_bound), 1.0)
    assert release.receipt is not None
    flat = tuple(value for row in lam.values() for value in row)
    oracle.confirm_multipliers(release.receipt.query_id, flat)
    with pytest.raises(ProtocolError, match="multipliers"):
        oracle.confirm_multipliers(release.receipt.query_id, tuple(2 * v for v in flat))
    return lam


def gradient(oracle: GroupOracle, weights: tuple[float, ...], content: Content) -> Release:
    rows = np.random.default_rng(1).normal(size=(len(oracle.cohort), 3))
    return oracle.weighted_sum(rows, weights, norm=1.0, share=0.1, declaration=Declaration(content))


@pytest.fixture
def oracle(tmp_path: Path) -> GroupOracle:
    ids = list(people(400).ids)
    sex = ["f" if number % 3 else "m" for number in range(400)]
    return LocalOracle.rehearse(ids, {"sex": sex}, epsilon=5.0, delta=1e-6, folder=tmp_path)


def test_weights_of_lambda_pass_and_others_do_not(oracle: GroupOracle) -> None:
    lam = start(oracle)
    weights = lam.weights(0, 0)
    before = oracle.budget.spent_units
    for wrong in (tuple(2 * w for w in weights), (1.0, 0.0)):
        with pytest.raises(ProtocolError, match="not those of the multipliers"):
            gradient(oracle, wrong, ConstraintGradient(0, 0))
    with pytest.raises(ProtocolError, match="declares its constraint gradient"):
        gradient(oracle, weights, Plain())
    with pytest.raises(ProtocolError, match="unknown attribute or event"):
        gradient(oracle, weights, ConstraintGradient(0, 1))
    assert oracle.budget.spent_units == before
    gradient(oracle, weights, ConstraintGradient(0, 0))
    later = step(oracle, lam)
    with pytest.raises(ProtocolError, match="not those of the multipliers"):
        gradient(oracle, weights, ConstraintGradient(0, 0))  # an old λ
    gradient(oracle, later.weights(0, 0), ConstraintGradient(0, 0))


def test_out_of_turn(oracle: GroupOracle) -> None:
    rows = np.ones((400, 1))
    with pytest.raises(ProtocolError, match="comes after the counts"):
        oracle.open_sum(rows, norm=1.0, share=0.1, declaration=Declaration(DualStep()))
    counts = declared_counts(RULE, [400])
    wrong = Declaration(replace(counts, step=0))
    with pytest.raises(ProtocolError, match="must be positive"):
        oracle.open_sum(rows, norm=1.0, share=0.1, declaration=wrong)
    two = Declaration(replace(counts, totals=(400, 400)))
    with pytest.raises(ProtocolError, match="one total per event"):
        oracle.open_sum(rows, norm=1.0, share=0.1, declaration=two)
    for norm in (0.5, 1.5):
        with pytest.raises(ProtocolError, match="norm 1, or √events at most"):
            oracle.open_sum(rows, norm=norm, share=0.1, declaration=Declaration(counts))
    assert oracle.budget.spent_units == 0
    start(oracle)
    with pytest.raises(ProtocolError, match="released once"):
        oracle.open_sum(rows, norm=1.0, share=0.1, declaration=Declaration(counts))
    with pytest.raises(ProtocolError, match="open group sum"):
        oracle.blind_sum(rows, norm=1.0, share=0.1, declaration=Declaration(DualStep()))
    with pytest.raises(ProtocolError, match="events and attributes"):
        oracle.open_sum(np.ones((400, 2)), norm=2.0, share=0.1, declaration=Declaration(DualStep()))


def test_through_a_session_and_a_restart(tmp_path: Path) -> None:
    """The regulator sends its λ; started anew, it computes the same one from its ledger."""
    federation = Federation.create(tmp_path, size=60)
    with federation.relay() as relay:
        with (
            serving(federation, relay.issue_ticket("regulator", "regulator"), timing=FAST),
            federation.session(relay.issue_ticket("company", "company")).start() as session,
        ):
            first = remote_oracle(session, federation.cohort)
            lam = start(first)
            position = first.position
        # A new daemon over the same ledger, a company that goes on where it was.
        with (
            serving(federation, relay.issue_ticket("regulator", "regulator"), timing=FAST),
            federation.session(relay.issue_ticket("company", "company")).start() as session,
        ):
            second = remote_oracle(session, federation.cohort)
            second.go_on_from(*position)
            with pytest.raises(ProtocolError, match="not those of the multipliers"):
                gradient(second, (1.0, 0.0), ConstraintGradient(0, 0))
            gradient(second, lam.weights(0, 0), ConstraintGradient(0, 0))
            wrong = replace(lam, lam=tuple((v + 1,) for (v,) in lam.lam))
            assert wrong.weights(0, 0) != lam.weights(0, 0)
            step(second, lam)


def test_a_whole_training_through_a_session(tmp_path: Path) -> None:
    """PF-LD through relay and TLS: every λ confirmed, every weight accepted, the cap kept."""
    from isonomy.company import GradientFairClassifier

    federation = Federation.create(tmp_path, size=3000)
    rng = np.random.default_rng(7)
    sex = np.array([int(name.split("-")[1]) % 3 > 0 for name in federation.cohort.ids])
    x = rng.normal(size=(3000, 3)) + 0.8 * sex[:, None]
    y = (x.sum(axis=1) + rng.normal(size=3000) > 1).astype(np.int64)
    confirmed: list[str] = []

    class Listening(Wrapper):
        def confirm_multipliers(self, query_id: str, values: tuple[float, ...]) -> None:
            assert self.inner.inner._port.multipliers(query_id) == values
            confirmed.append(query_id)

    with (
        federation.relay() as relay,
        serving(federation, relay.issue_ticket("regulator", "regulator"), timing=FAST),
        federation.session(relay.issue_ticket("company", "company")).start() as session,
    ):
        oracle = GroupOracle(Listening(remote_channel(session, federation.cohort)))
        model = GradientFairClassifier(
            "logistic", oracle=oracle, trainer_options={"rounds": 3}, random_state=0
        )
        model.fit(x, y, ids=list(federation.cohort.ids))
    assert len(confirmed) == 4  # one before the first round, one after each
    assert 0.9 < oracle.budget.spent_epsilon <= 1.0


def test_a_plan_with_record_privacy_through_a_session(tmp_path: Path) -> None:
    """The plan's promise reaches the oracle: a plain run asks nothing, a record-private one runs
    with every λ confirmed although no exact total enters it."""
    from isonomy.common.agreements.plan import Plan
    from isonomy.common.base.errors import ConfigError
    from isonomy.company import GradientFairClassifier, RecordPrivacy

    federation = Federation.create(tmp_path, size=3000)
    fields = {**federation.plan.model_dump(), "record_privacy": True}
    federation = replace(federation, plan=Plan.model_validate(fields))
    sex = np.array([int(name.split("-")[1]) % 3 > 0 for name in federation.cohort.ids])
    x = np.random.default_rng(7).normal(size=(3000, 3)) + 0.8 * sex[:, None]
    y = (x.sum(axis=1) > 1).astype(np.int64)
    ids = list(federation.cohort.ids)
    settings = {
        "notion": "equalized_odds",
        "encoder": "passthrough",
        "trainer_options": {"rounds": 2, "local_steps": 1, "warmup_steps": 2},
        "strategy_options": {"primal_norm": 0.5},
    }
    with (
        federation.relay() as relay,
        serving(federation, relay.issue_ticket("regulator", "regulator"), timing=FAST),
        federation.session(relay.issue_ticket("company", "company")).start() as session,
    ):
        oracle = remote_oracle(session, federation.cohort)
        with pytest.raises(ConfigError, match="the approved plan promises"):
            GradientFairClassifier(oracle=oracle, **settings).fit(x, y, ids=ids)
        assert oracle.budget.spent_units == 0
        records = RecordPrivacy(epsilon=3.0)
        model = GradientFairClassifier(oracle=oracle, record_privacy=records, **settings)
        model.fit(x.astype(np.float32), y, ids=ids)
    assert model.stopped_ == "rounds"
    assert model.epsilons_.as_in_papers.is_guarantee
    assert 2.5 < model.epsilons_.as_in_papers.epsilon <= 3.0
