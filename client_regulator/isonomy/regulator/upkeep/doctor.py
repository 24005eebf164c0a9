"""`doctor`: check everything that a regulator rests on, and say how to fix what is wrong.

Nothing is changed, and no secret is asked for. A finding is `ok`, `warn` (it works, but read it) or
`fail` (it does not work, or is not safe).
"""

from __future__ import annotations

import grp
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from cryptography import x509

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.agreements.approvals import Approvals
from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import IsonomyError
from isonomy.common.keys.party import PartyKeys, fingerprint
from isonomy.common.kits.access import witness_fix, write_fault
from isonomy.common.ledger.ledger import CLOCK_TOLERANCE_S, read_ledger, verify_ledger
from isonomy.common.ledger.records import Note, Sealed
from isonomy.common.ledger.state import LedgerState
from isonomy.common.node.bridge_server import MAX_PATH_BYTES
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.plans.approval import check_cohorts, refusals
from isonomy.regulator.plans.plan_files import few_shot_approvals, ledger_state
from isonomy.regulator.plans.sign_off import check_sign_off
from isonomy.regulator.serving.officer import daemon_status
from isonomy.regulator.serving.witness import known_witnesses, load_witness, vault_generation
from isonomy.regulator.upkeep.forget import unfinished
from isonomy.regulator.vault.member_key import member_key
from isonomy.regulator.vault.unlock import MIN_FILE_BYTES, secret_from_file
from isonomy.regulator.vault.vault import Vault

EXPIRES_SOON_DAYS = 30
LEAST_FREE_BYTES = 1 << 30
_PACKAGES = ("cryptography", "grpcio", "flwr", "tenseal", "pyarrow")


@dataclass(frozen=True)
class Finding:
    """One line of the examination."""

    level: Literal["ok", "warn", "fail"]
    text: str
    fix: str = ""
    check: str = ""


Findings = Iterator[Finding]
_ok, _warn, _fail = (partial(Finding, level) for level in ("ok", "warn", "fail"))


def examine(config: RegulatorConfig) -> list[Finding]:
    """Return the findings of all checks, in order. A check that cannot be made has failed."""
    checks: dict[str, Callable[[RegulatorConfig], Findings]] = {
        "versions": _versions,
        "keys": _keys,
        "permissions": _permissions,
        "vault": _vault,
        "ledger": _ledger,
        "witness": _witness,
        "clock": _clock,
        "certificates": _certificates,
        "policy": _policy,
        "cohorts": _cohorts,
        "plans": _plans,
        "deletions": _deletions,
        "sockets": _sockets,
        "disk": _disk,
    }
    return [
        replace(finding, check=name)
        for name, check in checks.items()
        for finding in _findings(config, check)
    ]


def _findings(
    config: RegulatorConfig, check: Callable[[RegulatorConfig], Findings]
) -> list[Finding]:
    findings: list[Finding] = []
    try:
        findings += check(config)
    except IsonomyError as error:
        findings.append(_fail(str(error), "see docs/exit-codes.md"))
    except OSError as error:
        findings.append(_fail(f"{error.filename}: {error.strerror}", "check this file"))
    if any(finding.level == "fail" for finding in findings):
        return [finding for finding in findings if finding.level != "ok"]
    return findings


def _versions(config: RegulatorConfig) -> Findings:
    if not hasattr(os, "memfd_create"):
        yield _fail(f"{platform.system()} is not Linux", "use Linux")
    missing = []
    for name in _PACKAGES:
        try:
            version(name)
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        yield _fail(f"not installed: {', '.join(missing)}", "pip install 'isonomy[regulator]'")
    yield _ok(f"isonomy {version('isonomy')}, Python {sys.version.split()[0]}")


def _keys(config: RegulatorConfig) -> Findings:
    keys = PartyKeys.load(config.keys_folder)
    member_key(config)
    if keys.name != config.name:
        text = f"the keys belong to {keys.name!r}, the policy names {config.name!r}"
        yield _fail(text, "write the card's name into regulator.toml")
    yield _ok(f"{keys.name}, fingerprint {fingerprint(keys.card())}")


def _permissions(config: RegulatorConfig) -> Findings:
    private = [config.ledger_path, config.vault_path, config.tls.key]
    private += [config.home / "regulator.toml", *config.keys_folder.glob("*.key")]
    private += config.plans_folder.glob("*.people")
    private += config.alignments_folder.glob("*.people")
    private += config.inbox_folder.glob("*.people")
    for path in private:
        if path.exists() and path.stat().st_mode & 0o077:
            yield _fail(f"{path} is open to other users", f"chmod 600 {path}")
    if config.home.stat().st_mode & 0o066:
        text = f"{config.home} can be read by other users"
        yield _fail(text, f"chmod 711 {config.home} (or 700)")
    for path in (*config.home.glob("*.csv"), *config.home.glob("*.parquet")):
        yield _warn(f"{path} may hold attributes in plain text", "enroll it, then remove it")
    yield _ok("secrets are readable by their owner only")


def _vault(config: RegulatorConfig) -> Findings:
    header = Vault.header(config.vault_path)
    people = header.public.get("people", 0)
    if not people:
        yield _warn("nobody is enrolled", "isonomy-regulator enroll FILE …")
    unlock = config.unlock_file
    if unlock is not None and config.home in unlock.parents:
        text = "the unlock file lies beside the vault: whoever copies the home can open it"
        yield _warn(text, "keep it on another disk, or use a passphrase")
    if unlock is not None and not unlock.exists():
        yield _fail(f"{unlock} is missing", "mount it, or correct [vault]")
    elif unlock is not None and secret_from_file(unlock).size < MIN_FILE_BYTES:
        text = f"{unlock} holds fewer than {MIN_FILE_BYTES} bytes, which can be guessed"
        yield _fail(text, "isonomy-regulator rotate vault --new-unlock-file NEW_FILE")
    yield _ok(f"{people} people, schema {header.schema}, encrypted")


def _ledger(config: RegulatorConfig) -> Findings:
    """Yield what is wrong with the ledger, or with the vault as the witness saw it."""
    path, unproved = config.ledger_path, list[int]()
    copies = config.witness_paths[1:]
    inside = [copy for copy in copies if config.home.resolve() in copy.resolve().parents]
    for copy in inside:
        text = f"the witness copy {copy} lies in the home, and is lost with it"
        yield _warn(text, "name a path on another disk (witness_copies)")
    if len(inside) == len(copies):
        text = (
            "no copy of witness.json lies elsewhere: if this disk is lost, no backup can be shown "
        )
        text += "to be the newest, and every open plan will count as spent"
        yield _warn(text, "name a path on another disk (witness_copies in regulator.toml)")
    if not path.exists():
        if known_witnesses(config):
            yield _fail("the ledger is gone, its witness is not", "restore the newest backup")
        yield _ok("none yet: the first approval opens it")
        return

    def on_record(sealed: Sealed, state: LedgerState) -> None:
        heads.add(sealed.hash)
        match sealed.body:
            case Note(kind="restore", event=event) if not event.get("newest"):
                unproved.append(sealed.time)

    heads: set[bytes] = set()
    ledger = read_ledger(path, on_record)
    for time in unproved:
        text = (
            f"on {datetime.fromtimestamp(time, UTC):%Y-%m-%d} a backup was restored that nothing "
        )
        text += "showed to be the newest. Plans that were approved after it are not in this ledger"
        fix = "ask the companies for such plans; lower the total (epsilon) by what they could spend"
        yield _warn(text, fix)
    for witness in known_witnesses(config):
        if witness.head not in heads:
            yield _fail("the ledger is older than its witness", "put the newest copy back")
        if vault_generation(config) < witness.vault_generation:
            text = "the vault is older than the one that was witnessed"
            yield _fail(text, "put the newest vault back")
    if config.ledger.cap_units > ledger.cap_units:
        text = "the policy's total is above the one that the ledger was opened with"
        yield _warn(text, "nothing: the ledger's total counts, and is never raised")
    if ledger.torn:
        text = "the last record was written in part; nothing of it left this machine"
        yield _warn(text, "nothing: it is cut off at the next start")
    yield _ok(f"{ledger.records} records verified, {ledger.debits} answers")


def _witness(config: RegulatorConfig) -> Findings:
    """Yield the copies of the witness that cannot be written, or that are behind."""
    owner = config.home.stat().st_uid
    newest = load_witness(config.witness, config) if config.witness.exists() else None
    for copy in config.witness_paths[1:]:
        if fault := write_fault(copy, owner):
            text = f"{fault}; nothing is approved or answered until it can be"
            yield _fail(text, witness_fix(copy, owner))
        elif newest and not (copy.exists() and load_witness(copy, config).head == newest.head):
            text = f"{copy} is behind the ledger"
            yield _warn(text, "nothing: the daemon writes it when it starts, and at each session")
        else:
            yield _ok(f"{copy} can be written")


def _clock(config: RegulatorConfig) -> Findings:
    now = datetime.now(UTC)
    last = verify_ledger(config.ledger_path).time if config.ledger_path.exists() else 0
    lag = last - int(now.timestamp())
    if lag > CLOCK_TOLERANCE_S:
        text = f"the clock is {lag} s before the ledger's last record: no answers"
        fix = (
            "set the clock; if it was wrong at that record: isonomy-regulator doctor --accept-clock"
        )
        yield _fail(text, fix)
    elif config.tls.cert.exists():
        first = _certificate(config.tls.cert).not_valid_before_utc
        if first > now:
            text = f"the clock is before the certificate's first day, {first:%Y-%m-%d}"
            yield _fail(text, "set the clock")
    yield _ok(f"{now:%Y-%m-%d %H:%M:%S} UTC")


def _certificates(config: RegulatorConfig) -> Findings:
    if not config.tls.cert.exists():
        text = f"{config.tls.cert} is missing: sessions cannot be joined"
        fix = "send tls/tls.csr to the server's operator, then isonomy-regulator tls-install FILE"
        yield _fail(text, fix)
        return
    config.tls.read()
    last = _certificate(config.tls.cert).not_valid_after_utc
    days = (last - datetime.now(UTC)).days
    text = f"valid until {last:%Y-%m-%d} ({days} days)"
    if days < EXPIRES_SOON_DAYS:
        yield _warn(text, "isonomy-regulator rotate certificate")
    else:
        yield _ok(text)


def _policy(config: RegulatorConfig) -> Findings:
    policy = config.policy
    if not policy.auditor or float(policy.inspection_rate) == 0:
        text = "the policy demands no inspections: a company's false input would go unnoticed"
        yield _warn(text, "name an auditor and an inspection_rate in [policy]")
    if float(config.ledger.epsilon) > 10:
        text = f"a total of ε = {config.ledger.epsilon} protects little"
        yield _warn(text, "totals of 1 to 3 are usual")
    signing = [o for o in config.officers.values() if o.key and not o.revoked]
    if policy.approving_officers > max(len(signing), 1):
        text = f"two officers must approve a plan, and {len(signing)} of them can sign"
        yield _fail(text, "isonomy-regulator officer-key FILE; its lines go into regulator.toml")
    yield _ok(f"ε = {config.ledger.epsilon}, δ = {config.ledger.delta}")


def _cohorts(config: RegulatorConfig) -> Findings:
    """Names of cohorts are encrypted, so they are checked only if no passphrase is needed."""
    if not config.cohorts:
        return
    unlock = config.unlock_file
    if unlock is None:
        yield _ok(f"{len(config.cohorts)} totals by cohort; `approve` checks that they exist")
        return
    check_cohorts(config, Vault(config.vault_path, secret_from_file(unlock)).read())
    yield _ok(f"{len(config.cohorts)} totals by cohort; all of these cohorts exist")


def _plans(config: RegulatorConfig) -> Findings:
    approvals = Approvals(config.plans_folder)
    plans: list[Agreement] = [approvals.require(plan_hash)[0] for plan_hash in approvals.hashes()]
    plans += few_shot_approvals(config).all()
    card = PartyKeys.load(config.keys_folder).card()
    for plan in plans:
        broken = refusals(config, plan)
        try:
            check_sign_off(config, plan)
        except IsonomyError as error:
            broken.append(str(error))
        if plan.regulator != card:
            broken.append("it names an older identity of this regulator")
        if broken:
            short = plan.hash.hex()[:12]
            text = f"{plan.word} {short}… gets no more answers: {'; '.join(broken)}"
            yield _fail(text, f"isonomy-regulator reject {short}, or approve it again")
        if isinstance(plan, Plan):
            yield from _inspections(config, plan)
    yield _ok(f"{len(plans)} approved")


def _inspections(config: RegulatorConfig, plan: Plan) -> Findings:
    """Yield the demands that a plan's company has not answered, and what failed."""
    for each in ledger_state(config.ledger_path).inspections(plan.hash):
        over = each.step == "demanded" and plan.inspections_over(datetime.now(UTC).date())
        about = f"query {each.query_id} of plan {plan.hash.hex()[:12]}…"
        fix = f"isonomy-regulator reject {plan.hash.hex()[:12]}, and ask the company why"
        if each.step in ("failed", "overdue") or over:
            text = "failed its inspection" if each.step == "failed" else "was not opened in time"
            yield _fail(f"{about} {text}: the plan gets no more answers", fix)
        elif each.step == "demanded":
            text = f"{about} must be opened by {plan.inspection_deadline}, and was not opened yet"
            yield _warn(text, "ask the company to open it")


def _deletions(config: RegulatorConfig) -> Findings:
    for deletion in unfinished(config):
        name = deletion.target.split(" ", 1)[1]
        text = f"forgetting {deletion.target} was cut short: it has no signed record yet"
        yield _fail(text, f"isonomy-regulator forget {name}")


def _sockets(config: RegulatorConfig) -> Findings:
    for path in (config.socket, config.officer_socket):
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            text = f"{path} is longer than the {MAX_PATH_BYTES} bytes that Linux allows"
            yield _fail(text, "move the home to a shorter path")
    if config.group is not None and not config.group.isdigit():
        try:
            grp.getgrnam(config.group)
        except KeyError:
            text = f"there is no group {config.group!r} on this machine"
            yield _fail(text, f"groupadd {config.group}")
    if daemon_status(config) is None:
        fix = f"systemctl start isonomy-regulator, or isonomy-regulator serve --home {config.home}"
        yield _warn("no daemon is running", fix)
    else:
        yield _ok("the daemon answers")


def _disk(config: RegulatorConfig) -> Findings:
    free = shutil.disk_usage(config.home).free
    text = f"{free / 1e9:.1f} GB free"
    if free < LEAST_FREE_BYTES:
        yield _warn(text, "make room: without it nothing can be answered")
    else:
        yield _ok(text)


def _certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())
