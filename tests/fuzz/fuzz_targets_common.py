"""Parsers of what crosses between parties: wire, agreements, ledger, openings, reports."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from fuzz_engine import Target, Tree
from fuzz_formats import (
    dump_chunks,
    dump_json,
    dump_message,
    files_of,
    folder_of,
    items,
    load_chunks,
    load_json,
    load_message,
    octets,
)
from inspection_kit import World, ask
from report_kit import OFFICER, audited_run
from round_kit import few_shot_settings
from session_kit import plan_fields

from isonomy.common.agreements.agreement import PlanPublic, kind_of
from isonomy.common.agreements.approvals import read_people
from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.agreements.plan import Plan
from isonomy.common.alignment.alignment import Aligner, AlignmentPlan
from isonomy.common.base.canonical import canonical_json
from isonomy.common.base.errors import IsonomyError
from isonomy.common.crypto.curve25519 import random_secret
from isonomy.common.crypto.params import DEFAULT_PARAMETERS, Seeded
from isonomy.common.few_shot.rounds._messages import (
    MeasureRequest,
    RoundReceipt,
    RoundRequest,
    parse_receipt,
    parse_request,
)
from isonomy.common.few_shot.rounds.desk import StoredContribution
from isonomy.common.few_shot.rounds.state import CompanyState
from isonomy.common.inspection.audit import audit as audit_opening
from isonomy.common.inspection.verdict import Verdict
from isonomy.common.keys.boxes import open_box, seal_to
from isonomy.common.keys.identity import Identity
from isonomy.common.keys.party import Card, PartyKeys, fingerprint
from isonomy.common.ledger.entries import read_entries
from isonomy.common.ledger.ledger import Ledger, write_shared
from isonomy.common.ledger.records import NO_RECORD, _record_hash
from isonomy.common.node.bridge import receive_frame
from isonomy.common.people.cohort import Cohort
from isonomy.common.privacy.declarations import Audit, Declaration, DualCounts
from isonomy.common.privacy.queries import Query, pack_positions
from isonomy.common.report.build import build_report
from isonomy.common.report.few_shot import build_few_shot_report, read_report
from isonomy.common.report.from_ledger import PlanHistory, plan_history
from isonomy.common.report.schema import Statement
from isonomy.common.report.sign import SIGNED, countersign, sign_report
from isonomy.common.report.verify import ReportPaths, Verification
from isonomy.common.session.tickets import TOKEN_DOMAIN, Ticket, read_token, sign_token
from isonomy.common.sums.noise_and_budget import Custodian
from isonomy.common.sums.openings import FolderOpenings
from isonomy.common.sums.pool_masks import PooledReply
from isonomy.common.sums.sealed_opening import (
    OPENING_DOMAIN,
    SealedOpening,
    _context,
    _signed_bytes,
    seal_opening,
    show_columns,
)
from isonomy.common.wire import envelopes
from isonomy.common.wire.messages import (
    Answer,
    Column,
    ColumnsHeader,
    OpeningDemand,
    Refusal,
    SumHeader,
    SumPart,
    decode_any,
    encode,
)
from isonomy.company.federation.auditing import audit
from isonomy.wire.v1 import session_pb2, sums_pb2

HASH = bytes(range(32))


def fixed_keys(name: str, role: Any) -> PartyKeys:
    """Return the same keys for the same name, so that a stored input still opens tomorrow."""
    secret = hashlib.sha256(f"{name} {role}".encode()).digest()
    identity = Identity(Ed25519PrivateKey.from_private_bytes(secret))
    return PartyKeys(name, role, identity, X25519PrivateKey.from_private_bytes(secret))


COMPANY, REGULATOR = fixed_keys("company", "company"), fixed_keys("regulator", "regulator")


def plan(**changes: Any) -> Plan:
    fields = {**plan_fields(), "companies": [COMPANY.card()], "regulator": REGULATOR.card()}
    return Plan.of({**fields, "cohort_root": "00" * 32, "cohort_size": 9, **changes})


def few_shot_plan() -> FewShotPlan:
    return FewShotPlan.of(
        {
            **{"name": "run", "companies": [COMPANY.card()], "regulator": REGULATOR.card()},
            **{"relay_name": "relay", "parameters": DEFAULT_PARAMETERS.name, "pool": "digits"},
            **{"samples": 30, "settings": few_shot_settings().model_dump()},
            **{"fingerprint": "00" * 32, "size": 40},
        }
    )


def written(path: Path, raw: bytes) -> Path:
    path.write_bytes(raw)
    return path


def unpacked(folder: Path, raw: bytes) -> Path:
    """Write the files of an input into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files_of(raw).items():
        if (
            name
            and "/" not in name
            and "\0" not in name
            and len(name.encode()) < 200
            and name.strip(".")
        ):
            (folder / name).write_bytes(content)
    return folder


def json_target(name: str, seeds: list[bytes], parse: Callable[[bytes], object]) -> Target:
    return Target(name, seeds, parse, load_json, dump_json)


# --- Wire ----------------------------------------------------------------------------------------


def frames() -> Target:
    """Frames of a session, and their way back to the same bytes."""
    query = Query(
        *("q", HASH, "why", "blind", "groups", ("sex",), 2, "gaussian", 5, 1.0),
        weights=(1.0, 2.0), positions=pack_positions((1, 5)), parameters=DEFAULT_PARAMETERS.name,
    )  # fmt: skip
    declared = [
        Declaration(DualCounts(1, 2, 3, True, 1, (5, 6)), "pf_ld", "demographic_parity"),
        Declaration(Audit("before", "d", (1000, 2000), "yes"), "", ""),
    ]
    messages: list[Any] = [query]
    for content in declared:
        messages.append(Query(**{**_fields(query), "declaration": content}))
    messages += [
        ColumnsHeader("q", bytes(16), HASH, 0, 1, 1, Seeded(b"body", bytes(32))),
        Column(0, 1, Seeded(b"body", bytes(32))),
        SumHeader("q", bytes(16), HASH, HASH, HASH, HASH, 1),
        SumPart(0, b"ciphertext"),
        Answer("q", HASH, HASH, np.arange(3), 7, 1, HASH, bytes(64)),
        Refusal("q", "budget_exceeded", "no"),
        OpeningDemand("q", HASH, HASH, HASH, bytes(64)),
    ]
    kind = sums_pb2.Frame.DESCRIPTOR

    def parse(raw: bytes) -> None:
        assert encode(decode_any(raw)) == raw

    return Target(
        "frames",
        [encode(m) for m in messages],
        parse,
        lambda raw: load_message(raw, kind),
        dump_message,
    )


def _fields(query: Query) -> dict[str, Any]:
    return {name: value for name, value in vars(query).items() if not name.startswith("_")}


def session_envelopes() -> Target:
    """Envelopes, their size and the digest of their payload recomputed."""

    def packed(body: Any, **more: Any) -> bytes:
        return envelopes.dump(envelopes.Envelope("company", "regulator", HASH, body, **more))

    data = envelopes.Data(1, 0, True, 0, 1, b"load", hashlib.sha256(b"load").digest(), bytes(64))
    seeds = [
        packed(data, sequence=1, link=bytes(16), query_id="q", purpose="sum"),
        packed(envelopes.Hello("company", b"token", bytes(32))),
        packed(envelopes.HelloReply(("regulator",))),
        packed(envelopes.PlanAgreement(bytes(32), True, bytes(64))),
        packed(envelopes.Heartbeat(("a", "b"))),
        packed(envelopes.ErrorNote("code", "text")),
        packed(envelopes.Close("done", "", bytes(64)), sequence=2, link=bytes(16)),
    ]

    def load(raw: bytes) -> Tree:
        end = 4 + int.from_bytes(raw[:4], "big")
        return [load_message(raw[4:end], session_pb2.Envelope.DESCRIPTOR), raw[end:]]

    def dump(tree: Tree) -> bytes:
        head, payload = items(tree, 2)
        digest = hashlib.sha256(octets(payload)).digest()
        for field in head if isinstance(head, list) else []:
            if (
                isinstance(field, list)
                and field[:1] == [13 << 3 | 2]
                and isinstance(field[-1], list)
            ):
                for inner in field[-1]:
                    if isinstance(inner, list) and inner[:1] == [6 << 3 | 2]:
                        inner[1:] = [digest]
        raw = dump_message(head)
        return len(raw).to_bytes(4, "big") + raw + octets(payload)

    return Target("envelopes", seeds, lambda raw: envelopes.parse(raw).header(), load, dump)


def duals() -> Target:
    kind = session_pb2.DualValues.DESCRIPTOR
    seeds = [envelopes.dump_dual(3, (0.5, -1.0)), envelopes.dump_dual(0, ())]
    return Target(
        "duals", seeds, envelopes.parse_dual, lambda raw: load_message(raw, kind), dump_message
    )


def pooled_replies() -> Target:
    reply = PooledReply((HASH, HASH), np.arange(3, dtype=np.uint64), 1, HASH)
    kind = session_pb2.PooledReply.DESCRIPTOR
    load = lambda raw: load_message(raw, kind)  # noqa: E731
    return Target(
        "pooled replies",
        [reply.dump()],
        lambda raw: PooledReply.parse(raw).request_hash(),
        load,
        dump_message,
    )


def tickets() -> Target:
    """Tickets, and the tokens in them, signed again."""
    token = sign_token(
        COMPANY.identity, plan_hash=HASH, role="company", party="c", relay_key=HASH, expires=9
    )
    seed = Ticket("relay.example:9095", "relay", token, HASH, "company", "c", 9).to_json()

    def load(raw: bytes) -> Tree:
        ticket = json.loads(raw)
        return {**ticket, "token": json.loads(bytes.fromhex(ticket["token"])[64:])}

    def dump(tree: Tree) -> bytes:
        if isinstance(tree, dict) and "token" in tree:
            body = dump_json(tree["token"])
            tree = {**tree, "token": (COMPANY.identity.sign(TOKEN_DOMAIN, body) + body).hex()}
        return dump_json(tree)

    def parse(raw: bytes) -> None:
        read_token(COMPANY.identity.public, Ticket.from_json(raw).token)

    return Target("tickets", [seed], parse, load, dump)


def bridge(name: str, handle: Callable[[Any], object], requests: list[Any]) -> Target:
    """Frames of a local socket, as the daemon behind it takes them."""
    seeds = [len(raw).to_bytes(4, "big") + raw for raw in map(canonical_json, requests)]

    def dump(tree: Tree) -> bytes:
        raw = dump_json(tree)
        return len(raw).to_bytes(4, "big") + raw

    def parse(raw: bytes) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(raw[: 1 << 17])
            theirs.shutdown(socket.SHUT_WR)
            handle(receive_frame(ours, within_s=2))

    return Target(name, seeds, parse, lambda raw: json.loads(raw[4:]), dump)


# --- Agreements -----------------------------------------------------------------------------------


def agreements(scratch: Path) -> Target:
    """Plans of every kind, read as their file names it, with all that an owner is shown of them."""
    aligned = {"name": "a", "companies": [COMPANY.card()], "regulator": REGULATOR.card()}
    aligned |= {"relay_name": "relay", "parameters": DEFAULT_PARAMETERS.name}
    alignment = AlignmentPlan.of({**aligned, "company_people": 5, "regulator_people": 6})
    seeds = [plan(), plan(auditor=REGULATOR.card().x25519, inspection_millionths=5), alignment]
    seeds += [few_shot_plan()]

    def parse(raw: bytes) -> None:
        kinds = {"few-shot": FewShotPlan, "alignment": AlignmentPlan}
        path = written(scratch / "plan.json", raw)
        agreement: Any = kinds.get(kind_of(path), Plan).load(path)
        agreement.describe()
        PlanPublic.from_json(agreement.public().to_json())
        if not isinstance(agreement, AlignmentPlan):
            assert agreement.held_units >= 0

    return json_target("agreements", [each.to_json() for each in seeds], parse)


def small_documents() -> Iterator[Target]:
    """Cards, public parts of plans, verdicts, statements."""
    public = plan().public().to_json()
    yield json_target("plans' public parts", [public], lambda raw: PlanPublic.from_json(raw).cards)
    yield json_target(
        "cards", [COMPANY.card().to_json()], lambda raw: fingerprint(Card.from_json(raw))
    )
    agreed = plan(auditor=REGULATOR.card().x25519, inspection_millionths=5)
    verdict = Verdict(plan=agreed.hash, query_id="q", request_hash=HASH, passed=True)
    seed = verdict.sign(REGULATOR.identity).to_json()
    yield json_target("verdicts", [seed], lambda raw: Verdict.from_json(raw).check(agreed))
    statement = Statement.of({"plan": "00" * 32, "company": "c", "totals": {"q": [1, 2]}})
    yield json_target(
        "statements", [statement.to_json()], lambda raw: Statement.from_json(raw).sha256
    )


def people(scratch: Path) -> Target:
    seeds = ["\n".join(f"p{n}" for n in range(5)).encode()]
    load = lambda raw: raw.decode().split("\n")  # noqa: E731

    def dump(tree: Tree) -> bytes:
        return b"\n".join(map(octets, tree)) if isinstance(tree, list) else octets(tree)

    return Target(
        "people", seeds, lambda raw: read_people(written(scratch / "p", raw)).root, load, dump
    )


def alignment_points() -> Target:
    aligned = {"name": "a", "companies": [COMPANY.card()], "regulator": REGULATOR.card()}
    aligned |= {"relay_name": "relay", "parameters": DEFAULT_PARAMETERS.name}
    agreed = AlignmentPlan.of({**aligned, "company_people": 5, "regulator_people": 6})
    cohort = Cohort.of(["a", "b", "c"])
    points = Aligner(agreed, cohort, random_secret()).blinded()

    def parse(raw: bytes) -> None:
        ours = Aligner(agreed, cohort, random_secret())
        ours.blinded()
        ours.finish(ours.double(raw), raw)

    def dump(tree: Tree) -> bytes:
        return b"".join(map(octets, tree)) if isinstance(tree, list) else octets(tree)

    load = lambda raw: [raw[at : at + 32] for at in range(0, len(raw), 32)]  # noqa: E731
    return Target("alignment points", [points], parse, load, dump)


# --- Ledger and reports ---------------------------------------------------------------------------


def dump_ledger(tree: Tree) -> bytes:
    """Write lines with sequence numbers, links and hashes that fit the content as it is now."""
    lines, head = [], NO_RECORD
    for seq, line in enumerate(tree if isinstance(tree, list) else [tree]):
        if isinstance(line, dict) and {"seq", "prev", "hash", "type"} <= line.keys():
            record = {**line, "seq": seq, "prev": head.hex()}
            record.pop("hash")
            try:
                head = _record_hash(record)
            except IsonomyError:
                head = NO_RECORD
            line = {**record, "hash": head.hex()}
        lines.append(dump_json(line) + b"\n")
    return b"".join(lines)


def _root(ledger: Ledger) -> bytes:
    return ledger.plans()[0].root


def ledgers_and_reports(scratch: Path) -> Iterator[Target]:
    """A ledger by itself, and a report with its signatures beside that ledger."""
    with patch.object(PartyKeys, "generate", classmethod(lambda cls, *who: fixed_keys(*who))):
        run = audited_run(scratch / "audited", people=300, epsilon="20", groups=1)
    for name, decided in (("before", run.before), ("after", run.after)):
        audit(run.oracle, decided, run.label, name=name, share=0.2)
    run.ledger.add_subset(_root(run.ledger), np.array([1, 4]), secret=True)
    run.ledger.note_inspection(run.plan.hash, "later", HASH, "demanded")
    run.ledger.note("clock", {"last": 5})
    history = plan_history(run.ledger_path, run.plan.hash)
    report = build_report(run.plan, history, created=9, software="test", officer=OFFICER)
    run.ledger.close()
    ledger = run.ledger_path.read_bytes()

    def parse_ledger(raw: bytes) -> None:
        path = written(scratch / "ledger.jsonl", raw)
        try:
            read_entries(path)
            build_report(
                run.plan,
                plan_history(path, run.plan.hash),
                created=9,
                software="test",
                officer=OFFICER,
            )
            write_shared(path, scratch / "shared.jsonl")
        finally:
            with Ledger.open(path) as opened:
                Custodian(run.custodian._table, opened, plan=run.plan.hash, member_key=bytes(32))

    def load_ledger(raw: bytes) -> Tree:
        return [json.loads(line) for line in raw.splitlines()]

    yield Target("ledgers", [ledger], parse_ledger, load_ledger, dump_ledger)

    signed = countersign(
        report.to_json(), sign_report(report.to_json(), run.regulator), run.company
    )
    files = {"report.json": report.to_json(), "report.sig": signed.to_json()}

    def parse_report(raw: bytes) -> None:
        folder = unpacked(scratch / "report", raw)
        written(folder / "ledger.jsonl", ledger)
        Verification(ReportPaths.of(folder), ledger=folder / "ledger.jsonl").run()
        render(read_report((folder / "report.json").read_bytes()))

    from isonomy.regulator.report._page import render

    def load_report(raw: bytes) -> Tree:
        return {name: json.loads(content) for name, content in files_of(raw).items()}

    def dump_report(tree: Tree) -> bytes:
        tree = tree if isinstance(tree, dict) else {}
        raw, signatures = dump_json(tree.get("report.json")), tree.get("report.sig")
        if isinstance(signatures, dict) and isinstance(signatures.get("signatures"), list):
            signatures["report_sha256"] = hashlib.sha256(raw).hexdigest()
            for each in signatures["signatures"][:1]:
                if isinstance(each, dict):
                    each["signature"] = run.regulator.identity.sign(SIGNED, raw).hex()
        return folder_of({"report.json": raw, "report.sig": dump_json(signatures)})

    agreed = few_shot_plan()
    agreed = FewShotPlan.of({**agreed.model_dump(), "regulator": run.plan.regulator})
    rounds = PlanHistory(HASH, HASH, 1, agreed.held_units, 0, (), (), (), ())
    trained = build_few_shot_report(agreed, rounds, created=9, software="test", officer=OFFICER)
    data = trained.to_json()
    few_shot = {"report.json": data, "report.sig": sign_report(data, run.regulator).to_json()}
    seeds = [folder_of(files), folder_of(few_shot)]
    yield Target("reports", seeds, parse_report, load_report, dump_report)


# --- Openings -------------------------------------------------------------------------------------


def openings(scratch: Path) -> Iterator[Target]:
    """What a company stores, and the file that goes to the auditor: sealed and signed again."""
    (scratch / "world").mkdir()
    with patch.object(PartyKeys, "generate", classmethod(lambda cls, *who: fixed_keys(*who))):
        world = World.create(scratch / "world")
    ask(world.company())
    query_id = world.last_query()
    store = world.store
    paths = sorted((scratch / "world" / "openings").iterdir())
    small = {".columns": dump_chunks([b"a column"])}  # real ones are large, and only passed on
    stored = folder_of({p.name: small.get(p.suffix) or p.read_bytes() for p in paths})

    def parse_store(raw: bytes) -> None:
        folder = unpacked(scratch / "openings", raw)
        again = FolderOpenings(folder, inspected=True)
        try:
            again.find(query_id)
        finally:
            list(again.columns(query_id))

    def load_store(raw: bytes) -> Tree:
        tree: dict[str, Any] = {
            name: content if name == "answers" else load_chunks(content)
            for name, content in files_of(raw).items()
        }
        for name in tree:
            if name.endswith(".opening"):
                tree[name][0] = json.loads(tree[name][0])
        return tree

    def dump_store(tree: Tree) -> bytes:
        files = {}
        for name, chunks in tree.items() if isinstance(tree, dict) else ():
            if isinstance(chunks, bytes):
                files[name] = chunks
                continue
            whole = chunks if isinstance(chunks, list) else [chunks]
            parts = [dump_json(c) if isinstance(c, dict) else c for c in whole]
            files[name] = dump_chunks(parts)
        return folder_of(files)

    yield Target("stored openings", [stored], parse_store, load_store, dump_store)

    request = store.find(query_id)
    assert request is not None
    columns, auditor = list(store.columns(query_id)), world.regulator_keys
    box_key = auditor.sealing.public_key().public_bytes_raw()
    signer = world.company_keys.identity
    shown = show_columns(query_id, request, columns)
    sealed = seal_opening(box_key, world.plan.hash, query_id, shown, signer)
    sealed.save(scratch / "sealed")

    def parse_sealed(raw: bytes) -> None:
        audit_opening(world.plan, SealedOpening.load(written(scratch / "o", raw)), auditor)

    def load_sealed(raw: bytes) -> Tree:
        chunks: list[Any] = load_chunks(raw)
        place = _context(chunks[1], chunks[2].decode(), chunks[3])
        return [*chunks[:-1], load_chunks(open_box(auditor.sealing, place, chunks[-1]))]

    def dump_sealed(tree: Tree) -> bytes:
        parts = [octets(each) for each in tree[:-1]] if isinstance(tree, list) else []
        if len(parts) != 6:
            return dump_chunks(tree)
        box = dump_chunks(tree[-1])
        try:
            query = parts[2].decode()
        except UnicodeDecodeError:
            query = "?"
        place = _context(parts[1], query, parts[3])
        box = seal_to(box_key, place, box)
        header = SealedOpening(parts[1], query, parts[3], box, b"").header()
        try:
            signed = signer.sign(OPENING_DOMAIN, _signed_bytes(header, parts[4]))
        except (ValueError, TypeError):
            signed = parts[5]
        return dump_chunks([*parts[:5], signed, box])

    yield Target(
        "sealed openings",
        [(scratch / "sealed").read_bytes()],
        parse_sealed,
        load_sealed,
        dump_sealed,
    )


# --- Few-shot rounds ------------------------------------------------------------------------------


def rounds(scratch: Path) -> Iterator[Target]:
    """Requests, receipts, stored contributions and the company's state: fixed layouts."""
    agreed, params = few_shot_plan(), DEFAULT_PARAMETERS
    theta = np.linspace(0, 1, 40, dtype=np.float32)
    request = RoundRequest(
        2, bytes(16), Seeded(bytes(params.column_bytes), bytes(32)), theta
    ).dump()
    receipt = RoundReceipt(2, bytes(16), HASH, 5, HASH).signed(REGULATOR.identity, agreed.hash)
    refusal = b"RFSL" + encode(Refusal("", "budget_exceeded", "no"))
    cut = lambda raw: [raw[:4], raw[4:12], raw[12:28], raw[28:36], raw[36:-160], raw[-160:]]  # noqa: E731
    join = lambda tree: b"".join(map(octets, tree)) if isinstance(tree, list) else octets(tree)  # noqa: E731
    seeds = [request, MeasureRequest(2, theta).dump()]
    yield Target("round requests", seeds, lambda raw: parse_request(raw, params, 40), cut, join)
    yield Target("round receipts", [receipt.dump(), refusal], parse_receipt, cut, join)
    folder = scratch / "round"
    folder.mkdir()
    CompanyState(folder).save(agreed, 3, b"state", receipt)
    seeds = [(folder / "few-shot.state").read_bytes()]

    def parse_state(raw: bytes) -> None:
        written(folder / "few-shot.state", raw)
        CompanyState(folder).load(agreed)
        CompanyState(folder).receipt(agreed)

    magic = lambda raw: [raw[:19], raw[19:27], raw[27:59], raw[59:]]  # noqa: E731
    yield Target("few-shot states", seeds, parse_state, magic, join)
    stored = StoredContribution(1, HASH, np.arange(4), np.arange(3), b"state").dump()

    def load_stored(raw: bytes) -> Tree:
        numbers = [int.from_bytes(raw[at : at + 8], "little") for at in (16, 56, 64, 72)]
        return [raw[:16], numbers[0], raw[24:56], *numbers[1:], raw[80:-32]]

    def dump_stored(tree: Tree) -> bytes:
        parts = tree if isinstance(tree, list) else [tree]
        body = b"".join(
            (each & (2**64 - 1)).to_bytes(8, "little") if type(each) is int else octets(each)
            for each in parts
        )
        return body + hashlib.sha256(body).digest()

    parse = lambda raw: StoredContribution.parse(raw).digest  # noqa: E731
    yield Target("stored contributions", [stored], parse, load_stored, dump_stored)


def common_targets(scratch: Path) -> Iterator[Target]:
    """All targets of this module."""
    yield from (frames(), session_envelopes(), duals(), pooled_replies(), tickets())
    yield from (agreements(scratch), people(scratch), alignment_points(), *small_documents())
    yield from ledgers_and_reports(scratch)
    yield from openings(scratch)
    yield from rounds(scratch)
