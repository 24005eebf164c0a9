"""What every command promises: help with examples, one JSON object, a number for each failure."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
from regulator_kit import Regulator, run_regulator

from isonomy.regulator.cli import app

COMMANDS = {
    (own.name or own.callback.__name__).replace("_", "-"): own.callback
    for own in app.registered_commands
    if own.callback is not None
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example(name: str) -> None:
    callback = COMMANDS[name]
    text = inspect.getdoc(callback) or ""
    command = "isonomy-verify" if name == "verify" else f"isonomy-regulator {name}"
    assert command in text, "an example that can be copied"


def test_the_home_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    regulator = Regulator.create(tmp_path, people=3)
    monkeypatch.setenv("ISONOMY_REGULATOR_HOME", str(regulator.home))
    assert run_regulator("status", "--json").json["enrolled"] == 3


def test_the_ids_of_the_enrolled_are_counted_never_shown(tmp_path: Path) -> None:
    regulator = Regulator.create(tmp_path, people=12)
    done = regulator.run("check-ids")
    assert done.code == 0
    assert "12 entries, 12 people" in done.stdout
    assert "aaaaaa-99" in done.stdout
    assert "person" not in done.stdout


def test_a_home_that_is_none(tmp_path: Path) -> None:
    done = run_regulator("status", "--json", "--home", tmp_path)
    assert done.code == 10
    assert done.json["schema"] == "isonomy/error/v1"
    assert done.json["error"]["kind"] == "ConfigError"
    assert done.json["error"]["help"]
    assert "Error 10" in done.stderr


def test_wrong_usage_is_two() -> None:
    assert run_regulator("enroll", "--no-such-option").code == 2


def test_a_policy_with_nothing_to_spend(tmp_path: Path) -> None:
    regulator = Regulator.create(tmp_path)
    path = regulator.home / "regulator.toml"
    path.write_text(path.read_text().replace('epsilon = "2"\ndelta', 'epsilon = "0"\ndelta'))
    for command in (("status",), ("doctor",), ("approve", regulator.folder / "x", "--yes")):
        done = regulator.run(*command)
        assert done.code == 10
        assert "ledger.epsilon" in done.stderr


def test_the_daemon_does_not_start_with_a_wrong_secret(tmp_path: Path) -> None:
    regulator = Regulator.create(tmp_path)
    wrong = tmp_path / "wrong"
    wrong.write_text("something else")
    wrong.chmod(0o600)
    assert regulator.run("serve", "--unlock-file", wrong).code == 70
    assert not regulator.config.ledger_path.exists()


def test_a_changed_vault_is_said_so(tmp_path: Path) -> None:
    regulator = Regulator.create(tmp_path)
    raw = bytearray(regulator.config.vault_path.read_bytes())
    raw[-1] ^= 1
    regulator.config.vault_path.write_bytes(raw)
    assert regulator.run("serve").code == 44
    assert regulator.run("approve", regulator.plan_file(), "--yes").code == 44
    assert not list(regulator.config.plans_folder.glob("*.json"))


def test_the_shell_is_taught_the_commands() -> None:
    program = Path(sys.executable).with_name("isonomy-regulator")
    environment = {**os.environ, "_ISONOMY_REGULATOR_COMPLETE": "complete_bash"}
    environment |= {"COMP_WORDS": "isonomy-regulator en", "COMP_CWORD": "1"}
    shown = subprocess.run(
        [program], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stdout.split() == ["enroll"]
