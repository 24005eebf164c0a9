"""`serve` and `status`: the daemon, and what it is doing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from isonomy.common.base.command_line import MetricsPort
from isonomy.common.base.output import emit
from isonomy.common.ledger.reading import ledger_bar
from isonomy.common.privacy.shown import at_least, at_most
from isonomy.regulator.cli.output import Home, UnlockFile, open_vault
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.serving.status import moment, read_status


def serve(
    home: Home = Path(),
    unlock_file: UnlockFile = None,
    log_file: Annotated[
        Path | None,
        typer.Option("--log-file", help="Write the log to this file; older parts stay beside it."),
    ] = None,
    metrics_port: MetricsPort = 0,
) -> None:
    """Run the daemon: it answers questions of approved plans until it is stopped.

    Give it a user account of its own. The Flower node runs under another account and reaches the
    daemon through a socket only. The log goes to stderr, or to --log-file, one JSON object a line.

    \b
    Examples:
    isonomy-regulator serve --home /srv/regulator --unlock-file /run/credentials/vault
    """
    from isonomy.regulator.serving.daemon import Daemon  # `verify` needs no encryption

    config = RegulatorConfig.load(home)
    if log_file is not None:
        log = config.log.model_copy(update={"file": log_file.absolute()})
        config = config.model_copy(update={"log": log})
    vault = open_vault(config, unlock_file)
    vault.read()  # a wrong passphrase shows now, not in a session
    with Daemon(config, vault) as daemon:
        daemon.serve(metrics_port)


def status(home: Home = Path()) -> None:
    """Show whether the daemon runs, all plans and their budgets, and what waits or was rejected.

    It needs no passphrase and no running daemon. It names none of the people.

    \b
    Examples:
    isonomy-regulator status --home /srv/regulator
    """
    with ledger_bar():
        current = read_status(RegulatorConfig.load(home))
    emit(current, _for_people(current))


def _for_people(status: Mapping[str, Any]) -> str:
    """Return the status in lines of text."""
    daemon = status["daemon"]
    lines = [
        f"{status['name']}: {status['enrolled']:,} people enrolled, {status['aligned']:,} in open "
        "plans"
    ]
    if daemon is None:
        lines.append("  daemon       not running (isonomy-regulator serve)")
    else:
        lines.append(f"  daemon       process {daemon['pid']}, since {moment(daemon['since'])}")
        lines += [
            f"  session      plan {session['plan'][:12]}…, {session['answered']} answers in this "
            f"session{'' if session['connected'] else ', waits for the server'}"
            for session in daemon["sessions"]
        ]
    lines.append(
        f"  budget       ε = {at_most(status['epsilon_cap'])} per person at δ = "
        f"{status['delta']}; the one with least left has {status['share_left']:g} % of it "
        f"(ε = {at_least(status['epsilon_left'])})"
    )
    for plan in status["plans"]:
        state = "open" if plan["is_open"] else "closed"
        title = ": ".join(text for text in (plan["name"], plan["purpose"]) if text)
        lines.append(
            f"  plan {plan['hash'][:12]}…  {state}, "
            f"{', '.join(plan['companies']) or 'unknown company'}{f' ({title})' * bool(title)}: "
            f"{plan['people']:,} {plan['subjects']}, {plan['answers']} answers, "
            f"{plan['share_spent']:g} % of its budget spent (ε = {at_most(plan['epsilon_spent'])} "
            f"of {at_most(plan['epsilon_reserved'])})"
        )
    lines += [
        f"  plan {record['plan'][:12]}…  waits for another officer; approved by "
        f"{' and '.join(record['officers'])}"
        for record in status["waiting"]
    ]
    lines += [
        f"  plan {record['plan'][:12]}…  rejected {moment(record['time'])} by {record['officer']}"
        + (f": {record['reason']}" if record["reason"] else "")
        for record in status["rejections"]
    ]
    return "\n".join(lines)
