"""What benches share that need other processes: a relay, sessions, a federation, a table."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.table import Table

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.agreements.plan import Plan
from isonomy.common.keys.certificates import TlsFiles
from isonomy.common.keys.party import PartyKeys
from isonomy.common.session.connection import Session
from isonomy.common.session.tickets import Ticket
from isonomy.common.sums.local import scratch_folder
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.demo.federation import START_S, Federation
from isonomy.company.demo.layout import DemoSettings, Layout
from isonomy.company.demo.population import Population
from isonomy.company.demo.prepare import prepare
from isonomy.company.demo.processes import Processes, Running
from isonomy.company.federation.joining import join


def start_relay(layout: Layout, public: Path, processes: Processes) -> Running:
    """A relay process for an agreement's public part; its tickets are in ROOT/tickets."""
    tickets = ("--tickets", str(layout.root / "tickets"))
    command = ["isonomy-server", "relay", str(public), *tickets, "-c", str(layout.server_config)]
    relay = processes.start("relay", command)
    processes.until(lambda: relay.says('"ready"'), "the relay", START_S)
    return relay


def open_session(layout: Layout, name: str, agreement: Agreement) -> Session:
    """A party's session with that relay, not started yet."""
    ticket = Ticket.from_json((layout.root / "tickets" / f"{name}.ticket").read_bytes())
    tls = TlsFiles.of(layout.root / name / "tls")
    return Session(ticket, tls, party_keys(layout, name), agreement)


@contextmanager
def federated_oracle(settings: DemoSettings) -> Iterator[tuple[Population, GroupOracle]]:
    """The demonstration's people, and an oracle through its server, relay, nodes and daemon.

    This process is the company. All files are in memory where there is room, as those of
    rehearsals: what a disk takes for an fsync is not in the figures.
    """
    with (
        tempfile.TemporaryDirectory(prefix="isonomy-bench-", dir=scratch_folder()) as folder,
        Processes(Path(folder) / "logs") as processes,
    ):
        layout = Layout.make(Path(folder) / "parties")
        population = prepare(layout, settings, processes)
        federation = Federation(layout, processes)
        federation.start()
        federation.open_session()
        plan, home = Plan.load(layout.plan), layout.company.folder
        with join(plan, home=home, wait_s=START_S, progress=False) as oracle:
            yield population, oracle
        federation.outcome()


def party_keys(layout: Layout, name: str) -> PartyKeys:
    """The keys of "company" or "regulator", as the demonstration prepared them."""
    return PartyKeys.load(layout.root / name / "keys")


def figures(result: Mapping[str, Any], title: str) -> tuple[Table]:
    """The figures by name, as a table; a figure in parts has a row for each."""
    table = Table("", "", title=title, show_header=False)
    for name, value in result.items():
        parts = value.items() if isinstance(value, Mapping) else [("", value)]
        for part, figure in parts:
            table.add_row(f"{name}: {part}" if part else name, f"{figure:g}")
    return (table,)
