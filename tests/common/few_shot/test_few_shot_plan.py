"""The few-shot plan as a file, and what the server is told of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from round_kit import few_shot_settings, make_federation, make_plan
from session_kit import Federation

from isonomy.common.agreements.agreement import PlanPublic, kind_of
from isonomy.common.agreements.approvals import ApprovalStore, PlanNotApproved
from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.agreements.few_shot_settings import FewShotSettings
from isonomy.common.base.errors import ConfigError


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return Federation.create(tmp_path_factory.mktemp("federation"))


def test_a_plan_is_its_canonical_bytes(federation: Federation, tmp_path: Path) -> None:
    plan = make_plan(federation)
    plan.save(tmp_path / "plan.json")
    loaded = FewShotPlan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert loaded.hash == plan.hash
    assert kind_of(tmp_path / "plan.json") == "few-shot"
    federation.plan.save(tmp_path / "other.json")
    assert kind_of(tmp_path / "other.json") == ""


def test_the_server_is_told_how_many_ciphertexts_and_no_purpose(federation: Federation) -> None:
    public = make_plan(federation).public()
    assert public.round_parts == 3
    assert PlanPublic.from_json(public.to_json()) == public
    fields = json.loads(public.to_json())
    assert set(fields) == {
        *("hash", "companies", "regulator", "relay_name", "parameters", "round_parts")
    }
    assert federation.plan.public().round_parts == 0


@pytest.mark.parametrize("parts", [-1, 1025, "3", 1.0, True])
def test_a_public_part_with_a_strange_number_is_refused(federation: Any, parts: Any) -> None:
    fields = {**json.loads(make_plan(federation).public().to_json()), "round_parts": parts}
    with pytest.raises(ConfigError):
        PlanPublic.from_json(json.dumps(fields, separators=(",", ":"), sort_keys=True).encode())


@pytest.mark.parametrize("method", ["none", "fair"])
def test_a_method_without_noise_is_refused_between_machines(federation: Any, method: str) -> None:
    settings = FewShotSettings(method=method)
    with pytest.raises(ConfigError, match="does not protect"):
        make_plan(federation, settings=settings)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"size": 8192 * 1024 + 1}, "parameters"),
        ({"size": 0}, "size"),
        ({"samples": 0}, "samples"),
        ({"pool": "../vault"}, "pool"),
        ({"fingerprint": "00"}, "fingerprint"),
        ({"settings": few_shot_settings().model_dump() | {"delta": "1e-5\n"}}, "delta"),
        ({"settings": few_shot_settings().model_dump() | {"epsilon": 0}}, "epsilon"),
    ],
)
def test_what_cannot_be_kept_is_refused(federation: Any, change: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_plan(federation, **change)


def test_the_owner_reads_who_is_protected_from_whom(federation: Federation) -> None:
    text = make_plan(federation).describe()
    assert "30 samples, of which each loses at most ε = 8 at δ = 1e-5" in text
    assert "20,000 parameters) in 4 rounds" in text
    assert "can subtract its own" in text


def test_only_what_was_approved_is_joined(federation: Federation, tmp_path: Path) -> None:
    plan, store = make_plan(federation), ApprovalStore(tmp_path / "few-shot", FewShotPlan)
    with pytest.raises(PlanNotApproved):
        store.require(plan.hash)
    store.approve(plan, federation.keys("company"))
    assert store.require(plan.hash) == plan
    path = tmp_path / "few-shot" / f"{plan.hash.hex()}.json"
    path.write_bytes(make_plan(federation, samples=29).to_json())
    with pytest.raises(PlanNotApproved, match="changed"):
        store.require(plan.hash)


def test_a_plan_with_somebody_else_s_card_is_not_approved(
    federation: Federation, tmp_path: Path
) -> None:
    other = make_federation(tmp_path / "other")
    with pytest.raises(ConfigError, match="other keys"):
        ApprovalStore(tmp_path, FewShotPlan).approve(make_plan(federation), other.keys("company"))
