"""Small parts of common: cohort, attributes, identity, errors, the oracle's bookkeeping."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from federation import federation

from isonomy.common.base.errors import ConfigError, DataError, PolicyRefused, VerificationError
from isonomy.common.keys.identity import Identity, verify_signature
from isonomy.common.people.cohort import AttributeTable, Cohort, group_labels
from isonomy.common.privacy.declarations import Audit, Declaration
from isonomy.common.sums.local import LocalOracle, true_groups
from isonomy.common.sums.oracle import GroupOracle


def test_public_calls_of_the_oracle() -> None:
    calls = {name for name in dir(GroupOracle) if not name.startswith("_")}
    expected = {"blind_sum", "counts", "open_sum", "weighted_sum"}
    expected |= {"budget", "capabilities", "cohort", "groups", "labels", "log", "params", "plan"}
    expected |= {"people_of"}  # for everything that takes ids
    expected |= {
        "declared",
        "confirm_multipliers",
        "go_on_from",
        "position",
    }  # for strategies
    assert calls == expected | {"close"}


def test_a_misspelt_keyword_is_not_taken_for_none() -> None:
    """`ids=` instead of `people=` would ask about everybody."""
    oracle = LocalOracle.rehearse(["a", "b"], {"sex": ["f", "m"]}, epsilon=1.0, delta=1e-5)
    with pytest.raises(TypeError, match="unknown keyword: ids"):
        oracle.counts(share=0.1, ids=[0])  # type: ignore[call-arg]
    assert oracle.budget.spent_units == 0


def test_ids_are_people() -> None:
    cohort = Cohort.of(["Zoë", "Ángel", 7, "李"])
    assert cohort.positions(["李", "Zoe\u0308"]).tolist() == [3, 0]  # composed or not: one person
    with pytest.raises(DataError, match="1 of 2 people are not in the agreed cohort"):
        cohort.positions(["李", "nobody"])
    with pytest.raises(DataError, match=r"2 of 2 .* of the same kind and spelling"):
        cohort.positions([1, 2])
    with pytest.raises(DataError, match="occur more than once"):
        Cohort.of(["Zoë", "Zoe\u0308"])
    for bad in ("", " ", "a\tb"):
        with pytest.raises(DataError, match="an id is empty"):
            Cohort.of([bad])
    assert Cohort.of([" a", "b\n"]).ids == ("a", "b")
    with pytest.raises(DataError, match="at least one person"):
        Cohort.of([])


def test_the_root_binds_ids_and_their_order() -> None:
    assert Cohort.of(["a", "b"]).root == Cohort.of(["a", "b"]).root
    assert Cohort.of(["a", "b"]).root != Cohort.of(["b", "a"]).root
    key, other = b"k" * 32, b"l" * 32
    cohort = Cohort.of(["a", "b"])
    assert cohort.member_hashes(key) != cohort.member_hashes(other)
    assert Cohort.of(["b"]).member_hashes(key)[0] == cohort.member_hashes(key)[1]


def test_a_missing_value_is_in_the_group_that_says_so() -> None:
    cohort, values = Cohort.of(["a", "b", "c"]), {"s": ["x", None, "y"]}
    merged = AttributeTable(cohort, values, {"s": ("x", "z", "y or not stated")})
    assert merged.codes("s").tolist() == [0, 2, 2]
    alone = AttributeTable(cohort, values, {"s": ("x", "y", "not stated")})
    assert alone.codes("s").tolist() == [0, 2, 1]
    with pytest.raises(DataError, match=r"no group takes them.*'y or not stated'"):
        AttributeTable(cohort, values, {"s": ("x", "y")})


def test_a_rehearsal_has_a_group_for_people_without_a_value() -> None:
    ids, values = ["a", "b", "c", "d"], {"s": ["x", None, "y", "not stated"]}
    assert LocalOracle.rehearse(ids, values, epsilon=1, delta=1e-6).labels("s") == (
        "x", "y", "not stated",
    )  # fmt: skip
    stated = LocalOracle.rehearse(ids, {"s": ["y", "x", "y", "x"]}, epsilon=1, delta=1e-6)
    assert stated.labels("s") == ("x", "y")


@pytest.mark.parametrize(
    ("column", "labels"),
    [
        (np.array([0, 1, 1, 0]), ("0", "1")),
        (np.array([True, False, True, False]), ("False", "True")),
        (pd.Series([1.0, np.nan, 0.0, 1.0]), ("0", "1", "not stated")),
        (pd.Series([1, None, 0, 1], dtype="Int64"), ("0", "1", "not stated")),
        (pd.Series(["a", pd.NA, "b", "a"], dtype="string"), ("a", "b", "not stated")),
        (pd.Categorical(["a", "b", None, "a"]), ("a", "b", "not stated")),
        (["a", float("nan"), None, "b"], ("a", "b", "not stated")),
        ([0.5, 1, 2, 1], ("0.5", "1", "2")),
    ],
)
def test_values_of_a_rehearsal_become_text_and_gaps_are_unknown(
    column: object, labels: tuple[str, ...]
) -> None:
    oracle = LocalOracle.rehearse(range(4), {"s": column}, epsilon=1, delta=1e-6)
    assert oracle.labels("s") == labels


def test_coded_values_lie_in_declared_groups() -> None:
    codes, groups = np.array([0, 1, 1, 2]), {"s": [2, 0, 1]}
    oracle = LocalOracle.rehearse(range(4), {"s": codes}, epsilon=1, delta=1e-6, groups=groups)
    assert oracle.labels("s") == ("2", "0", "1")
    assert true_groups(oracle, "a test", "s").tolist() == [1, 2, 2, 0]


@pytest.mark.parametrize("column", [[1, "1", "a", "b"], [(1,), (2,), (1,), (2,)]])
def test_values_of_several_kinds_are_refused(column: list[object]) -> None:
    with pytest.raises(DataError, match="'s' has values of several kinds"):
        LocalOracle.rehearse(range(4), {"s": column}, epsilon=1, delta=1e-6)


def test_a_measured_number_is_no_attribute() -> None:
    with pytest.raises(DataError, match=r"'age' has 60 values.*bin a numeric column"):
        LocalOracle.rehearse(range(60), {"age": np.arange(60)}, epsilon=1, delta=1e-6)


@pytest.mark.parametrize("epsilon", [0, -1, "abc", float("nan"), float("inf")])
def test_a_rehearsal_needs_a_budget(epsilon: object) -> None:
    with pytest.raises(ConfigError, match="epsilon must be a number above 0"):
        LocalOracle.rehearse(range(2), {"s": ["x", "y"]}, epsilon=epsilon, delta=1e-6)


def test_intersections() -> None:
    groups = {"s": ("f", "m"), "r": ("a", "b", "c")}
    assert group_labels("s*r", groups)[:2] == ("f × a", "f × b")
    cohort = Cohort.of(["1", "2"])
    table = AttributeTable(cohort, {"s": ["m", "f"], "r": ["b", "c"]}, groups)
    labels = group_labels("s*r", groups)
    assert [labels[c] for c in table.codes("s*r")] == ["m × b", "f × c"]
    for bad in ("s*s", "x", "s*", ""):
        with pytest.raises(ConfigError, match="unknown or repeated"):
            group_labels(bad, groups)


@pytest.mark.parametrize(
    ("values", "groups", "message"),
    [
        ({"s": ["x", "x"]}, {"s": ("x",)}, "at least two distinct groups"),
        ({"s": ["x", "q"]}, {"s": ("x", "y")}, "1 values outside"),
        ({"s": ["x"]}, {"s": ("x", "y")}, "1 values for 2 people"),
        ({"s": ["x", "y"]}, {}, "declared groups"),
        ({"s*t": ["x", "y"]}, {"s*t": ("x", "y")}, "holds no"),
    ],
)
def test_bad_attributes(values: dict, groups: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AttributeTable(Cohort.of(["1", "2"]), values, groups)


def test_identity_on_disk(tmp_path: Path) -> None:
    path, identity = tmp_path / "key", Identity.generate()
    identity.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    loaded = Identity.load(path)
    signature = loaded.sign("domain", b"message")
    verify_signature(identity.public, "domain", b"message", signature)
    for domain, message in (("other", b"message"), ("domain", b"massage")):
        with pytest.raises(VerificationError):
            verify_signature(identity.public, domain, message, signature)
    with pytest.raises(VerificationError):
        verify_signature(b"short", "domain", b"message", signature)
    with pytest.raises(ConfigError, match="never overwritten"):
        identity.save(path)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        Identity.load(path)
    with pytest.raises(ConfigError, match="cannot read"):
        Identity.load(tmp_path / "nothing")


def test_a_rehearsal_spends_what_it_says() -> None:
    oracle = LocalOracle.rehearse(range(200), {"sex": ["f", "m"] * 100}, epsilon=1.0, delta=1e-5)
    assert oracle.labels() == ("f", "m")
    assert oracle.budget.cap_epsilon == pytest.approx(1.0, rel=1e-6)
    release = oracle.counts(share=0.25)
    assert oracle.budget.spent_units <= oracle.budget.cap_units / 4
    assert oracle.budget.remaining_share == pytest.approx(0.75, abs=1e-6)
    assert np.abs(release.values[:, 0] - 100).max() < 8 * release.deviation.max()
    oracle.blind_sum(np.ones((200, 2)), norm=2.0, share=0.75)
    assert oracle.budget.spent_epsilon <= 1.0


# --- What a question is declared for -------------------------------------------------------------


def test_only_what_the_plan_names_is_answered(tmp_path: Path) -> None:
    fed = federation(tmp_path, {"sex": list("fm" * 20)}, {"sex": "fm"})
    fed.custodian._strategy, fed.custodian._notion = "tilt", "demographic_parity"
    oracle = fed.local()
    for strategy, notion in (
        ("pf_ld", "demographic_parity"),
        ("tilt", "equalized_odds"),
        ("", ""),
    ):
        refused = pytest.raises(PolicyRefused, match="for tilt and demographic_parity")
        with refused, oracle.declared(strategy, notion):
            oracle.counts(share=0.1)
    assert fed.ledger.answers(fed.ledger.plans()[0].plan) == 0, "nothing was spent"
    with oracle.declared("tilt", ["equalized_odds", "demographic_parity"]):  # policy looks at both
        oracle.counts(share=0.1)
    audit = Declaration(Audit("after", "d", (20_000, 20_000), "1"))
    oracle.open_sum(np.eye(2)[[0, 1] * 20], norm=1.0, share=0.1, declaration=audit)
    assert fed.ledger.answers(fed.ledger.plans()[0].plan) == 2
