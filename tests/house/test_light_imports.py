"""What a role's machine need not have: the images of server and regulator carry no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

LEARNING = "torch sklearn opacus fairlearn"
SERVER = "isonomy.server.cli isonomy.server.flower.server_app isonomy.common.node.client_app"
ROUNDS = "isonomy.common.agreements.few_shot_settings isonomy.common.few_shot.rounds.sides"
FEW_SHOT = ROUNDS + "".join(
    f" isonomy.common.few_shot.learning.{name}"
    for name in ("tasks", "pool_file", "_private", "_fair", "memory", "_state")
)


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        (SERVER, LEARNING + " tenseal"),
        ("isonomy.regulator.cli isonomy.regulator.serving.daemon", LEARNING),
        ("isonomy.regulator.cli", LEARNING + " tenseal jinja2"),  # `verify` needs none of it
        ("isonomy.common.report.command", LEARNING + " tenseal grpc flwr jinja2 pandas"),
        (FEW_SHOT, LEARNING),  # what carries a few-shot run needs no torch; who learns does
        ("isonomy.company.cli.company", LEARNING),  # quick to start, because it needs none
    ],
)
def test_a_role_starts_without(modules: str, absent: str) -> None:
    code = (
        "import sys\n"
        f"for name in {absent.split()!r}: sys.modules[name] = None\n"
        f"import {modules.replace(' ', ', ')}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
