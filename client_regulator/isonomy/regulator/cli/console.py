"""`console`: the officer's day in a browser on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.base.output import emit
from isonomy.regulator.cli.output import Home
from isonomy.regulator.config.config import RegulatorConfig


def console(
    home: Home = Path(),
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")
    ] = 8480,
    officer_key: Annotated[
        list[Path] | None,
        typer.Option(help="Key of an officer who may act here; repeat it for a second officer."),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Show everything, change nothing.")
    ] = False,
    address: Annotated[
        bool, typer.Option("--address", help="Print a new one-time address of the running console.")
    ] = False,
    in_container: Annotated[
        bool,
        typer.Option(
            "--in-container",
            help="Listen on the container's network; its port must be published on 127.0.0.1.",
        ),
    ] = False,
) -> None:
    """Open the officer's console: plans, live sessions, ledger, reports, people and upkeep.

    It prints an address for a browser on this machine, which works once and for five minutes.
    --address prints another one. Whoever acts types a passphrase each time: that of their officer's
    key (--officer-key), else the vault's; where a file unlocks the vault, that file's content.

    \b
    Examples:
    isonomy-regulator console --home /srv/regulator
    isonomy-regulator console --home /srv/regulator --officer-key ada.key --officer-key grace.key
    isonomy-regulator console --home /srv/regulator --address
    """
    from isonomy.regulator.console.serve import another_address, serve_console

    config = RegulatorConfig.load(home)

    def announce(text: str) -> None:
        emit({"address": text}, text)

    if address:
        announce(another_address(config))
        return
    serve_console(
        config,
        port=port,
        key_files=officer_key or (),
        read_only=read_only,
        in_container=in_container,
        announce=announce,
    )
