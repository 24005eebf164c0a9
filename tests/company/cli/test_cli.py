"""The four commands exist, help themselves, and print one JSON object where they promise it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from isonomy.common.base.errors import ConfigError
from isonomy.company.cli.company import app as company_app
from isonomy.company.cli.main import NEXT_STEPS
from isonomy.company.cli.main import app as isonomy_app
from isonomy.company.federation.planning import STRATEGIES
from isonomy.company.gradient.sdk.classifier import GRADIENT_STRATEGIES
from isonomy.regulator.cli import app as regulator_app
from isonomy.regulator.config.policy import STRATEGIES as POLICY_STRATEGIES
from isonomy.server.cli import app as server_app

BIN = Path(sys.executable).parent
APPS = {
    "isonomy": isonomy_app,
    "isonomy-company": company_app,
    "isonomy-regulator": regulator_app,
    "isonomy-server": server_app,
}


@pytest.mark.parametrize("command", APPS)
def test_help_suffices(command: str) -> None:
    shown = subprocess.run([BIN / command, "--help"], capture_output=True, text=True, check=True)
    assert "Usage" in shown.stdout
    assert shown.stderr == ""


def test_alone_it_says_what_to_do_next() -> None:
    shown = subprocess.run([BIN / "isonomy"], capture_output=True, text=True, check=True)
    assert shown.stdout == NEXT_STEPS
    for line in NEXT_STEPS.splitlines():
        words = line.split()
        if words[:1] == ["isonomy"]:
            known = [command.callback.__name__ for command in isonomy_app.registered_commands]
            assert words[1] in known


def test_an_error_names_the_page_that_helps() -> None:
    script = (
        "from isonomy.common.base.command_line import CommandLine\n"
        "from isonomy.common.base.errors import BudgetExceeded\n"
        "app = CommandLine()\n"
        "@app.command()\n"
        "def spend():\n"
        "    raise BudgetExceeded('nothing is left')\n"
        "app([])"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert shown.returncode == 50
    assert shown.stderr.splitlines() == [
        "Error 50 (BudgetExceeded): nothing is left",
        "Read on: docs/reports.md",
    ]


def test_version() -> None:
    shown = subprocess.run(
        [BIN / "isonomy", "--version"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip().count(".") == 2


def test_arguments_are_explained_too() -> None:
    """Click 8.5 under typer 0.20 prints an argument's name and nothing else."""
    command = [BIN / "isonomy-regulator", "approve", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "The plan, as the company sent it." in shown.stdout


def test_a_crash_shows_nobodys_rows(tmp_path: Path) -> None:
    """Tracebacks name lines of code; what variables held stays untold."""
    script = tmp_path / "crash.py"
    script.write_text(
        "import isonomy.company.rehearsal.simulate as s\n"
        "from isonomy.company.cli.main import app\n"
        "def fails(dataset, settings, **more):\n"
        "    rows = ['row of ' + 'Zoë']\n"
        "    raise RuntimeError('broken')\n"
        "s.simulate = fails\n"
        "app(['simulate', '--dataset', 'lending'])\n",
        encoding="utf-8",
    )
    ended = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, encoding="utf-8"
    )
    assert ended.returncode != 0
    assert "broken" in ended.stderr
    assert "row of Zoë" not in ended.stdout + ended.stderr


def test_an_error_has_its_exit_code_and_is_json_if_asked_for() -> None:
    command = [BIN / "isonomy", "simulate", "--dataset", "nonesuch", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 12
    assert json.loads(ended.stdout)["error"]["kind"] == "DataError"
    assert "unknown data set 'nonesuch'" in ended.stderr


@pytest.mark.parametrize("program", APPS)
def test_every_command_takes_v(program: str) -> None:
    def leaves(command: Any) -> list[Any]:
        nested = getattr(command, "commands", None)
        return [leaf for c in nested.values() for leaf in leaves(c)] if nested else [command]

    commands = leaves(typer.main.get_command(APPS[program]))
    assert len(commands) > 5
    for command in commands:
        assert any("-v" in option.opts for option in command.params), command.name


def test_a_strategy_that_no_session_accepts_is_refused_where_it_is_written(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"  # refused before any file is read
    arguments = ["plan", "--regulator", nothing, "--people", nothing, "--relay", "localhost"]
    arguments += ["--attribute", "sex=f,m", "--epsilon", "1", "--home", nothing]
    plan = tmp_path / "plan.json"
    for name in ("pfld", "PF_LD", "", "f_ld", "pf-ld\u00e9"):
        with pytest.raises(ConfigError, match="tilt, pf_ld, dp_fermi, dp_sgda, audit"):
            typer.main.get_command(company_app)(
                [*map(str, arguments), "--strategy", name, "-o", str(plan)], standalone_mode=False
            )
    assert not plan.exists()


def test_a_plan_names_the_strategies_that_can_ask_in_a_session() -> None:
    private = [name for name, kind in GRADIENT_STRATEGIES.items() if not _reads_attributes(kind)]
    assert ("tilt", *private, "audit") == STRATEGIES
    assert set(STRATEGIES) <= set(POLICY_STRATEGIES)


def _reads_attributes(strategy: type) -> bool:
    return bool(getattr(strategy, "reads_attributes", False))
