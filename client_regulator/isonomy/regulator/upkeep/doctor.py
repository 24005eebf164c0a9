"""`doctor`: look at everything that a regulator rests on, and say how to mend what is wrong.

Nothing is changed, no secret is asked for. A finding is `ok`, `warn` (works, but look at it) or
`fail` (does not work, or is not safe).
"""

from __future__ import annotations

import grp
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from cryptography import x509

from isonomy.common.agreements.approvals import Approvals, ApprovalStore
from isonomy.common.base.errors import IsonomyError
from isonomy.common.few_shot.rounds.plan import FewShotPlan
from isonomy.common.keys.party import PartyKeys, fingerprint
from isonomy.common.ledger.ledger import CLOCK_TOLERANCE_S, verify_ledger
from isonomy.common.node.bridge_server import MAX_PATH_BYTES
from isonomy.common.node.node import check_port
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.plans.approval import check_cohorts
from isonomy.regulator.plans.few_shot_approval import refusals as few_shot_refusals
from isonomy.regulator.serving.officer import daemon_status
from isonomy.regulator.serving.witness import known_witnesses, vault_generation
from isonomy.regulator.upkeep.forget import unfinished
from isonomy.regulator.upkeep.remains import ALIGNMENTS
from isonomy.regulator.vault.member_key import member_key
from isonomy.regulator.vault.unlock import MIN_FILE_BYTES, secret_from_file
from isonomy.regulator.vault.vault import Vault

EXPIRES_SOON_DAYS = 30
LEAST_FREE_BYTES = 1 << 30
NODE_PORT = 9094
_NEEDED = ("cryptography", "grpcio", "flwr", "tenseal", "pyarrow")

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line of the examination."""

    check: str
    level: Level
    text: str
    mend: str = ""


def examine(config: RegulatorConfig, *, port: int = NODE_PORT) -> list[Finding]:
    """All checks, in order; a check that fails itself is a finding too."""
    checks: list[tuple[str, Callable[[RegulatorConfig], Iterator[Finding]]]] = [
        ("versions", _versions),
        ("keys", _keys),
        ("permissions", _permissions),
        ("vault", _vault),
        ("ledger", _ledger),
        ("clock", _clock),
        ("certificates", _certificates),
        ("policy", _policy),
        ("cohorts", _cohorts),
        ("plans", _plans),
        ("deletions", _deletions),
        ("sockets", _sockets),
        ("ports", lambda own: _ports(own, port)),
        ("disk", _disk),
    ]
    found: list[Finding] = []
    for name, check in checks:
        try:
            found += check(config)
        except IsonomyError as error:
            found.append(Finding(name, "fail", str(error), "see docs/exit-codes.md"))
        except OSError as error:
            found.append(Finding(name, "fail", f"{error.filename}: {error.strerror}", "look at it"))
    return found


def _versions(config: RegulatorConfig) -> Iterator[Finding]:
    if not hasattr(os, "memfd_create"):
        yield Finding("versions", "fail", f"{platform.system()} is not Linux", "use Linux")
    missing = []
    for name in _NEEDED:
        try:
            version(name)
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        mend = "pip install 'isonomy[regulator]'"
        yield Finding("versions", "fail", f"not installed: {', '.join(missing)}", mend)
    yield Finding(
        "versions", "ok", f"isonomy {version('isonomy')}, Python {sys.version.split()[0]}"
    )


def _keys(config: RegulatorConfig) -> Iterator[Finding]:
    keys = PartyKeys.load(config.keys_folder)
    member_key(config)
    if keys.name != config.name:
        text = f"the keys belong to {keys.name!r}, the policy names {config.name!r}"
        yield Finding("keys", "fail", text, "write the card's name into regulator.toml")
    yield Finding("keys", "ok", f"{keys.name}, fingerprint {fingerprint(keys.card())}")


def _permissions(config: RegulatorConfig) -> Iterator[Finding]:
    secret = [config.ledger.path, config.vault.path, config.tls.key, config.home / "regulator.toml"]
    secret += [*config.keys_folder.glob("*.key"), *config.plans_folder.glob("*.people")]
    secret += (config.home / ALIGNMENTS).glob("*.people")
    bad = [path for path in secret if path.exists() and path.stat().st_mode & 0o077]
    for path in bad:
        text = f"{path} is open to other users"
        yield Finding("permissions", "fail", text, f"chmod 600 {path}")
    if config.home.stat().st_mode & 0o066:
        text = f"{config.home} can be read by other users"
        yield Finding("permissions", "fail", text, f"chmod 711 {config.home} (or 700)")
    plain = [*config.home.glob("*.csv"), *config.home.glob("*.parquet")]
    for path in plain:
        text = f"{path} may hold attributes in plain text"
        yield Finding("permissions", "warn", text, "enroll it, then remove it")
    if not bad:
        yield Finding("permissions", "ok", "secrets are readable by their owner only")


def _vault(config: RegulatorConfig) -> Iterator[Finding]:
    header = Vault.header(config.vault.path)
    people = header.public.get("people", 0)
    if not people:
        yield Finding("vault", "warn", "nobody is enrolled", "isonomy-regulator enroll FILE …")
    unlock = config.vault.unlock_file
    if unlock is not None and config.home in unlock.parents:
        text = "the unlock file lies beside the vault: a copy of the home opens itself"
        yield Finding("vault", "warn", text, "keep it on another disk, or use a passphrase")
    if unlock is not None and not unlock.exists():
        yield Finding("vault", "fail", f"{unlock} is missing", "mount it, or correct [vault]")
    elif unlock is not None and secret_from_file(unlock).size < MIN_FILE_BYTES:
        text = f"{unlock} holds fewer than {MIN_FILE_BYTES} bytes, which can be guessed"
        mend = "isonomy-regulator rotate vault --new-unlock-file FILE (a new one is made)"
        yield Finding("vault", "fail", text, mend)
    yield Finding("vault", "ok", f"{people} people, schema {header.schema}, encrypted")


def _ledger(config: RegulatorConfig) -> Iterator[Finding]:
    path = config.ledger.path
    for copy in config.witness_copies:
        if config.home.resolve() in copy.resolve().parents:
            text = f"the witness copy {copy} lies in the home, and is lost with it"
            yield Finding("ledger", "warn", text, "name a path on another disk (witness_copies)")
    if not path.exists():
        if known_witnesses(config):
            mend = "restore the newest backup"
            yield Finding("ledger", "fail", "the ledger is gone, its witness is not", mend)
        else:
            yield Finding("ledger", "ok", "none yet: the first approval opens it")
        return
    found = verify_ledger(path)
    for witness in known_witnesses(config):
        verify_ledger(path, known_head=witness.head)
        if vault_generation(config) < witness.vault_generation:
            text = "the vault is older than the one that was witnessed"
            yield Finding("ledger", "fail", text, "put the newest vault back")
    if config.ledger.cap_units > found.cap_units:
        text = "the policy's total is above the one that the ledger was opened with"
        yield Finding("ledger", "warn", text, "the ledger's counts: a total is never raised")
    if found.torn:
        text = "the last record was written in part; nothing of it left this machine"
        yield Finding("ledger", "warn", text, "nothing: it is cut off at the next start")
    yield Finding("ledger", "ok", f"{found.records} records hold, {found.debits} answers")


def _clock(config: RegulatorConfig) -> Iterator[Finding]:
    now = int(time.time())
    last = verify_ledger(config.ledger.path).last_time if config.ledger.path.exists() else 0
    if last - now > CLOCK_TOLERANCE_S:
        text = f"the clock stands {last - now} s before the ledger's last record: no answers"
        mend = "set the clock; if it was wrong *then*: isonomy-regulator doctor --accept-clock"
        yield Finding("clock", "fail", text, mend)
    elif config.tls.cert.exists():
        begins = _certificate(config.tls.cert).not_valid_before_utc
        if begins > datetime.now(UTC):
            text = f"the clock stands before the certificate's first day, {begins:%Y-%m-%d}"
            yield Finding("clock", "fail", text, "set the clock")
    yield Finding("clock", "ok", datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"))


def _certificates(config: RegulatorConfig) -> Iterator[Finding]:
    if not config.tls.cert.exists():
        text = f"{config.tls.cert} is missing: sessions cannot be joined"
        mend = "send tls/tls.csr to the server's operator, then isonomy-regulator tls-install FILE"
        yield Finding("certificates", "fail", text, mend)
        return
    config.tls_files.read()
    ends = _certificate(config.tls.cert).not_valid_after_utc
    left = (ends - datetime.now(UTC)).days
    level: Level = "warn" if left < EXPIRES_SOON_DAYS else "ok"
    mend = "isonomy-regulator rotate certificate" if level == "warn" else ""
    yield Finding("certificates", level, f"good until {ends:%Y-%m-%d} ({left} days)", mend)


def _policy(config: RegulatorConfig) -> Iterator[Finding]:
    policy = config.policy
    if not policy.auditor or float(policy.inspection_rate) == 0:
        text = "plans need no inspections: a company that cheats in its rows is not caught"
        mend = "name an auditor and an inspection_rate in [policy]"
        yield Finding("policy", "warn", text, mend)
    if float(config.ledger.epsilon) > 10:
        text = f"a total of ε = {config.ledger.epsilon} protects little"
        yield Finding("policy", "warn", text, "totals of 1 to 3 are usual")
    yield Finding("policy", "ok", f"ε = {config.ledger.epsilon}, δ = {config.ledger.delta}")


def _cohorts(config: RegulatorConfig) -> Iterator[Finding]:
    """Names of cohorts are encrypted: they are looked at only if that takes no question."""
    if not config.cohorts:
        return
    unlock = config.vault.unlock_file
    if unlock is None:
        text = f"{len(config.cohorts)} totals by cohort; `approve` checks that people are in them"
        yield Finding("cohorts", "ok", text)
        return
    check_cohorts(config, Vault(config.vault.path, secret_from_file(unlock)).read())
    yield Finding("cohorts", "ok", f"{len(config.cohorts)} totals, for people who are enrolled")


def _deletions(config: RegulatorConfig) -> Iterator[Finding]:
    for begun in unfinished(config):
        kind, name = begun.target.split(" ", 1)
        text = f"forgetting {kind} {name} was cut short: it has no signed record yet"
        yield Finding("deletions", "fail", text, f"isonomy-regulator forget {name}")


def _plans(config: RegulatorConfig) -> Iterator[Finding]:
    approvals = Approvals(config.plans_folder)
    hashes = approvals.hashes()
    own = PartyKeys.load(config.keys_folder).card()
    for plan_hash in hashes:
        plan, _ = approvals.require(plan_hash)
        broken = config.policy.refusals(plan, config.ledger.delta)
        short = plan_hash.hex()[:12]
        if plan.regulator != own:
            text = f"plan {short}… names an older identity of ours"
            yield Finding("plans", "fail", text, f"isonomy-regulator reject {short}")
        if broken:
            text = f"plan {short}… is no longer within the policy: {'; '.join(broken)}"
            yield Finding("plans", "fail", text, f"isonomy-regulator reject {short}")
    training = ApprovalStore(config.few_shot_folder, FewShotPlan).all()
    for run in training:
        short = run.hash.hex()[:12]
        broken = few_shot_refusals(config.policy, run, config.ledger.delta)
        if run.regulator != own:
            broken.append("it names an older identity of ours")
        if broken:
            text = f"few-shot plan {short}… is no longer within the policy: {'; '.join(broken)}"
            yield Finding("plans", "fail", text, f"isonomy-regulator reject {short}")
    yield Finding("plans", "ok", f"{len(hashes) + len(training)} approved")


def _sockets(config: RegulatorConfig) -> Iterator[Finding]:
    for path in (config.socket, config.officer_socket):
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            text = f"{path} is longer than the {MAX_PATH_BYTES} bytes that Linux takes"
            yield Finding("sockets", "fail", text, "move the home to a shorter path")
    if config.group is not None and not config.group.isdigit():
        try:
            grp.getgrnam(config.group)
        except KeyError:
            text = f"there is no group {config.group!r} on this machine"
            yield Finding("sockets", "fail", text, f"groupadd {config.group}")
    running = daemon_status(config) is not None
    text = "the daemon answers" if running else "no daemon is running"
    yield Finding("sockets", "ok" if running else "warn", text, "" if running else "serve")


def _ports(config: RegulatorConfig, port: int) -> Iterator[Finding]:
    try:
        check_port("127.0.0.1", port)
        yield Finding("ports", "ok", f"{port} is free for the Flower node")
    except IsonomyError:
        mend = "nothing if that is the node itself; else start it with another --port"
        yield Finding("ports", "warn", f"{port} is taken", mend)


def _disk(config: RegulatorConfig) -> Iterator[Finding]:
    free = shutil.disk_usage(config.home).free
    level: Level = "ok" if free >= LEAST_FREE_BYTES else "warn"
    mend = "" if level == "ok" else "make room: without it nothing can be answered"
    yield Finding("disk", level, f"{free / 1e9:.1f} GB free", mend)


def _certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())
