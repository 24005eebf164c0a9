"""The regulator's real learner at its desk: restarts keep accounts, and no θ makes it talk."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from round_kit import make_plan
from session_kit import Federation

from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.agreements.few_shot_settings import FewShotSettings
from isonomy.common.few_shot.learning.learners import RegulatorLearner
from isonomy.common.few_shot.learning.models import Network, fingerprint
from isonomy.common.few_shot.learning.tasks import Pool
from isonomy.common.few_shot.rounds.desk import RoundDesk, StoredContribution
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.privacy.accounting import units_for

SETTINGS = FewShotSettings(
    model="mlp",
    width=4,
    input_shape=(6,),
    ways=2,
    shots=2,
    queries=2,
    regulator_tasks=2,
    rounds=6,
    inner_noise=3_000_000,
    query_noise=3_000_000,
)
SAMPLES = 40
POOL = Pool(
    np.random.default_rng(0).random((SAMPLES, 6), np.float32),
    np.arange(SAMPLES, dtype=np.int64) % 4,
)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> FewShotPlan:
    federation = Federation.create(tmp_path_factory.mktemp("federation"), size=4)
    return make_plan(
        federation,
        settings=SETTINGS,
        samples=SAMPLES,
        fingerprint=fingerprint(SETTINGS).hex(),
        size=Network.of(SETTINGS).size,
    )


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    cap = units_for(100.0, 1e-5)
    with Ledger.create(tmp_path / "ledger.jsonl", cap_units=cap, delta=1e-5) as opened:
        yield opened


def desk(plan: FewShotPlan, ledger: Ledger, folder: Path) -> RoundDesk:
    members = [b"%016d" % number for number in range(SAMPLES)]
    return RoundDesk(
        plan,
        lambda: RegulatorLearner(plan.settings, POOL),
        ledger,
        folder / "desk",
        members=members,
        member_key_tag=b"t" * 32,
    )


def spent(folder: Path) -> np.ndarray:
    return StoredContribution.parse((folder / "desk" / "contribution").read_bytes()).spent


def test_a_restart_goes_on_with_the_samples_accounts(
    plan: FewShotPlan, ledger: Ledger, tmp_path: Path
) -> None:
    theta = Network.of(SETTINGS).initial(0)
    first = desk(plan, ledger, tmp_path)
    first.contribute(0, theta)
    first.contribute(1, theta)
    before = spent(tmp_path)
    assert 0 < before.max() <= plan.cap_units
    restarted = desk(plan, ledger, tmp_path)
    restarted.contribute(2, theta)
    after = spent(tmp_path)
    assert (after >= before).all()
    assert (after > before).any()
    uses = restarted._side._sampler.uses  # type: ignore[union-attr]
    assert uses.sum() == 3 * SETTINGS.regulator_tasks * 2 * 4  # draws of all rounds, not of one


@pytest.mark.parametrize("method", ["dp_sgd", "irdp", "l_d", "pf_ld"])
def test_no_round_costs_more_than_the_plan_says(
    plan: FewShotPlan, ledger: Ledger, tmp_path: Path, method: str
) -> None:
    noises = {"dual_noise": 3_000_000, "share_noise": 9_000_000}
    settings = FewShotSettings(**{**SETTINGS.model_dump(), "method": method, **noises})
    fields = {"settings": settings, "fingerprint": fingerprint(settings).hex()}
    changed = FewShotPlan.of({**plan.model_dump(mode="json"), **fields})
    groups = (np.arange(SAMPLES) // 4 % 2).astype(np.int8)
    pool = Pool(POOL.inputs, POOL.labels, groups, np.array([True, True, False, False]))
    theta = Network.of(settings).initial(0)
    learner = RegulatorLearner(settings, pool)
    accounts = [np.zeros(SAMPLES, np.int64)]
    accounts += [learner.contribute(number, theta).spent for number in range(3)]
    costs = [int((after - before).max()) for before, after in pairwise(accounts)]
    assert max(costs) <= changed.round_units
    assert max(costs) > changed.round_units // 20  # the bound is about this, not about anything


@pytest.mark.parametrize("size", [1e20, 3e38])
def test_no_choice_of_parameters_makes_a_sample_refuse(
    plan: Any, ledger: Ledger, tmp_path: Path, size: float
) -> None:
    """An error that only some samples cause under a θ would be an answer that nobody paid for."""
    theta = np.full(plan.size, size, np.float32)
    theta[::2] *= -1
    values, _ = desk(plan, ledger, tmp_path).contribute(0, theta)
    assert np.abs(values).max() > 0
    assert ledger.answers(plan.hash) == 1
