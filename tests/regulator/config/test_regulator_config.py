"""The regulator's configuration: what is refused, with which words; keys and ledger of a home."""

from __future__ import annotations

from pathlib import Path

import pytest
from regulator_kit import Regulator

from isonomy.common.base.errors import ConfigError
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.policy_template import policy_text
from isonomy.regulator.serving.witness import open_ledger
from isonomy.regulator.vault.member_key import make_member_key, member_key

GOOD = """\
name = "regulator"
[groups]
sex = ["female", "male"]
[ledger]
epsilon = "1"
delta = "1e-6"
[policy]
epsilon_per_run = "0.5"
[cohorts.minors]
epsilon = "0.1"
"""


def write(folder: Path, text: str = GOOD) -> Path:
    path = folder / "regulator.toml"
    path.write_text(text)
    return path


@pytest.fixture
def config(tmp_path: Path) -> RegulatorConfig:
    return RegulatorConfig.load(write(tmp_path))


def test_paths_are_relative_to_the_file_and_a_folder_will_do(tmp_path: Path) -> None:
    for given in (write(tmp_path), tmp_path):
        config = RegulatorConfig.load(given)
        assert config.vault_path == tmp_path / "vault.bin"
        assert config.tls.key == tmp_path / "tls" / "tls.key"
        assert config.ledger_path == tmp_path / "ledger.jsonl"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('epsilon = "1"', 'epsilon = "-1"', "ledger.epsilon"),
        ('epsilon = "1"', 'epsilon = "0"', "ledger.epsilon"),
        ('epsilon = "1"', 'epsilon = "many"', "ledger.epsilon"),
        ('epsilon = "1"', 'epsilon = "nan"', "ledger.epsilon"),
        ('epsilon = "1"', "epsilon = 1.0", "ledger.epsilon"),
        ('delta = "1e-6"', 'delta = "1.5"', "ledger.delta"),
        ('epsilon_per_run = "0.5"', 'epsilon_per_run = "0"', "policy.epsilon_per_run"),
        ('epsilon_per_run = "0.5"', "smallest_group = 0", "policy.smallest_group"),
        ('epsilon_per_run = "0.5"', 'auditor = "me"', "policy.auditor"),
        ('epsilon_per_run = "0.5"', 'companies = ["acme"]', "policy.companies"),
        ('epsilon_per_run = "0.5"', 'inspection_rate = "2"', "policy.inspection_rate"),
        ('epsilon = "0.1"', 'epsilon = "-3"', "cohorts.minors.epsilon"),
        ('["female", "male"]', '["female"]', "groups"),
        ('["female", "male"]', '["female", "female"]', "groups"),
        ('name = "regulator"', 'name = "Not A Name"', "name"),
        ('name = "regulator"', 'name = "regulator"\ntypo = 1', "typo"),
        ("[groups]", "groups = 3\n[other]", "groups"),
        ("[ledger]", "[ledger", "TOML"),
    ],
)
def test_every_wrong_field_is_named(tmp_path: Path, old: str, new: str, named: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError, match=named):
        RegulatorConfig.load(write(tmp_path, GOOD.replace(old, new, 1)))


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        RegulatorConfig.load(tmp_path / "none.toml")


def test_the_policy_that_init_writes_says_what_it_was_asked_for() -> None:
    text = policy_text(
        name="authority", epsilon="1.5", delta="1e-7", groups={'od"d name': ("a", "ü")}, group="g"
    )
    config = RegulatorConfig.parse(text.encode(), Path())
    assert (config.name, config.group) == ("authority", "g")
    assert (config.ledger.epsilon, config.ledger.delta) == ("1.5", "1e-7")
    assert config.groups == {'od"d name': ("a", "ü")}
    assert config.policy.epsilon_per_run == "1.5"
    for line in text.splitlines():  # an officer reads it in a terminal
        assert len(line) <= 110


def test_the_member_key_is_made_once_and_kept_private(config: RegulatorConfig) -> None:
    config.keys_folder.mkdir()
    with pytest.raises(ConfigError, match="init"):
        member_key(config)
    make_member_key(config)
    first = member_key(config)
    with pytest.raises(ConfigError, match="never overwritten"):
        make_member_key(config)
    assert member_key(config) == first
    (config.keys_folder / "member.key").chmod(0o644)
    with pytest.raises(ConfigError, match="readable by others"):
        member_key(config)


def test_the_ledger_is_made_on_first_use_and_then_opened(config: RegulatorConfig) -> None:
    with open_ledger(config) as ledger:
        head = ledger.head
    with open_ledger(config) as ledger:
        assert ledger.head == head


def test_a_home_is_made_once_and_completely(tmp_path: Path) -> None:
    made = Regulator.create(tmp_path, people=0)
    names = {path.name for path in made.home.iterdir()}
    assert names >= {"keys", "run", "regulator.toml", "vault.bin"}
    for path in (*made.home.glob("keys/*.key"), made.config.vault_path, tmp_path / "secret/unlock"):
        assert path.stat().st_mode & 0o077 == 0, path
    with pytest.raises(ConfigError, match="not an empty folder"):
        Regulator.create(tmp_path)


def test_a_home_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ledger\.epsilon"):
        Regulator.create(tmp_path, epsilon="0")
    assert list(tmp_path.iterdir()) == []
