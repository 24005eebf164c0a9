"""Parsers of what lies on a party's disk: regulator, company, server."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from few_shot_kit import tiny_pool, tiny_settings
from fuzz_engine import Target, Tree
from fuzz_formats import (
    array_bytes,
    dump_csv,
    dump_der,
    dump_json,
    dump_npz,
    dump_pem,
    dump_tar,
    dump_tensors,
    dump_toml,
    files_of,
    folder_of,
    items,
    load_csv,
    load_npz,
    load_pem,
    load_tar,
    load_tensors,
    load_toml,
    octets,
)
from fuzz_targets_common import HASH, bridge, fixed_keys, json_target, plan, unpacked, written
from gradient_kit import linear, toy, trainer
from gradient_kit import regulator as federation_of
from regulator_kit import GROUPS, Regulator
from sklearn.linear_model import LogisticRegression

from isonomy.common.agreements.approvals import Approvals, PlanNotApproved
from isonomy.common.few_shot.learning._state import pack, unpack
from isonomy.common.few_shot.learning.models import Network
from isonomy.common.few_shot.learning.pool_file import load_pool
from isonomy.common.keys.certificates import (
    Authority,
    Holder,
    Request,
    TlsFiles,
    authority_fingerprint,
    issue,
    key_fingerprint,
    make_request,
    read_issued,
)
from isonomy.common.keys.party import PartyKeys
from isonomy.common.node.attendance import Attendance
from isonomy.common.people.cohort import Ids
from isonomy.common.session.tickets import Ticket
from isonomy.common.sums.local import LocalOracle
from isonomy.company import load_model, save_model
from isonomy.company.compare.benchmark.cells import read_list
from isonomy.company.fair.estimator import FairClassifier
from isonomy.company.fair.tilt.releases_file import load_releases, save_releases
from isonomy.company.few_shot.model import FewShotModel
from isonomy.company.gradient.pf_ld.pf_ld import PFLD
from isonomy.company.rehearsal.datasets.file import from_file
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.report.appendix import Appendix
from isonomy.regulator.serving._officer_requests import OfficerRequests
from isonomy.regulator.serving.witness import DOMAIN, known_witnesses, open_ledger, write_witness
from isonomy.regulator.upkeep import backup
from isonomy.regulator.upkeep.restore import restore
from isonomy.regulator.vault import sealed_file, task_pools
from isonomy.regulator.vault.enrolment import Order, enrol
from isonomy.regulator.vault.tables import Problems, read_rows
from isonomy.regulator.vault.unlock import Secret
from isonomy.regulator.vault.vault import Vault, VaultTable
from isonomy.server.config import ServerConfig
from isonomy.server.flower.metrics import ServerMetrics
from isonomy.server.flower.serve import Desk
from isonomy.server.relay._state import Checkpoint, RelayState

SECRET = Secret(b"a secret of the fuzzer", strong=True)


# --- The regulator's home -------------------------------------------------------------------------


def sealed(
    scratch: Path, what: str, payload: bytes, read: Callable[[Path], object],
    load: Callable[[bytes], Tree], dump: Callable[[Tree], bytes], public: dict[str, Any],
) -> Target:  # fmt: skip
    """A sealed file: the line on top is changed as it is, the payload is sealed again."""
    path = scratch / "sealed.bin"
    derivation = sealed_file.Derivation(bytes(16), 10)
    header = sealed_file.Header(what, 1, derivation, public, "00" * 16)

    def seal(content: bytes) -> bytes:
        sealed_file.write_sealed(path, content, header, SECRET, overwrite=True)
        return path.read_bytes()

    def load_sealed(raw: bytes) -> Tree:
        line, _, body = raw.partition(b"\n")
        return [json.loads(line), load(payload), body]

    def dump_sealed(tree: Tree) -> bytes:
        line, content, body = items(tree, 3)
        if dump_json(line) == first_line and octets(body) == first_body:
            return seal(dump(content))
        return dump_json(line) + b"\n" + octets(body)

    first = seal(payload)
    first_line, _, first_body = first.partition(b"\n")

    def parse(raw: bytes) -> None:
        read(written(path, raw))

    return Target(what, [first], parse, load_sealed, dump_sealed)


def vault_payload() -> Iterator[Any]:
    """The vault's payload: manifest, ids and codes, with the manifest's length recomputed."""
    codes = np.array([0, 1, 0xFFFF], np.uint16)
    table = VaultTable(
        Ids(("a", "b", "c")), ("x",), np.zeros(3, np.uint16), dict(GROUPS), {"sex": codes}
    )

    def load(raw: bytes) -> Tree:
        size = int.from_bytes(raw[:8], "big")
        return [json.loads(raw[8 : 8 + size]), raw[8 + size :]]

    def dump(tree: Tree) -> bytes:
        head, body = items(tree, 2)
        raw = dump_json(head)
        return len(raw).to_bytes(8, "big") + raw + octets(body)

    yield from (table.dump(), load, dump)


def sealed_files(scratch: Path) -> Iterator[Target]:
    """Vault, tasks and backup."""
    home = Regulator.create(scratch / "tasks", people=0)
    config = home.config
    payload, load, dump = vault_payload()

    def read_vault(path: Path) -> None:
        table = Vault(path, SECRET).read()
        for name in table.groups:
            table.sizes(name)
        for name in table.cohort_names:
            table.in_cohort(name)
        int(Vault.header(path).public.get("generation", 0))

    yield sealed(scratch, "vault", payload, read_vault, load, dump, {"generation": 1, "people": 3})
    pool = {"inputs": np.ones((4, 2), np.float32), "labels": np.array([0, 1, 0, 1])}
    pool |= {"groups": np.array([0, 1, 1, 0]), "positive": np.array([True, False])}
    raw = array_bytes(**pool, ids=np.array(["a", "b", "c", "d"]))
    config.tasks_folder.mkdir(exist_ok=True)

    def read_pool(path: Path) -> None:
        shutil.copyfile(path, config.tasks_folder / "t.bin")
        try:
            task_pools.list_pools(config)
        finally:
            task_pools.open_pool(config, SimpleNamespace(secret=SECRET), "t")  # type: ignore[arg-type]

    public = {"samples": 4, "classes": 2, "shape": "2", "groups": 1}
    yield sealed(scratch, "tasks", raw, read_pool, load_npz, dump_npz, public)
    whole_home = Regulator.create(scratch / "backed", people=3)
    open_ledger(whole_home.config).close()
    made = scratch / "made.backup"
    backup.make_backup(whole_home.config, made, whole_home.vault.secret)
    _, archive = sealed_file.open_sealed(made, backup.WHAT, 1, whole_home.vault.secret)
    target = scratch / "restored"

    def read_backup(path: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        try:
            restore(path, target, SECRET, assume_spent=True)
        finally:
            for each in scratch.glob(".restored*"):
                shutil.rmtree(each, ignore_errors=True)

    yield sealed(scratch, "backup", archive, read_backup, load_tar, dump_tar, {"time": 1})


def witnesses(scratch: Path) -> Target:
    """The witness of a home, signed again, and the record of a rotation beside it."""
    with patch.object(PartyKeys, "generate", classmethod(lambda cls, *who: fixed_keys(*who))):
        home = Regulator.create(scratch / "witness", people=2)
    config, keys = home.config, fixed_keys("regulator", "regulator")
    with open_ledger(config) as ledger:
        write_witness(config, ledger, keys.identity)
    rotations = config.keys_folder / "rotations"
    rotations.mkdir()
    old = {"old": keys.card().model_dump()}
    seed = folder_of({"witness": config.witness.read_bytes(), "rotation": dump_json(old)})

    def load(raw: bytes) -> Tree:
        return {name: json.loads(content) for name, content in files_of(raw).items()}

    def dump(tree: Tree) -> bytes:
        tree = tree if isinstance(tree, dict) else {}
        witness = tree.get("witness")
        if isinstance(witness, dict) and "signature" in witness:
            raw = dump_json({**witness, "signature": ""})
            witness = {**witness, "signature": keys.identity.sign(DOMAIN, raw).hex()}
        return folder_of(
            {"witness": dump_json(witness), "rotation": dump_json(tree.get("rotation"))}
        )

    def parse(raw: bytes) -> None:
        files = files_of(raw)
        config.witness.write_bytes(files.get("witness", b""))
        (rotations / "a.json").write_bytes(files.get("rotation", b""))
        known_witnesses(config)
        open_ledger(config).close()

    return Target("witnesses", [seed], parse, load, dump)


def appendices(scratch: Path) -> Target:
    """An appendix, drawn."""
    parts = [
        {"kind": "table", "head": ["a", "b"], "rows": [["1", "2"]]},
        {"kind": "bars", "rows": [["x", 0.5, "50 %"]], "limit": 0.8},
        {
            "kind": "plot",
            "x": "x",
            "series": [
                {
                    **{"label": "a", "colour": 1, "mark": "star", "line": True},
                    **{"points": [[0.1, 0], [0.2, 1]], "limits": [[0, 1], None]},
                }
            ],
            "rows": ["a", "b"],
            "row_notes": {"1": "none"},
            "tolerance": 0.1,
        },
        {"kind": "text", "caption": "words"},
    ]
    seed = dump_json({"title": "t", "parts": parts})

    def parse(raw: bytes) -> None:
        drawn = Appendix.load(written(scratch / "appendix.json", raw)).sections()
        assert sum(len(part["drawing"]) for part in drawn) < 1 << 22

    return json_target("appendices", [seed], parse)


def tables(scratch: Path) -> Iterator[Target]:
    """CSV and Parquet: people who are enrolled, and a company's own rows."""
    rows = "id,sex,x,y\n" + "".join(f"p{n},{'fm'[n % 2]},{n % 2},{n % 3 % 2}\n" for n in range(6))
    groups = {"sex": ("f", "m")}

    def enrolled(path: Path) -> None:
        problems = Problems(path)
        order = Order("x", groups, ("?",))
        enrol(VaultTable.empty(), order, read_rows(path, "id", ["sex"], problems), problems)[
            0
        ].dump()

    def read(path: Path) -> None:
        outcomes = []
        for each in (enrolled, lambda p: from_file(p, target="y", attribute="sex")):
            try:
                each(path)
            except Exception as error:
                outcomes.append(error)
        for error in sorted(outcomes, key=lambda e: "isonomy" in type(e).__module__):
            raise error

    yield Target(
        "csv",
        [rows.encode()],
        lambda raw: read(written(scratch / "t.csv", raw)),
        load_csv,
        dump_csv,
    )
    frame = pd.read_csv(io.StringIO(rows), dtype=str)
    kinds = [frame, frame.astype({"x": int}), frame.astype({"sex": "category"})]
    seeds = []
    for each in kinds:
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_pandas(each), buffer)
        seeds.append(buffer.getvalue())

    def load(raw: bytes) -> Tree:
        return {name: list(map(str, column)) for name, column in frame.to_dict("list").items()}

    def dump(tree: Tree) -> bytes:
        buffer = io.BytesIO()
        try:
            columns = {str(k): v if isinstance(v, list) else [v] for k, v in tree.items()}
            pq.write_table(pa.table(columns), buffer)
        except (pa.ArrowException, ValueError, TypeError, AttributeError, OverflowError):
            return seeds[0]
        return buffer.getvalue()

    parquet = lambda raw: read(written(scratch / "t.parquet", raw))  # noqa: E731
    yield Target("parquet", seeds, parquet, load, dump)


# --- Certificates ---------------------------------------------------------------------------------


def certificates(scratch: Path) -> Target:
    """Certificates and requests, signed again by the key that they claim."""
    key = ec.derive_private_key(7, ec.SECP256R1())
    folder = scratch / "tls"
    with patch.object(ec, "generate_private_key", lambda curve: key):
        authority = Authority.create(folder / "ca", "a long passphrase")
        issue(authority, folder / "party", "acme", "company")
        issue(authority, folder / "server", "srv", "server", ["localhost"], ["127.0.0.1"])
        request = make_request(folder / "csr", "acme", "node").read_bytes()
    seeds = [TlsFiles.of(folder / name).cert.read_bytes() for name in ("party", "server")]
    files = TlsFiles(folder / "ca" / "ca.pem", scratch / "x.pem", folder / "party" / "tls.key")

    def dump(tree: Tree) -> bytes:
        try:
            (_, (body, _, signature)) = tree[1][0]
            signed = key.sign(dump_der([body]), ec.ECDSA(hashes.SHA256()))
            signature[1] = b"\0" + signed
        except (TypeError, ValueError, IndexError, KeyError):
            pass
        return dump_pem(tree)

    def parse(raw: bytes) -> None:
        path, failures = written(scratch / "x.pem", raw), []
        readers: tuple[Callable[[], object], ...] = (
            lambda: Holder.of(raw),
            lambda: key_fingerprint(raw),
            lambda: authority_fingerprint(path),
            lambda: Request.load(path).fingerprint,
            lambda: read_issued(files),
            lambda: read_issued(replace(files, ca=path)),
        )
        for each in readers:
            try:
                each()
            except Exception as error:
                failures.append(error)
        for error in sorted(failures, key=lambda e: "isonomy" in type(e).__module__):
            raise error

    return Target("certificates", [*seeds, request], parse, load_pem, dump)


# --- Settings and sockets -------------------------------------------------------------------------


def settings(scratch: Path) -> Iterator[Target]:
    """The TOML files of three roles."""
    home = Regulator.create(scratch / "toml", people=0)
    policy = (home.home / "regulator.toml").read_bytes().replace(bytes(scratch), b"folder")

    def regulator(raw: bytes) -> None:
        assert RegulatorConfig.load(written(scratch / "regulator.toml", raw)).ledger.cap_units >= 0

    yield Target("regulator.toml", [policy], regulator, load_toml, dump_toml)
    server = b'name = "s"\njoin_s = 5\n[door]\nhost = "::"\nport = 1\n[relay]\nadvertise = "x"\n'
    read = lambda raw: ServerConfig.load(written(scratch / "server.toml", raw))  # noqa: E731
    yield Target("server.toml", [server], read, load_toml, dump_toml)
    folder = resources.files("isonomy.company.compare.benchmark") / "lists"
    cells = (folder / "quick.toml").read_bytes()
    read_cells = lambda raw: read_list(written(scratch / "list.toml", raw))  # noqa: E731
    yield Target("benchmark lists", [cells], read_cells, load_toml, dump_toml)


def sockets(scratch: Path) -> Iterator[Target]:
    """The bridge of a node, the officer's socket and the server's desk."""

    def refuse(ticket: Ticket) -> Any:
        raise PlanNotApproved("no")

    ticket = Ticket("h:1", "relay", b"token", HASH, "company", "c", 9).to_json().decode()
    node = Attendance(refuse, lambda session: {})
    yield bridge(
        "node's socket", node.handle, [{"type": "session", "ticket": ticket, "version": 1}]
    )
    home = Regulator.create(scratch / "officer", people=2)
    ledger = open_ledger(home.config)
    nothing: Any = SimpleNamespace(
        config=home.config, ledger=ledger, log=SimpleNamespace(info=lambda *a, **k: None),
        write_witness=lambda: None, note_progress=lambda: None,
        take_acts=lambda: None, drop_people=lambda: None,
        rows=lambda: [], stop=lambda plan: None, details=lambda plan: {},
        plan=lambda plan: None, half=lambda plan: None, close=lambda *plan: None,
        release_unknowns=lambda plan, share, officer: None, desk=lambda plan: None,
        approvals=Approvals(home.config.plans_folder), vault=home.vault, member_key=HASH,
    )  # fmt: skip
    officer = OfficerRequests(nothing, nothing, nothing, nothing)
    requests = [
        {"type": "reserve", "plan": "00" * 32},
        {"type": "close", "plan": "00" * 32},
        {"type": "unknowns", "plan": "00" * 32, "share": 5},
        {"type": "status"},
        {"type": "verdict", "verdict": "{}"},
    ]
    requests += [{"type": "held", "tasks": "digits"}]
    by = {"officer": "J. Doe"}
    yield bridge("officer's socket", officer.handle, [{**each, **by} for each in requests])
    link = SimpleNamespace(run=lambda work: 0.0, online=lambda: ())
    config = ServerConfig(name="s", home=scratch)
    desk = Desk(config, link, ServerMetrics(), None)  # type: ignore[arg-type]
    asked: list[Any] = [{"type": "run", "plan": "00" * 32}, {"type": "stop", "plan": "00" * 32}]
    yield bridge("server's desk", desk.handle, [*asked, {"type": "measure", "legs": 2, "bytes": 5}])


def relay_checkpoints(scratch: Path) -> Target:
    agreed = plan().public()
    folder = scratch / "relay"
    folder.mkdir()
    saved = RelayState(agreed, HASH, HASH).checkpoint()
    more = {
        "used": ("00" * 16,),
        "sessions": {"company": ("00" * 16, "00" * 32)},
        "by_purpose": {"sum": 5},
        "closed": {"company": "done"},
    }
    written(folder / "relay.json", saved.model_copy(update=more).to_json())

    def parse(raw: bytes) -> None:
        state = RelayState(agreed, HASH, HASH)
        state.restore(Checkpoint.load(written(folder / "relay.json", raw)))
        state.checkpoint().to_json()

    return json_target("relay checkpoints", [(folder / "relay.json").read_bytes()], parse)


# --- The company's models -------------------------------------------------------------------------


def tensor_folder(
    name: str, folder: Path, head: str, link: str, tensors: str, read: Callable[[Path], object]
) -> Target:
    """A JSON file and a safetensors file whose hash it names."""
    files = {
        path.name: path.read_bytes() for path in folder.iterdir() if path.name in (head, tensors)
    }

    def load(raw: bytes) -> Tree:
        parts = files_of(raw)
        return [json.loads(parts[head]), load_tensors(parts[tensors])]

    def dump(tree: Tree) -> bytes:
        state, body = items(tree, 2)
        raw = dump_tensors(body)
        if isinstance(state, dict) and link in state:
            state = {**state, link: hashlib.sha256(raw).hexdigest()}
        return folder_of({head: dump_json(state), tensors: raw})

    def parse(raw: bytes) -> None:
        read(unpacked(folder.with_name(folder.name + "-mutant"), raw))

    return Target(name, [folder_of(files)], parse, load, dump)


def skops_folder(name: str, folder: Path, read: Callable[[Path], object]) -> Target:
    """A JSON file and a skops archive, of JSON and arrays, whose hash it names."""
    files = {each: (folder / each).read_bytes() for each in ("model.json", "model.skops")}

    def load(raw: bytes) -> Tree:
        parts = files_of(raw)
        with zipfile.ZipFile(io.BytesIO(parts["model.skops"])) as archive:
            members: dict[str, Tree] = {each: archive.read(each) for each in archive.namelist()}
        schema = json.loads(members.pop("schema.json"))  # type: ignore[arg-type]
        return [json.loads(parts["model.json"]), schema, members]

    def dump(tree: Tree) -> bytes:
        state, schema, members = items(tree, 3)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("schema.json", dump_json(schema))
            for each, content in members.items() if isinstance(members, dict) else ():
                archive.writestr(octets(each).decode("utf-8", "replace") or "x", octets(content))
        digest = hashlib.sha256(buffer.getvalue()).hexdigest()
        if isinstance(state, dict) and isinstance(state.get("files"), dict):
            state = {**state, "files": {**state["files"], "model.skops": digest}}
        return folder_of({"model.json": dump_json(state), "model.skops": buffer.getvalue()})

    def parse(raw: bytes) -> None:
        read(unpacked(folder.with_name(folder.name + "-mutant"), raw))

    return Target(name, [folder_of(files)], parse, load, dump)


def models(scratch: Path) -> Iterator[Target]:
    """Saved classifiers, releases, checkpoints, few-shot models and learners' states."""
    rng = np.random.default_rng(0)
    a = rng.random(500) < 0.5
    x = pd.DataFrame({"x": rng.normal(0, 1, 500) + a, "w": rng.normal(0, 1, 500)})
    y = np.where(x["x"] + rng.normal(0, 0.5, 500) > 0.5, 1, 0)
    oracle = LocalOracle.rehearse(
        range(500), {"sex": a.astype(str).tolist()}, epsilon=9, delta=1e-5
    )
    classifier = FairClassifier(LogisticRegression(), oracle=oracle, random_state=0).fit(x, y)
    save_model(classifier, scratch / "model")
    yield skops_folder("saved models", scratch / "model", load_model)
    save_releases(classifier.releases_, scratch / "releases")
    yield tensor_folder(
        "releases", scratch / "releases", "releases.json", "", "releases.safetensors", load_releases
    )
    data = toy(60)
    (scratch / "grad").mkdir()
    home = federation_of(scratch / "grad", data.group, epsilon=20.0)
    folder = scratch / "checkpoint"
    made = trainer(linear(), PFLD(), home.local(), checkpoint=folder, rounds=2)
    made.fit(data.x, data.y)

    def read_checkpoint(folder: Path) -> None:
        trainer(linear(), PFLD(), home.local(), rounds=2).fit(data.x, data.y, resume=folder)

    tensors = next(folder.glob("*.safetensors")).name
    yield tensor_folder("checkpoints", folder, "state.json", "sha256", tensors, read_checkpoint)
    run = tiny_settings()
    size = sum(int(np.prod(shape)) for shape in Network.of(run).shapes.values())
    FewShotModel(run, np.zeros(size, np.float32), {"a": 1}).save(scratch / "few")
    yield tensor_folder(
        "few-shot models",
        scratch / "few",
        "card.json",
        "sha256",
        "model.safetensors",
        FewShotModel.load,
    )
    state = pack({"theta": np.zeros(4, np.float32), "step": np.array([3])})
    yield Target("learners' states", [state], unpack, load_tensors, dump_tensors)
    pool = tiny_pool()
    raw = array_bytes(
        inputs=pool.inputs, labels=pool.labels, groups=pool.groups, positive=pool.positive
    )

    def read_pool(raw: bytes) -> None:
        load_pool(written(scratch / "pool.npz", raw)).check(run)

    yield Target("pools", [raw], read_pool, load_npz, dump_npz)


def role_targets(scratch: Path) -> Iterator[Target]:
    """All targets of this module."""
    yield from sealed_files(scratch)
    yield witnesses(scratch)
    yield appendices(scratch)
    yield from tables(scratch)
    yield certificates(scratch)
    yield from settings(scratch)
    yield from sockets(scratch)
    yield relay_checkpoints(scratch)
    yield from models(scratch)
