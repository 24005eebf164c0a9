"""The regulator's configuration and vault: what is refused, and with which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from isonomy.common.cohort import Cohort
from isonomy.common.errors import ConfigError, DataError
from isonomy.common.party import PartyKeys
from isonomy.common.plan import Plan
from isonomy.company.planning import make_plan
from isonomy.regulator.config import RegulatorConfig
from isonomy.regulator.vault import load_table, make_member_key, member_key, open_ledger

GOOD = """\
name = "regulator"
[groups]
sex = ["female", "male"]
[ledger]
epsilon = "1"
delta = "1e-6"
"""


def write(folder: Path, text: str = GOOD) -> Path:
    path = folder / "regulator.toml"
    path.write_text(text)
    return path


@pytest.fixture
def config(tmp_path: Path) -> RegulatorConfig:
    return RegulatorConfig.load(write(tmp_path))


def plan_for(ids: list[str], groups: dict[str, list[str]] | None = None) -> Plan:
    plan, _ = make_plan(
        name="test",
        companies=[(PartyKeys.generate("company", "company").card(), Cohort.of(ids))],
        regulator=PartyKeys.generate("regulator", "regulator").card(),
        relay_name="localhost",
        groups=groups or {"sex": ["female", "male"]},
        notion="demographic_parity",
        strategy="tilt",
        tolerance="0.01",
        epsilon="1",
        delta="1e-6",
    )
    return plan


def test_paths_are_relative_to_the_file(config: RegulatorConfig, tmp_path: Path) -> None:
    assert config.attributes == tmp_path / "attributes.csv"
    assert config.tls.key == tmp_path / "tls" / "tls.key"
    assert config.ledger.path == tmp_path / "ledger.jsonl"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('epsilon = "1"', 'epsilon = "-1"', "ledger.epsilon"),
        ('epsilon = "1"', 'epsilon = "many"', "ledger.epsilon"),
        ('name = "regulator"', 'name = "Not A Name"', "name"),
        ('name = "regulator"', 'name = "regulator"\ntypo = 1', "typo"),
        ("[groups]", "groups = 3\n[other]", "groups"),
        ("[ledger]", "[ledger", "TOML"),
    ],
)
def test_every_wrong_field_is_named(tmp_path: Path, old: str, new: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        RegulatorConfig.load(write(tmp_path, GOOD.replace(old, new)))


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        RegulatorConfig.load(tmp_path / "none.toml")


def test_the_member_key_is_made_once_and_kept_private(config: RegulatorConfig) -> None:
    config.keys_folder.mkdir()
    with pytest.raises(ConfigError, match="keys"):
        member_key(config)
    make_member_key(config)
    first = member_key(config)
    with pytest.raises(FileExistsError):
        make_member_key(config)
    assert member_key(config) == first
    (config.keys_folder / "member.key").chmod(0o644)
    with pytest.raises(ConfigError, match="only its owner"):
        member_key(config)


def test_the_ledger_is_made_on_first_use_and_then_opened(config: RegulatorConfig) -> None:
    with open_ledger(config) as ledger:
        head = ledger.head
    with open_ledger(config) as ledger:
        assert ledger.head == head


class TestAttributes:
    def table(self, config: RegulatorConfig, text: str, ids: list[str]) -> object:
        config.attributes.write_text(text)
        return load_table(config, plan_for(ids), Cohort.of(ids))

    def test_values_follow_the_plans_order_and_gaps_are_missing(
        self, config: RegulatorConfig
    ) -> None:
        config.attributes.write_text("id,sex\na,male\nb,female\nc,\nd,male\n")
        table = load_table(config, plan_for(["b", "c", "a"]), Cohort.of(["b", "c", "a"]))
        assert table.codes("sex").tolist() == [0, 1, 1]  # a gap counts to the last group

    def test_people_who_are_not_enrolled_are_counted_never_named(
        self, config: RegulatorConfig
    ) -> None:
        with pytest.raises(DataError, match=r"1 of the plan's 2 people") as caught:
            self.table(config, "id,sex\na,male\n", ["a", "zoe-the-secret"])
        assert "zoe" not in str(caught.value)

    def test_an_id_twice_is_refused(self, config: RegulatorConfig) -> None:
        with pytest.raises(DataError, match="line 3 repeats"):
            self.table(config, "id,sex\na,male\na,female\n", ["a"])

    def test_a_missing_column_is_named(self, config: RegulatorConfig) -> None:
        with pytest.raises(DataError, match="sex"):
            self.table(config, "id,origin\na,male\n", ["a"])

    def test_an_undeclared_value_is_refused(self, config: RegulatorConfig) -> None:
        with pytest.raises(DataError, match="outside its declared"):
            self.table(config, "id,sex\na,unheard-of\nb,male\n", ["a", "b"])

    @pytest.mark.parametrize("groups", [{"sex": ["male", "female"]}, {"race": ["x", "y"]}])
    def test_a_plan_with_other_groups_than_declared_is_refused(
        self, config: RegulatorConfig, groups: dict[str, list[str]]
    ) -> None:
        config.attributes.write_text("id,sex\na,male\n")
        with pytest.raises(ConfigError, match="declares"):
            load_table(config, plan_for(["a"], groups), Cohort.of(["a"]))
