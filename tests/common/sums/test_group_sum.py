"""Encrypted equals local, bit for bit; and both equal the plain sum plus known noise."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from federation import CountedNoise, federation, labels
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kits.noise_budget import noise_budget_bits

from isonomy.common.crypto.blinding import Seeds
from isonomy.common.crypto.he import QueryKey, SumBuilder
from isonomy.common.crypto.params import DEFAULT_PARAMETERS as P
from isonomy.common.crypto.params import Layout, centre, choose_layout
from isonomy.common.privacy.noise import rounded_gaussian
from isonomy.common.sums.oracle import GroupOracle, Release


@st.composite
def cases(draw: st.DrawFn) -> dict[str, object]:
    people = draw(st.one_of(st.integers(1, 60), st.integers(1, 5000)))
    columns = draw(st.one_of(st.integers(1, 12), st.integers(1, 1024)))
    if people * columns > 400_000:  # keeps one example within a second; corners are tested below
        columns = max(1, 400_000 // people)
    return {
        "people": people,
        "columns": columns,
        "groups": draw(st.integers(2, 6)),
        "seed": draw(st.integers(0, 2**32 - 1)),
        "call": draw(st.sampled_from(["blind", "open", "weighted", "counts", "laplace"])),
        "chunk": draw(st.booleans()),
        "size": draw(st.sampled_from(["normal", "tiny", "huge", "sparse", "corner"])),
    }


def make_rows(rng: np.random.Generator, people: int, columns: int, size: str) -> np.ndarray:
    rows = rng.normal(size=(people, columns))
    if size == "tiny":
        return rows * 1e-300
    if size == "huge":
        return rows * 1e300
    if size == "sparse":
        return rows * (rng.random(rows.shape) < 0.02)
    if size == "corner":  # the largest single coordinates that the bound allows, both signs
        rows = np.zeros_like(rows)
        rows[np.arange(people), rng.integers(0, columns, people)] = rng.choice([-1e9, 1e9], people)
    return rows


def ask(oracle: GroupOracle, case: dict[str, object]) -> Release:
    rng = np.random.default_rng(int(str(case["seed"])))
    people, columns = int(str(case["people"])), int(str(case["columns"]))
    chosen = rng.permutation(people)[: max(1, people // 3)] if case["chunk"] else None
    count = people if chosen is None else len(chosen)
    rows = make_rows(rng, count, columns, str(case["size"]))
    if case["call"] == "counts":
        cells = rng.integers(0, min(columns, 8), count)
        return oracle.counts(cells, people=chosen, share=0.5)
    if case["call"] == "weighted":
        weights = rng.normal(size=int(str(case["groups"])))
        return oracle.weighted_sum(rows, weights, norm=2.0, people=chosen, share=0.5)
    if case["call"] == "laplace":
        return oracle.open_sum(rows, norm=2.0, people=chosen, epsilon=0.7)
    call = oracle.blind_sum if case["call"] == "blind" else oracle.open_sum
    return call(rows, norm=2.0, people=chosen, share=0.5)


def both(case: dict[str, object]) -> tuple[Release, Release]:
    rng = np.random.default_rng(int(str(case["seed"])) + 1)
    names = [f"g{i}" for i in range(int(str(case["groups"])))]
    names[-1] += " or not stated"
    # Some groups may be empty, and some values missing: both must not show.
    values: list[str | None] = list(
        labels(rng.integers(0, len(names), int(str(case["people"]))), names)
    )
    values[0] = None
    with tempfile.TemporaryDirectory() as folder:
        local = federation(Path(folder), {"a": values}, {"a": names}, name="local")
        remote = federation(Path(folder), {"a": values}, {"a": names}, name="remote")
        try:
            return ask(local.local(), case), ask(remote.company(), case)
        finally:
            local.ledger.close()
            remote.ledger.close()


@given(cases())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_encrypted_equals_local_bit_for_bit(case: dict[str, object]) -> None:
    local, remote = both(case)
    assert np.array_equal(local.values, remote.values)
    assert np.array_equal(local.deviation, remote.deviation)
    assert (local.groups, local.clipped) == (remote.groups, remote.clipped)
    assert local.receipt is not None
    assert remote.receipt is not None
    assert local.receipt.units == remote.receipt.units


@pytest.mark.parametrize(
    ("people", "columns", "groups"), [(1, 1, 2), (1, 1024, 3), (5000, 64, 2), (3, 5, 6)]
)
@pytest.mark.parametrize("call", ["blind", "weighted"])
def test_corner_shapes(people: int, columns: int, groups: int, call: str) -> None:
    case: dict[str, object] = {
        "people": people,
        "columns": columns,
        "groups": groups,
        "seed": 7,
        "call": call,
        "chunk": False,
        "size": "normal",
    }
    local, remote = both(case)
    assert np.array_equal(local.values, remote.values)


def test_release_is_the_plain_sum_plus_the_drawn_noise(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    codes, rows = rng.integers(0, 3, 400), rng.normal(size=(400, 6))
    world = federation(tmp_path, {"a": labels(codes, "xyz")}, {"a": "xyz"}, seed=5)
    release = world.company().blind_sum(rows, norm=100.0, sigma=60.0)
    unit = 100.0 / P.row_bound
    sigma = int(np.ceil(60.0 / unit))
    noise = rounded_gaussian(sigma, 12, CountedNoise(5)).reshape(2, 6) * unit
    plain = np.stack([rows[codes == group].sum(axis=0) for group in range(3)])
    assert np.abs(release.values[:2] - noise - plain[:2]).max() < 400 * unit
    # The last group is the public total minus the others, so noise and all it adds up.
    assert np.abs(release.values.sum(axis=0) - rows.sum(axis=0)).max() < 400 * unit
    assert np.allclose(release.deviation, [60.0, 60.0, 60.0 * np.sqrt(2)], rtol=1e-6)


def test_several_attributes_and_their_intersection(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    sex, race = rng.integers(0, 2, 300), rng.integers(0, 3, 300)
    values = {"sex": labels(sex, ["f", "m"]), "race": labels(race, ["a", "b", "c"])}
    world = federation(tmp_path, values, {"sex": ("f", "m"), "race": ("a", "b", "c")})
    company = world.company()
    several = company.counts(attribute=("sex", "race"), share=0.4)
    assert several.groups == ("f", "m", "a", "b", "c")
    true = [(sex == 0).sum(), (sex == 1).sum(), *[(race == g).sum() for g in range(3)]]
    assert np.abs(several.values[:, 0] - true).max() < 8 * several.deviation.max()
    crossed = company.counts(attribute="sex*race", share=0.4)
    assert crossed.groups[0] == "f × a"
    true = [((sex == s) & (race == r)).sum() for s in range(2) for r in range(3)]
    assert np.abs(crossed.values[:, 0] - true).max() < 8 * crossed.deviation.max()
    # Sex has two groups (one move), race three (two moves): 3 units of Δ² against 2.
    assert several.receipt is not None
    assert crossed.receipt is not None
    assert several.deviation[0] > crossed.deviation[0]


@pytest.mark.parametrize("call", ["sum", "weighted"])
def test_equal_weights_and_zero_rows_are_exact(tmp_path: Path, call: str) -> None:
    world = federation(tmp_path, {"a": list("xyxy")}, {"a": "xy"})
    company = world.company()
    if call == "weighted":
        release = company.weighted_sum(np.ones((4, 2)), [0.5, 0.5], norm=2.0, share=0.5)
        assert release.values.tolist() == [2.0, 2.0]
        assert release.receipt is None
        assert company.budget.spent_units == 0
    else:
        release = company.blind_sum(np.zeros((4, 2)), norm=2.0, sigma=1.0)
        assert np.abs(release.values).max() < 8.0


def sum_once(layout: Layout, rows: np.ndarray, members: np.ndarray) -> tuple[np.ndarray, int]:
    """Group sum through encryption alone; and the noise budget that was left."""
    key = QueryKey(P)
    builder = SumBuilder(layout, sums=1, zero=key.encrypt_zero())
    for index in range(layout.blocks):
        people = layout.block_slice(index)
        builder.add_block(index, rows, [key.encrypt_column(members[people])])
    parts = list(builder.finish(Seeds.fresh(), blind=False))
    values = [key.decrypt(part)[layout.declared(i)[1]] for i, part in enumerate(parts)]
    sums = centre(np.concatenate(values), P.plain_modulus)
    return sums, min(noise_budget_bits(key, part) for part in parts)


@pytest.mark.parametrize("block", [16, 64, 1024, 8192])
def test_every_block_size_gives_the_same_sums(block: int) -> None:
    rng = np.random.default_rng(block)
    rows = rng.integers(-P.row_bound, P.row_bound + 1, (700, 20)).astype(np.int32)
    members = rng.random(700) < 0.5
    layout = Layout(P, 700, 20, block)
    values, budget = sum_once(layout, rows, members)
    assert np.array_equal(values, rows[members].sum(axis=0, dtype=np.int64))
    assert budget > 0


@pytest.mark.slow
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_million_worst_case_people_stay_exact(sign: int) -> None:
    people = 1_000_000
    rows = np.full((people, 1), sign * P.row_bound, dtype=np.int32)
    layout = choose_layout(P, people, 1)
    values, budget = sum_once(layout, rows, np.ones(people, dtype=np.bool_))
    assert values.tolist() == [sign * people * P.row_bound]
    assert budget > 0


def test_centre_is_the_inverse_of_the_residue() -> None:
    t = P.plain_modulus
    values = np.array([0, 1, -1, t // 2 - 1, -(t // 2)])
    assert centre(values % t, t).tolist() == values.tolist()
