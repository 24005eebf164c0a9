"""Doctor, rotation, the clock, the ledger's story and the logs."""

from __future__ import annotations

import io
import json
import shutil
import threading
import time
from pathlib import Path

import pytest
from authority_kit import authority
from regulator_kit import Regulator, run_regulator

from isonomy.common.base.errors import ClockWentBack, ConfigError, VerificationError
from isonomy.common.base.logs import RotatingFile, logger
from isonomy.common.keys.certificates import (
    Request,
    issue,
    make_request,
    sign_request,
)
from isonomy.common.keys.party import Card
from isonomy.common.keys.rotation import Rotation, retirement
from isonomy.common.ledger.entries import read_entries
from isonomy.common.ledger.ledger import Ledger, verify_ledger
from isonomy.regulator.serving.daemon import Daemon
from isonomy.regulator.upkeep.doctor import examine
from isonomy.regulator.upkeep.rotation import finish_rotation


@pytest.fixture
def regulator(tmp_path: Path) -> Regulator:
    return Regulator.create(tmp_path)


def levels(regulator: Regulator) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for own in examine(regulator.config):
        found.setdefault(own.check, set()).add(own.level)
    return found


class TestDoctor:
    def test_a_whole_home_is_healthy(self, regulator: Regulator) -> None:
        regulator.certify()
        regulator.approve(regulator.plan_file())
        done = regulator.run("doctor", "--json")
        assert done.code == 0, done.stdout
        assert done.json["healthy"] is True
        assert all(own["fix"] for own in done.json["findings"] if own["level"] != "ok")

    def test_each_fault_is_found_and_has_its_mend(self, regulator: Regulator) -> None:
        regulator.certify()
        regulator.approve(regulator.plan_file())
        assert "fail" not in set().union(*levels(regulator).values())
        regulator.config.vault_path.chmod(0o644)
        assert "fail" in levels(regulator)["permissions"]
        regulator.config.vault_path.chmod(0o600)
        regulator.change('name = "regulator"', 'name = "somebody"')
        assert "fail" in levels(regulator)["keys"]
        regulator.change('name = "somebody"', 'name = "regulator"\ngroup = "no-such-group"')
        assert "fail" in levels(regulator)["sockets"]
        regulator.change('"tilt", ', "")
        assert "fail" in levels(regulator)["plans"]
        regulator.config.tls.cert.unlink()
        assert "fail" in levels(regulator)["certificates"]
        ledger = regulator.config.ledger_path
        ledger.write_bytes(ledger.read_bytes().replace(b'"delta":"1e-06"', b'"delta":"1e-05"'))
        assert "fail" in levels(regulator)["ledger"]
        done = regulator.run("doctor", "--json")
        assert done.code == 73
        assert done.json["healthy"] is False

    def test_plain_attributes_in_the_home_are_pointed_at(self, regulator: Regulator) -> None:
        (regulator.home / "people.csv").write_text("id,sex\n")
        assert "warn" in levels(regulator)["permissions"]


class TestClock:
    def ahead(self, regulator: Regulator, monkeypatch: pytest.MonkeyPatch) -> None:
        """A ledger whose last record lies a day in the future."""
        later = time.time() + 86_400
        with monkeypatch.context() as patch:
            patch.setattr("isonomy.common.ledger.ledger.time.time", lambda: later)
            regulator.approve(regulator.plan_file())

    def test_nothing_is_written_and_nothing_lost(
        self, regulator: Regulator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.ahead(regulator, monkeypatch)
        before = regulator.config.ledger_path.read_bytes()
        done = regulator.run("approve", regulator.plan_file(name="next"), "--yes", "--json")
        assert done.code == 71
        assert "Set the clock" in done.json["error"]["text"]
        assert regulator.config.ledger_path.read_bytes() == before
        assert len(list(regulator.config.plans_folder.glob("*.json"))) == 1
        regulator.certify()
        assert levels(regulator)["clock"] >= {"fail"}
        with (
            Daemon(regulator.config, regulator.vault) as daemon,
            pytest.raises(ClockWentBack),
        ):
            daemon.serve()

    def test_the_officer_can_say_that_it_was_wrong_then(
        self, regulator: Regulator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.ahead(regulator, monkeypatch)
        regulator.run("doctor", "--accept-clock")
        assert "fail" not in levels(regulator)["clock"]
        regulator.approve(regulator.plan_file(name="next"))
        entries = read_entries(regulator.config.ledger_path)
        kinds = [entry.event["kind"] for entry in entries if entry.kind == "note"]
        assert kinds.count("clock") == 1

    def test_a_few_seconds_are_no_matter(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Ledger.create(tmp_path / "l", cap_units=10, delta=1e-6) as ledger:
            now = time.time()
            monkeypatch.setattr("isonomy.common.ledger.ledger.time.time", lambda: now - 60)
            ledger.bind_key(bytes(32))
            assert ledger.last_time >= int(now)  # time in a ledger never runs backwards


class TestLedgerCommand:
    def test_the_story(self, regulator: Regulator) -> None:
        regulator.approve(regulator.plan_file())
        done = regulator.run("ledger", "--json")
        assert done.json["schema"] == "isonomy-regulator/ledger/v1"
        (entry,) = [own for own in done.json["entries"] if own["type"] == "reserve"]
        assert entry["who"] == ["acme"]
        assert entry["epsilon"] == pytest.approx(0.5, abs=1e-6)
        assert entry["people"] == 40
        assert "person-" not in done.stdout
        people = regulator.run("ledger")
        assert "set ε = 0.5 aside for 40 people" in people.stdout

    def test_a_copy_is_checked_anywhere(self, regulator: Regulator, tmp_path: Path) -> None:
        regulator.approve(regulator.plan_file())
        copy = Path(shutil.copy(regulator.config.ledger_path, tmp_path / "copy.jsonl"))
        head = verify_ledger(copy).head.hex()
        assert run_regulator("ledger", copy, "--verify", "--head", head).code == 0
        assert run_regulator("ledger", copy, "--verify", "--head", "00" * 32).code == 41
        assert run_regulator("ledger", copy, "--verify", "--head", "no").code == 10
        raw = bytearray(copy.read_bytes())
        raw[len(raw) // 2] ^= 1
        copy.write_bytes(raw)
        done = run_regulator("ledger", copy, "--verify", "--json")
        assert done.code == 41
        assert done.json["error"]["kind"] == "LedgerTampered"

    def test_before_the_first_approval(self, regulator: Regulator) -> None:
        assert regulator.run("ledger").code == 10


class TestRotation:
    def test_an_identity_leads_to_the_next(
        self, regulator: Regulator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        regulator.approve(regulator.plan_file())
        refused = regulator.run("rotate", "identity", "--yes")
        assert refused.code == 10
        assert "open plans name the old identity: 1" in refused.stderr
        assert regulator.run("reject", regulator.plan()[0].hash.hex(), "--yes").code == 0
        old = Card.load(regulator.config.keys_folder / "card.json")
        head = verify_ledger(regulator.config.ledger_path).head
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdin", io.StringIO())
            assert regulator.run("rotate", "identity").code == 130  # nobody answered
        assert Card.load(regulator.config.keys_folder / "card.json") == old
        done = regulator.run("rotate", "identity", "--yes", "--json")
        assert done.code == 0, done.stderr
        new = Card.load(regulator.config.keys_folder / "card.json")
        assert new.ed25519 != old.ed25519
        assert new.x25519 != old.x25519
        record = Rotation.load(Path(done.json["record"]))
        record.check()
        assert (record.old, record.new) == (old, new)
        assert retirement(new, old, [record]) == record.time
        assert retirement(old, new, [record]) is None  # trust goes back, not forward
        with pytest.raises(VerificationError):
            record.model_copy(update={"time": record.time + 1}).check()
        assert verify_ledger(regulator.config.ledger_path, known_head=head).records
        assert not (regulator.home / "keys.old").exists()
        regulator.approve(regulator.plan_file(name="next"))  # the same people, the same ledger
        assert regulator.config.ledger_path.exists()

    def test_one_that_was_cut_short_is_finished(self, regulator: Regulator) -> None:
        keys = regulator.config.keys_folder
        shutil.copytree(keys, regulator.home / "keys.new")
        keys.rename(regulator.home / "keys.old")
        finish_rotation(regulator.config)
        assert Card.load(keys / "card.json").name == "regulator"
        assert not (regulator.home / "keys.old").exists()

    def test_a_vault_gets_another_secret(self, regulator: Regulator, tmp_path: Path) -> None:
        new = tmp_path / "other-unlock"
        done = regulator.run("rotate", "vault", "--new-unlock-file", new)
        assert done.code == 0, done.stderr
        assert regulator.run("backup", tmp_path / "b").code == 70  # the old one
        assert regulator.run("backup", tmp_path / "b", "--unlock-file", new).code == 0

    def sign(self, regulator: Regulator, request: Path, out: Path) -> Path:
        return sign_request(authority(regulator.folder / "ca"), Request.load(request), out).cert

    def test_a_certificate_and_its_key(self, regulator: Regulator, tmp_path: Path) -> None:
        first = make_request(regulator.config.tls_folder, "regulator", "regulator")
        pem = self.sign(regulator, first, tmp_path / "one")
        done = regulator.run("tls-install", pem, "--json")
        assert done.code == 0, done.stderr
        old = regulator.config.tls.key.read_bytes()
        request = Path(regulator.run("rotate", "certificate", "--json").json["request"])
        assert regulator.config.tls.key.read_bytes() == old  # in use until the new one is whole
        assert regulator.run("rotate", "certificate").code == 10
        pem = self.sign(regulator, request, tmp_path / "two")
        assert regulator.run("tls-install", pem).code == 0
        assert regulator.config.tls.key.read_bytes() != old
        regulator.config.tls.read()
        assert not request.parent.exists()

    def test_a_certificate_for_another_key_is_not_installed(
        self, regulator: Regulator, tmp_path: Path
    ) -> None:
        regulator.certify()
        before = regulator.config.tls.cert.read_bytes()
        other = authority(tmp_path / "other")
        foreign = issue(other, tmp_path / "foreign", "regulator", "regulator")
        assert regulator.run("tls-install", foreign.cert).code == 17
        own = regulator.config.tls.cert
        assert regulator.run("tls-install", own, "--ca", foreign.ca).code == 17
        assert regulator.config.tls.cert.read_bytes() == before


class TestLogs:
    def test_lines_are_whole_and_files_few(self, tmp_path: Path) -> None:
        path = tmp_path / "log" / "daemon.jsonl"
        file = RotatingFile(path, max_bytes=1000, backups=2)
        log = logger("regulator", file)
        threads = [
            threading.Thread(target=lambda: [log.info("event", n=n) for n in range(50)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        files = sorted(path.parent.iterdir())
        assert [own.name for own in files] == ["daemon.jsonl", "daemon.jsonl.1", "daemon.jsonl.2"]
        for own in files:
            assert own.stat().st_size <= 1000
            assert own.stat().st_mode & 0o077 == 0
            for line in own.read_text().splitlines():
                assert json.loads(line)["role"] == "regulator"

    def test_a_log_that_cannot_be_opened_is_said_so(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ConfigError, match="cannot write the log"):
            RotatingFile(tmp_path / "file" / "log")
