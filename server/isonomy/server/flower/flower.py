"""Flower's own commands, called from here: register a node, start a run, ask for its state.

`flwr` takes seconds to load and its answers are JSON, so it is loaded once, in this process, and
called as a command line would call it. `flwr run --stream` ends with 0 even if the run failed, so
the run's state is asked for.
"""

from __future__ import annotations

import io
import json
import os
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from isonomy.common.base.errors import ConfigError, TransportError
from isonomy.common.base.logs import is_verbose
from isonomy.common.node.node import flower_environment
from isonomy.server.config import CONFIG_VARIABLE, ServerConfig

CONNECTION = "isonomy"


class RunFailed(TransportError):  # noqa: N818  (reads as the event it is)
    """The Flower run ended without a completed session."""


def superlink_command(config: ServerConfig, path: Path) -> tuple[list[str], dict[str, str]]:
    """Return the SuperLink's command line and environment: TLS, and only registered nodes."""
    tls = config.tls
    command = [
        "flower-superlink",
        *("--ssl-certfile", str(tls.cert), "--ssl-keyfile", str(tls.key)),
        *("--ssl-ca-certfile", str(tls.ca)),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        *("--host", config.superlink.host, "--port", str(config.superlink.port)),
        *("--database", str(config.home / "superlink.db")),
    ]
    environment = flower_environment(config.home / "flower")
    environment[CONFIG_VARIABLE] = str(path.resolve())
    return command, environment


class Flower:
    """The `flwr` command against this server's SuperLink."""

    def __init__(self, config: ServerConfig) -> None:
        home = config.home / "flower-cli"
        os.environ.update(flower_environment(home))
        host = config.superlink.host
        if host in ("0.0.0.0", "::"):  # noqa: S104  (compared with, not listened on)
            host = "127.0.0.1"
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "{host}:{config.superlink.port}"\n'
            f'root-certificates = "{config.tls.ca}"\n'
        )

    def register(self, public_key: Path, name: str) -> None:
        """Let the node with this key in, as this party."""
        self._flwr("supernode", "register", str(public_key), CONNECTION, "--name", name)

    def run(self, plan_hash: str) -> str:
        """Start a run of the session app for a plan; returns Flower's run id."""
        return self._run("flower_app", f'plan="{plan_hash}" verbose={str(is_verbose()).lower()}')

    def measure(self, legs: int, size: int) -> str:
        """Start a run of the app that times Flower messages; returns Flower's run id."""
        return self._run("flower_bench", f"legs={legs} bytes={size}")

    def _run(self, app: str, settings: str) -> str:
        folder = Path(str(files("isonomy.server.flower") / app))
        return str(self._flwr("run", str(folder), CONNECTION, "-c", settings)["run-id"])

    def status(self, run_id: str) -> str:
        """Return `pending`, `starting`, `running` or `finished:…`."""
        (run,) = self._flwr("list", CONNECTION, "--run-id", run_id)["runs"]
        return str(run["status"])

    def stop(self, run_id: str) -> None:
        """Stop a run: the ServerApp and the ClientApps end, the daemons keep their state."""
        self._flwr("stop", run_id, CONNECTION)

    def _flwr(self, *arguments: str) -> dict[str, Any]:
        from flwr.cli.app import app  # seconds of imports, needed by few commands

        # Flower prints its JSON to sys.__stdout__, and sets sys.stdout to that when it is done.
        output, real = io.StringIO(), (sys.__stdout__, sys.stdout, sys.stderr)
        sys.__stdout__ = output  # type: ignore[misc,assignment]
        try:
            app([*arguments, "--format", "json"], standalone_mode=False)
        except (click.ClickException, click.exceptions.Exit, SystemExit):
            pass  # the JSON says what went wrong
        finally:
            sys.__stdout__, sys.stdout, sys.stderr = real  # type: ignore[misc]
        try:
            reply = json.loads(output.getvalue())
        except ValueError:
            reply = {}
        if not reply.get("success"):
            reason = str(reply.get("error-message", "no answer")).strip()
            raise ConfigError(f"Flower refused `flwr {' '.join(arguments[:2])}`: {reason}")
        return dict(reply)
