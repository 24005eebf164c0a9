"""Who acted: every record of an act names its officer, and two officers sign where policy says."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from authority_kit import authority
from regulator_kit import COMPANY, GAPS, Outcome, Regulator, run_regulator
from report_kit import OFFICER

from isonomy.common.agreements.approvals import sign_agreement
from isonomy.common.base.errors import ConfigError, PolicyRefused
from isonomy.common.keys.certificates import spoken_authority
from isonomy.common.kits import users
from isonomy.common.kits.kit import write_kit
from isonomy.common.kits.request import KitRequest
from isonomy.common.ledger.entries import read_entries
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.plans.sign_off import SignOff, check_sign_off, sign_off_path, store
from isonomy.regulator.serving.daemon import Daemon

TEXTS = [part for name, text in OFFICER for part in (f"--{name}", text)]
ADA, BELA = "Ada <b>Byron</b>", "Béla Nagy"


@pytest.fixture
def regulator(tmp_path: Path) -> Regulator:
    return Regulator.create(tmp_path)


def declare(regulator: Regulator, *names: str, needed: int = 2) -> None:
    """Make a key for each of these officers, as each of them would, and declare it."""
    toml = regulator.home / "regulator.toml"
    for name in names:
        file = regulator.folder / f"{name[:3]}.key"
        made = run_regulator("officer-key", file, "--name", name, *unlock(file))
        assert made.code == 0, made.stderr
        toml.write_text(toml.read_text() + "\n" + made.stdout.partition("\n")[2])
    regulator.change("approving_officers = 1", f"approving_officers = {needed}")


def unlock(file: Path) -> tuple[object, ...]:
    return "--passphrase-file", file.with_suffix(".pass")


def approve(
    regulator: Regulator, plan: Path, name: str, monkeypatch: pytest.MonkeyPatch, key: str = ""
) -> Outcome:
    monkeypatch.setenv("ISONOMY_OFFICER", name)
    file = regulator.folder / f"{(key or name)[:3]}.key"
    return regulator.run("approve", plan, "--officer-key", file, *unlock(file), "--yes")


def test_every_act_names_its_officer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISONOMY_OFFICER", ADA)
    regulator = Regulator.create(tmp_path, groups=GAPS)
    secret = tmp_path / "passphrase"
    secret.write_text("long enough for this")
    secret.chmod(0o600)
    monkeypatch.setenv("ISONOMY_KEY_PASSPHRASE_FILE", str(secret))
    people = tmp_path / "more.csv"
    people.write_text("id,sex\nx1,female\n")
    first, second = (regulator.plan_file(name=name, groups=GAPS) for name in "ab")
    run = json.loads(regulator.run("approve", first, "--yes", "--json").stdout)["approved"]
    for arguments in (
        ("enroll", people, "--attribute", "sex", "--update"),
        ("report", run[:12], "--unknowns", "0.1", "-o", tmp_path / "report", *TEXTS),
        ("reject", second, "--yes"),
        ("forget", run[:12], "--yes"),
        ("doctor", "--accept-clock"),
        ("backup", tmp_path / "backup"),
        ("rotate", "identity", "--yes"),
        ("rotate", "certificate"),
        ("ledger", "--share", tmp_path / "copy.jsonl"),
        ("seal-keys", "--passphrase-file", secret),
        ("rotate", "vault", "--new-unlock-file", tmp_path / "new"),
    ):
        done = regulator.run(*arguments)
        assert done.code in (0, 73), (arguments, done.stderr)  # 73: doctor found something
    named = [entry for entry in read_entries(regulator.config.ledger_path) if entry.kind != "open"]
    for entry in named:
        if entry.kind != "reserve":  # the approval's note follows
            assert entry.event["officer"] == ADA, entry
    kinds = [each.event["kind"] if each.kind == "note" else each.kind for each in named]
    assert kinds == [
        "home",  # before there was a ledger
        *("reserve", "approval", "enrolment", "debit", "rejection", "close", "deletion"),
        *("clock", "rotation"),
        *("certificate-request", "ledger-shared", "keys-sealed"),  # taken over by the next act
        "vault-secret",
    ]
    assert not (regulator.home / "acts.jsonl").exists()
    shown = regulator.run("ledger").stdout
    assert "people whose sex is not recorded" in shown
    assert f", by {ADA}" in shown
    report = json.loads((tmp_path / "report" / "report.json").read_bytes())
    assert (report["written_by"], report["approved_by"]) == (ADA, [ADA])
    assert [line["asked_by"] for line in report["privacy"]["questions"]] == ["regulator"]
    page = (tmp_path / "report" / "report.html").read_text()
    assert ADA not in page  # markup is shown, not obeyed
    assert "Ada &lt;b&gt;Byron&lt;/b&gt;" in page
    for folder, pattern in (("deletions", "*.json"), ("plans/closed", "*.rejection.json")):
        (record,) = (regulator.home / folder).glob(pattern)
        assert json.loads(record.read_bytes())["officer"] == ADA
    (record,) = (regulator.home / "keys" / "rotations").glob("*.json")
    assert json.loads(record.read_bytes())["officer"] == ADA
    assert json.loads((regulator.home / "backups.jsonl").read_text())["officer"] == ADA


def test_kits_and_tasks_name_their_officer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISONOMY_OFFICER", ADA)
    monkeypatch.setattr(users, "is_root", lambda: False)
    monkeypatch.chdir(tmp_path)
    regulator = Regulator.create(tmp_path)
    regulator.approve(regulator.plan_file())  # opens the ledger
    node, signer = tmp_path / "node", authority(tmp_path / "ca")
    assert regulator.run("request", "--node", node).code == 0
    request = KitRequest.load(tmp_path / "regulator.request")
    facts = {"server": "server.example.org", "door": "server.example.org:9093"}
    kit = write_kit(signer, request, [], folder=tmp_path, **facts)
    arrays = {"inputs": np.ones((2, 3)), "labels": np.arange(2), "groups": np.arange(2)}
    np.savez(tmp_path / "faces.npz", ids=np.array(["x1", "x2"]), **arrays)
    spoken = spoken_authority(signer.ca)
    for arguments in (
        ("install", kit, "--node", node, "--authority", spoken),
        ("tasks", "add", "faces", tmp_path / "faces.npz"),
        ("tasks", "remove", "faces", "--yes"),
    ):
        done = regulator.run(*arguments)
        assert done.code == 0, (arguments, done.stderr)
    notes = [each.event for each in read_entries(regulator.config.ledger_path)]
    officers = {event["kind"]: event["officer"] for event in notes if "kind" in event}
    for kind in ("kit-request", "kit", "tasks-added", "tasks-destroyed"):
        assert officers[kind] == ADA


def test_two_officers_approve(regulator: Regulator, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(regulator, ADA, BELA)
    plan = regulator.plan_file()
    done = approve(regulator, plan, ADA, monkeypatch)
    assert (done.code, "Another officer must approve" in done.stdout) == (0, True), done.stderr
    assert not regulator.config.ledger_path.exists()
    assert f"waits for another officer; approved by {ADA}" in regulator.run("status").stdout
    again = approve(regulator, plan, ADA, monkeypatch)
    assert (again.code, "another officer must" in again.stderr) == (51, True)
    done = approve(regulator, plan, BELA, monkeypatch)
    assert (done.code, f"by {ADA} and {BELA}" in done.stdout) == (0, True), done.stderr
    assert f"plan approved, by {ADA} and {BELA}" in regulator.run("ledger").stdout
    run = regulator.plan()[0].hash.hex()[:12]
    assert regulator.run("report", run, "-o", regulator.folder / "report", *TEXTS).code == 0
    report = json.loads((regulator.folder / "report" / "report.json").read_bytes())
    assert report["approved_by"] == [ADA, BELA]


def test_who_may_not_approve(regulator: Regulator, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(regulator, ADA, BELA)
    plan = regulator.plan_file()
    for name, key, words in (
        ("Cleo", ADA, "'Cleo' is not an officer of this regulator"),
        (BELA, ADA, "another key signed"),
    ):
        done = approve(regulator, plan, name, monkeypatch, key)
        assert (done.code, words in done.stderr) == (51, True), done.stderr
    monkeypatch.setenv("ISONOMY_OFFICER", ADA)
    unsigned = regulator.run("approve", plan, "--yes")
    assert (unsigned.code, "--officer-key" in unsigned.stderr) == (51, True)
    (regulator.folder / "Ada.pass").write_text("not the passphrase")
    assert approve(regulator, plan, ADA, monkeypatch).code == 70
    assert not list(regulator.config.approvals_folder.glob("*"))
    assert not regulator.config.ledger_path.exists()


def test_the_daemon_checks_the_signatures(
    regulator: Regulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever lies in the home: another plan's signature, one officer twice, a revoked one."""
    declare(regulator, ADA, BELA)
    files = [regulator.plan_file(name=name, epsilon="0.1") for name in "ab"]
    first, second = (regulator.plan(name=name, epsilon="0.1")[0] for name in "ab")
    for file in files:
        for name in (ADA, BELA):
            assert approve(regulator, file, name, monkeypatch).code == 0
    good = SignOff.load(sign_off_path(regulator.config, first.hash))
    other = SignOff.load(sign_off_path(regulator.config, second.hash))
    ada, bela = good.officers
    for officers, words in (
        ((ada, other.officers[1]), f"the signature of {BELA!r} is not over this plan"),
        ((ada, ada), "1 of 2 officers approved"),
        ((ada,), "1 of 2 officers approved"),
        ((ada, bela.model_copy(update={"name": "Cleo"})), "'Cleo' is not an officer"),
    ):
        store(regulator.config, good.model_copy(update={"officers": officers}))
        with (
            Daemon(regulator.config, regulator.vault, least="error") as daemon,
            pytest.raises(PolicyRefused, match=words.replace("(", r"\(")),
        ):
            daemon.plans.half(first.hash)
    store(regulator.config, good)
    check_sign_off(regulator.config, first)
    toml = regulator.home / "regulator.toml"
    toml.write_text(toml.read_text() + "revoked = true\n")  # the last table is Béla's
    regulator.config = RegulatorConfig.load(regulator.home)
    with pytest.raises(PolicyRefused, match=f"{BELA!r} is revoked"):
        check_sign_off(regulator.config, first)
    done = approve(regulator, files[0], BELA, monkeypatch)
    assert (done.code, "is revoked" in done.stderr) == (51, True)
    assert f"'{BELA}' is revoked" in regulator.run("doctor").stdout


@pytest.mark.parametrize("needed", [1, 2])
def test_another_spelling_is_neither_keyless_nor_a_second_officer(
    regulator: Regulator, monkeypatch: pytest.MonkeyPatch, needed: int
) -> None:
    declare(regulator, ADA, BELA, needed=needed)
    file, plan = regulator.plan_file(), regulator.plan()[0]
    for name in (ADA, BELA)[-needed:]:
        assert approve(regulator, file, name, monkeypatch).code == 0
    good = check_sign_off(regulator.config, plan)
    bela = good.officers[-1]
    spelt = bela.model_copy(update={"name": unicodedata.normalize("NFD", BELA)})
    assert spelt.name != bela.name
    keyless = spelt.model_copy(update={"key": "", "signature": ""})
    for officers in ((keyless,), (spelt,), (bela, spelt)):
        store(regulator.config, good.model_copy(update={"officers": officers}))
        with pytest.raises(ConfigError, match="not in canonical form"):
            check_sign_off(regulator.config, plan)


def test_names_and_tables_that_cannot_be(
    regulator: Regulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = regulator.plan_file()
    for name in ("two\nlines", " ", "x" * 129, "left\u202eright"):
        monkeypatch.setenv("ISONOMY_OFFICER", name)
        assert regulator.run("approve", plan, "--yes").code == 10
    declare(regulator, ADA, needed=1)
    toml = regulator.home / "regulator.toml"
    text = toml.read_text()
    key = text[-67:].strip()
    for more in (f'\n[officers."{ADA.upper()}"]\n', f"\n[officers.Cleo]\n{text.splitlines()[-1]}"):
        toml.write_text(text + more)
        done = regulator.run("status")
        assert (done.code, "the same name or the same key" in done.stderr) == (10, True), key
    toml.write_text(text)
    monkeypatch.setenv("ISONOMY_OFFICER", "Cleo")
    assert regulator.run("reject", plan, "--yes").code == 51  # every act, not approvals alone


def test_a_plan_that_nobody_signed(regulator: Regulator) -> None:
    plan, signature = regulator.plan_file(), regulator.folder / "test.acme.sig"
    signature.unlink()
    done = regulator.run("approve", plan, "--yes")
    assert (done.code, "acme has not signed this plan" in done.stderr) == (40, True)
    assert "`isonomy-company approve test.json`" in done.stderr
    signature.write_bytes(b"\xff" * 300)
    assert regulator.run("approve", plan, "--yes").code == 40
    assert not regulator.config.ledger_path.exists()
    sign_agreement(regulator.plan()[0], plan, COMPANY)
    regulator.approve(plan)
    # The daemon asks for it too: an approval that was put together by hand does not run.
    loaded = regulator.plan()[0]
    record = SignOff.load(sign_off_path(regulator.config, loaded.hash))
    store(regulator.config, record.model_copy(update={"companies": {"acme": "00" * 64}}))
    with Daemon(regulator.config, regulator.vault, least="error") as daemon:
        daemon.reserve_all()
        assert loaded.hash not in daemon.plans._halves
