"""Runs whole federations in processes and kills one of them at a chosen step. Used by
test_session_faults.py; nothing here is product code.

    python fault_party.py FOLDER COMPANIES VICTIM:STEP…       one JSON line per scenario

Every scenario has a relay, a regulator and companies (names joined by commas), each a process of
its own (forked from this one before it has touched gRPC, to save the imports). The victim counts
the events of its protocol code, before and after each, and sends itself SIGKILL at the given one.
Whoever is killed is started again, without a fault. A scenario ends when all companies have
finished their script.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pooled_kit import pooled_oracle
from session_kit import FAST, Federation

from isonomy.common.ledger.ledger import Ledger, verify_ledger
from isonomy.common.pads.key_store import KeyStore
from isonomy.common.people.cohort import Cohort
from isonomy.common.pooled.half import PooledHalf
from isonomy.common.pooled.people import company_index, share_slices
from isonomy.common.pooled.serving import serve_pooled
from isonomy.common.remote.exchanges import remote_oracle, serve_queries
from isonomy.common.session.connection import Mailbox, Session
from isonomy.common.session.tickets import Ticket
from isonomy.common.sums.openings import FolderOpenings
from isonomy.server.relay._state import RelayState
from isonomy.server.relay.relay import RelayServer

SCENARIO_S = 40
EVENTS = {
    "company": [
        (Session, "on_message"),
        (Mailbox, "put"),
        (FolderOpenings, "save"),
        (FolderOpenings, "acknowledge"),
        (KeyStore, "save"),
    ],
    "regulator": [
        (Session, "on_message"),
        (Mailbox, "put"),
        (Ledger, "debit"),
        (KeyStore, "save"),
    ],
    "relay": [(RelayState, "admit"), (RelayState, "pass_on"), (RelayServer, "_save")],
}


def install(role: str, die_at: int, counted: Path) -> None:
    """Count events of this role; die at the given one (0: only count)."""
    seen = 0

    def step() -> None:
        nonlocal seen
        seen += 1
        if die_at == 0:
            counted.write_text(str(seen))
        elif seen == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            step()
            result = original(*args, **kwargs)
            step()
            return result

        return wrapped

    for owner, name in EVENTS.get(role, EVENTS["company"]):
        setattr(owner, name, wrap(getattr(owner, name)))


# --- The three processes --------------------------------------------------------------------------


def relay(folder: Path, address: str) -> None:
    Federation.load(folder).relay(address).start()
    while True:
        signal.pause()


def regulator(folder: Path, _: str) -> None:
    federation = Federation.load(folder)
    half, ledger = federation.half()
    with ledger, federation.session(ticket(folder, "regulator"), timing=FAST) as session:
        if isinstance(half, PooledHalf):
            serve_pooled(session, half)
        else:
            serve_queries(session, half)


def company(folder: Path, name: str) -> None:
    """A script that begins anew after each kill; stored answers make it go on where it was."""
    federation = Federation.load(folder)
    rows, cohort = federation.rows(), federation.cohort
    with federation.session(ticket(folder, name), timing=FAST) as session:
        openings = FolderOpenings(folder / name / "openings")
        kind = remote_oracle
        if federation.plan.shares:
            place = share_slices(federation.plan)[company_index(federation.plan, name)]
            rows, cohort, kind = rows[place], Cohort(cohort.ids[place]), pooled_oracle
        options: dict[str, Any] = {"openings": openings}
        if federation.plan.carrier == "pads":
            store = partial(KeyStore, len(cohort), company=True, sealing=b"s")
            options["keys"] = store(folder=folder / name / "openings")
        oracle = kind(session, cohort, **options)
        some = list(range(len(cohort) // 2))
        note(folder, oracle.counts(share=0.2))
        note(folder, oracle.blind_sum(rows, norm=2.0, share=0.3))
        note(folder, oracle.open_sum(rows[: len(some)], norm=2.0, people=some, share=0.3))


def note(folder: Path, release: Any) -> None:
    with (folder / "answers.jsonl").open("a") as file:
        line = {
            "id": release.receipt.query_id,
            "units": release.receipt.units,
            "sequence": release.receipt.sequence,
            "values": release.values.tolist(),
        }
        file.write(json.dumps(line) + "\n")


def ticket(folder: Path, party: str) -> Ticket:
    return Ticket.from_json((folder / f"{party}.ticket").read_bytes())


# --- Supervision ----------------------------------------------------------------------------------


def spawn(role: str, folder: Path, address: str, die_at: int | None) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        log = os.open(folder / f"{role}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 2)
        if die_at is not None:
            install(role, die_at, folder / f"{role}.events")
        if role == "relay":
            relay(folder, address)
        elif role == "regulator":
            regulator(folder, address)
        else:
            company(folder, role)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def prepare(folder: Path, companies: list[str], carrier: str) -> str:
    federation = Federation.create(folder, size=64, companies=companies, carrier=carrier)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    issuer: RelayServer = federation.relay(address, advertise=address)
    for party in (*companies, "regulator"):
        role = "regulator" if party == "regulator" else "company"
        (folder / f"{party}.ticket").write_bytes(issuer.issue_ticket(role, party).to_json())
    return address


def scenario(
    folder: Path, companies: list[str], carrier: str, victim: str, step: int
) -> dict[str, Any]:
    folder.mkdir(parents=True)
    address = prepare(folder, companies, carrier)
    begun, ended, killed, failed = time.monotonic(), 0.0, 0, ""
    pids = {}
    for role in ("relay", "regulator", *companies):
        fault = step if role == victim else (0 if not victim else None)
        pids[spawn(role, folder, address, fault)] = role
    working = set(companies)
    while working and not failed:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            time.sleep(0.01)
            if "regulator" not in pids.values() and time.monotonic() - ended > 1:
                # It heard that the company was done; but the company was killed before it knew,
                # and comes again. A daemon would be asked to join again.
                pids[spawn("regulator", folder, address, None)] = "regulator"
            if time.monotonic() - begun > SCENARIO_S:
                failed = f"{working} did not finish in time"
            continue
        role = pids.pop(pid)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            killed += 1
            pids[spawn(role, folder, address, None)] = role
        elif status:
            failed = f"{role} failed: {(folder / f'{role}.log').read_text()[-2000:]}"
        elif role == "regulator":
            ended = time.monotonic()
        else:
            working.discard(role)
    finish(pids)
    return {
        "victim": victim,
        "step": step,
        "killed": killed,
        "failed": failed,
        "seconds": round(time.monotonic() - begun, 2),
        **({} if failed else outcome(folder)),
    }


def finish(pids: dict[int, str]) -> None:
    """Let the regulator end by itself (it was told), then stop what is left."""
    deadline = time.monotonic() + 3
    while "regulator" in pids.values() and time.monotonic() < deadline:
        pid, _ = os.waitpid(-1, os.WNOHANG)
        pids.pop(pid, None)
        time.sleep(0.01)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def outcome(folder: Path) -> dict[str, Any]:
    summary = verify_ledger(folder / "regulator" / "ledger.jsonl")
    with Ledger.open(folder / "regulator" / "ledger.jsonl") as ledger:
        (plan,) = ledger.plans()
        lines = [json.loads(x) for x in (folder / "answers.jsonl").read_text().splitlines()]
        found = {line["id"]: ledger.find(line["id"]) for line in lines}
        spent = ledger.spent_units(plan.plan)
        sequences = {key: record.seq if record else -1 for key, record in found.items()}
    events = {path.stem: path for path in folder.glob("*.events")}
    return {
        "answers": lines,
        "debits": summary.debits,
        "spent": spent,
        "sequences": sequences,
        "events": {role: int(path.read_text()) for role, path in events.items()},
    }


def main() -> None:
    root, companies, *wanted = sys.argv[1:]
    for number, text in enumerate(wanted):
        victim, _, step = text.partition(":")
        folder = Path(root) / f"{number}-{victim or 'none'}"
        names, _, carrier = companies.partition("@")
        carrier = carrier or "homomorphic"
        result = scenario(folder, names.split(","), carrier, victim, int(step or 0))
        print(json.dumps(result), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
