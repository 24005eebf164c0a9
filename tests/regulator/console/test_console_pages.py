"""What an officer does in the console: the same as the commands do, and nothing without a proof."""

from __future__ import annotations

import html
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from authority_kit import authority
from console_kit import Browser, handed_over
from regulator_kit import COMPANY, Regulator

from isonomy.common.agreements.about import About
from isonomy.common.agreements.approvals import sign_agreement
from isonomy.common.base.errors import ConfigError
from isonomy.common.keys.certificates import Request, sign_request
from isonomy.common.keys.party import fingerprint
from isonomy.company.federation.planning import make_plan, write_plan
from isonomy.regulator.console.access import IDLE_S
from isonomy.regulator.console.officers import Officers
from isonomy.regulator.plans.inbox import waiting_plans
from isonomy.regulator.plans.plan_files import ledger_state, rejections
from isonomy.regulator.plans.sign_off import make_officer_key
from isonomy.regulator.vault.unlock import Secret
from isonomy.regulator.vault.vault import Vault

MARKUP = '<script>alert("x")</script><img src=x onerror=alert(1)>'


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(Regulator.create(tmp_path)) as browser:
        yield browser


def put(browser: Browser, plan: Path) -> str:
    """Upload a plan; returns the address of its page."""
    done = browser.post("/inbox", proof=False, files=handed_over(plan))
    assert done.status_code == 303, done.text
    return str(done.headers["location"])


def ticks(plan_page: str) -> dict[str, list[str]]:
    digits = fingerprint(COMPANY.card())
    assert digits in plan_page
    return {"compared": ["hash", digits]}


class TestInbox:
    def test_a_plan_is_shown_in_plain_words_and_approved(self, browser: Browser) -> None:
        page = put(browser, browser.regulator.plan_file())
        text = browser.get(page).text
        for words in ("63 %", "instead of 50 %", "Your policy allows", "acme signed exactly"):
            assert words in text
        (plan,) = waiting_plans(browser.regulator.config)
        assert plan.hash.hex() in text
        done = browser.post(f"{page}/approve", ticks(text))
        assert "Approved: test" in browser.follow(done)
        (entry,) = ledger_state(browser.regulator.config.ledger_path).plans()
        assert (entry.plan, entry.is_open) == (plan.hash, True)
        assert not list(browser.regulator.config.inbox_folder.glob("*"))

    def test_what_is_approved_already_waits_no_more(self, browser: Browser) -> None:
        regulator = browser.regulator
        plan = regulator.plan_file()
        put(browser, plan)
        regulator.approve(plan)  # by the command line
        assert not waiting_plans(regulator.config)
        before = regulator.config.ledger_path.read_bytes()
        page = put(browser, plan)
        assert page.startswith("/live/")
        text = browser.get(page).text
        assert "test was approved before, by " in text
        assert "Withdraw the approval" in text
        assert not list(regulator.config.inbox_folder.glob("*"))
        assert regulator.config.ledger_path.read_bytes() == before
        regulator.run("reject", plan, "--yes")
        text = browser.get(put(browser, plan)).text
        assert "it was closed, for good" in text
        assert "This plan was rejected" in text
        assert "/approve" not in text
        assert "/reject" not in text

    def test_every_key_and_the_hash_must_be_ticked(self, browser: Browser) -> None:
        page = put(browser, browser.regulator.plan_file())
        done = browser.post(f"{page}/approve", {"compared": ["hash"]})
        assert done.status_code == 422
        assert "Tick off" in done.text
        assert not browser.regulator.config.ledger_path.exists()

    def test_a_wrong_passphrase_approves_nothing_and_keeps_what_was_typed(
        self, browser: Browser
    ) -> None:
        page = put(browser, browser.regulator.plan_file())
        fields = {"reason": "too dear", "passphrase": "wrong"}
        done = browser.post(f"{page}/reject", fields)
        assert done.status_code == 422
        assert "The passphrase is wrong" in done.text
        assert 'value="too dear"' in done.text
        assert "wrong" not in done.text.replace("is wrong", "")
        assert not rejections(browser.regulator.config)
        done = browser.post(f"{page}/approve", {**ticks(done.text), "passphrase": ""})
        assert "Type the passphrase" in done.text

    def test_a_plan_is_rejected_with_a_signed_record(self, browser: Browser) -> None:
        page = put(browser, browser.regulator.plan_file())
        assert browser.post(f"{page}/reject", {"reason": " "}).status_code == 422
        text = browser.follow(browser.post(f"{page}/reject", {"reason": "ε is too large"}))
        assert "Rejected: test" in text
        (record,) = rejections(browser.regulator.config)
        assert record["reason"] == "ε is too large"
        assert not waiting_plans(browser.regulator.config)

    def test_what_the_policy_forbids_can_only_be_rejected(self, browser: Browser) -> None:
        page = put(browser, browser.regulator.plan_file(epsilon="5"))
        text = browser.get(page).text
        assert "This plan cannot be approved" in text
        assert f"{page}/approve" not in text
        assert (
            browser.post(f"{page}/approve", ticks(fingerprint(COMPANY.card()))).status_code == 422
        )

    def test_a_plan_that_nobody_signed_is_not_approved(self, browser: Browser) -> None:
        files = [
            own for own in handed_over(browser.regulator.plan_file()) if "sig" not in own[1][0]
        ]
        done = browser.post("/inbox", proof=False, files=files)
        page = str(done.headers["location"])
        assert "did not sign this plan" in browser.get(page).text
        done = browser.post(f"{page}/approve", ticks(fingerprint(COMPANY.card())))
        assert done.status_code == 422
        assert not browser.regulator.config.ledger_path.exists()

    @pytest.mark.parametrize(
        "files",
        [
            [("plan.people", b"a\n")],
            [("one.json", b"{}")],
            [("one.json", b"\xff\xfe")],
            [("report.json", b'{"schema_version":1,"audits":[]}')],
            [("../../../etc/plan.json", b"[]")],
        ],
    )
    def test_other_files_are_refused_and_leave_nothing(
        self, browser: Browser, files: list[tuple[str, bytes]]
    ) -> None:
        done = browser.post("/inbox", proof=False, files=[("files", own) for own in files])
        assert done.status_code == 422
        home = browser.regulator.home
        assert not [p for p in (home / "inbox").glob("*") if p.is_file()]
        assert not list((home / "console" / "uploads").glob("*"))


def test_two_officers_approve_each_with_their_own_passphrase(tmp_path: Path) -> None:
    regulator, keys = Regulator.create(tmp_path), []
    lines = ""
    for name in ("Ada Byron", "Grace Hopper"):
        keys.append(tmp_path / f"{name[:3]}.key")
        public = make_officer_key(keys[-1], Secret(f"words of {name}".encode()))
        lines += f'[officers."{name}"]\nkey = "{public}"\n'
    path = regulator.home / "regulator.toml"
    path.write_text(path.read_text() + lines)
    regulator.change("approving_officers = 1", "approving_officers = 2")
    with Browser(regulator, tuple(keys)) as browser:
        page = put(browser, regulator.plan_file())
        text = browser.get(page).text
        assert "You are the first" in text
        ada = {"officer": "Ada Byron", "passphrase": "words of Ada Byron"}
        grace = {"officer": "Grace Hopper", "passphrase": "words of Grace Hopper"}
        first = browser.post(f"{page}/approve", ticks(text) | ada)
        assert "Another officer must" in browser.follow(first)
        for again in (ada, grace | {"passphrase": "words of Ada Byron"}):
            assert browser.post(f"{page}/approve", ticks(text) | again).status_code == 422
        assert not regulator.config.ledger_path.exists()
        done = browser.follow(browser.post(f"{page}/approve", ticks(text) | grace))
        assert "by Ada Byron and Grace Hopper" in done


def test_a_key_that_the_policy_does_not_name_is_refused(tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.key"
    make_officer_key(stranger, Secret(b"another passphrase"))
    with pytest.raises(ConfigError, match="names no officer with this key"):
        Officers(Regulator.create(tmp_path).config, (stranger,))


class TestMarkup:
    """Whatever a company or an officer calls something: it is text on every page."""

    def test_in_every_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(os.environ, "ISONOMY_OFFICER", MARKUP)
        groups = {"sex <b>": (f"f{MARKUP}", f"m{MARKUP}")}
        regulator = Regulator.create(tmp_path, people=0, groups=groups)
        ids = [f"p{n}" for n in range(40)]
        with Browser(regulator) as browser:
            csv = "id,sex <b>\n" + "".join(
                f'{person},"{groups["sex <b>"][n % 2].replace(chr(34), chr(34) * 2)}"\n'
                for n, person in enumerate(ids)
            )
            name = f"{MARKUP}.csv".replace("/", "")
            done = browser.post(
                "/people", {"delimiter": ","}, proof=False, files=[("file", (name, csv.encode()))]
            )
            pages = [browser.follow(done)]
            fields = {"id": "id", "attribute": "sex <b>", "cohort": "everybody", "mode": "new"}
            pages.append(browser.post("/people/check", fields).text)
            pages.append(browser.follow(browser.post("/people/enroll", fields)))
            plan, cohort = make_plan(
                name=MARKUP,
                companies=[(COMPANY.card(), regulator.plan(ids)[1])],
                regulator=regulator.plan(ids)[0].regulator,
                relay_name="localhost",
                groups=groups,
                notion="demographic_parity",
                strategy="tilt",
                tolerance="0.01",
                epsilon="0.5",
                delta="1e-6",
                about=About(purpose=MARKUP, system=MARKUP, contact=MARKUP),
            )
            path = tmp_path / "plan.json"
            write_plan(plan, cohort, path)
            sign_agreement(plan, path, COMPANY)
            page = put(browser, path)
            pages += [browser.get(page).text, browser.get("/inbox").text, browser.get("/").text]
            done = browser.post(f"{page}/approve", ticks(pages[-3]))
            pages.append(browser.follow(done))
            hashed = plan.hash.hex()
            for address in ("/live", f"/live/{hashed}", "/companies", "/ledger", "/people", "/"):
                pages.append(browser.get(address).text)
            done = browser.post(f"/live/{hashed}/withdraw", {"reason": MARKUP})
            pages.append(browser.follow(done))
            for address in ("/inbox", "/companies", "/ledger", "/ledger?type=note"):
                pages.append(browser.get(address).text)
            key = fingerprint(COMPANY.card()).replace(" ", "")
            pages.append(browser.get(f"/companies/{key}").text)
            pages.append(browser.get("/ledger", params={"plan": MARKUP, "type": MARKUP}).text)
            pages.append(browser.post("/people/forget", {"what": MARKUP, "again": MARKUP}).text)
        for number, text in enumerate(pages):
            assert "<script>alert" not in text, number
            assert "<img" not in text, number
            assert "sex <b>" not in text, number
        assert sum(html.escape(MARKUP, quote=False)[:20] in text for text in pages) > 10


class TestPeople:
    CSV = b"customer;sex\nc1;f\nc2;male\nc3;f\n"

    def upload(self, browser: Browser, raw: bytes) -> str:
        files = [("file", ("people.csv", raw))]
        return browser.follow(browser.post("/people", {"delimiter": ";"}, proof=False, files=files))

    def test_a_file_is_mapped_tried_and_enrolled(self, tmp_path: Path) -> None:
        with Browser(Regulator.create(tmp_path, people=0)) as browser:
            uploads = browser.regulator.home / "console" / "uploads"
            assert "Nobody is enrolled" in browser.get("/people").text
            page = self.upload(browser, self.CSV)
            assert "“f”" in page
            assert "c1" not in page  # no id is shown
            assert len(list(uploads.glob("*"))) == 1
            assert uploads.stat().st_mode & 0o077 == 0
            fields = {"id": "customer", "attribute": "sex", "cohort": "north", "mode": "new"}
            done = browser.post("/people/check", fields)
            assert done.status_code == 422
            assert "people.csv has 2 bad lines" in done.text
            assert str(uploads) not in done.text
            mapped = {**fields, "value": "f", "group": "female"}
            page = browser.post("/people/check", mapped).text
            assert "3 people would be added" in page
            assert browser.regulator.vault.read().ids == ()
            text = browser.follow(browser.post("/people/enroll", mapped))
            assert "Enrolled: 3 added" in text
            assert not list(uploads.glob("*"))
            table = browser.regulator.vault.read()
            assert table.sizes("sex")["female"] == 2
            done = browser.post("/people/forget", {"what": "north", "again": "south"})
            assert done.status_code == 422
            text = browser.follow(
                browser.post("/people/forget", {"what": "north", "again": "north"})
            )
            assert "Forgotten: cohort north, 3 people" in text
            assert browser.regulator.vault.read().ids == ()

    def test_a_workbook_is_named_and_a_file_can_be_discarded(self, browser: Browser) -> None:
        files = [("file", ("people.xlsx", b"PK\x03\x04" + b"x" * 100))]
        done = browser.post("/people", {"delimiter": ","}, proof=False, files=files)
        assert done.status_code == 422
        assert "people.xlsx" in done.text
        assert "Excel workbook" in done.text
        assert not list((browser.regulator.home / "console" / "uploads").glob("*"))
        self.upload(browser, self.CSV)
        browser.post("/people/discard", proof=False)
        assert not list((browser.regulator.home / "console" / "uploads").glob("*"))
        assert browser.get("/people/file").status_code == 303

    def test_a_file_that_nobody_comes_back_for_is_destroyed(self, browser: Browser) -> None:
        uploads = browser.regulator.home / "console" / "uploads"
        self.upload(browser, self.CSV)
        browser.access.sweep()
        assert len(list(uploads.glob("*"))) == 1
        browser.clock.now += IDLE_S + 1
        browser.access.sweep()
        assert not list(uploads.glob("*"))


def test_a_plan_without_a_session_has_nothing_to_stop(browser: Browser) -> None:
    browser.regulator.approve(browser.regulator.plan_file())
    (entry,) = ledger_state(browser.regulator.config.ledger_path).plans()
    address = f"/live/{entry.plan.hex()}"
    assert "The daemon is not running" in browser.get(address).text
    done = browser.post(f"{address}/stop")
    assert done.status_code == 422
    assert "nothing to stop" in done.text
    assert browser.get("/live/" + "0" * 64).status_code == 409


class TestUpkeep:
    def test_a_backup_goes_outside_the_home(self, browser: Browser, tmp_path: Path) -> None:
        for place in ("relative.backup", str(browser.regulator.home / "x.backup"), ""):
            assert browser.post("/upkeep/backup", {"file": place}).status_code == 422
        target = tmp_path / "safe" / "one.backup"
        target.parent.mkdir()
        text = browser.follow(browser.post("/upkeep/backup", {"file": str(target)}))
        assert str(target) in text
        assert target.exists()

    def test_an_identity_is_replaced_by_who_is_sure(self, browser: Browser) -> None:
        before = (browser.regulator.config.keys_folder / "card.json").read_bytes()
        assert browser.post("/upkeep/identity").status_code == 422
        text = browser.follow(browser.post("/upkeep/identity", {"sure": "yes"}))
        assert "New fingerprint" in text
        card = browser.regulator.config.keys_folder / "card.json"
        assert card.read_bytes() != before
        assert browser.get("/upkeep/card.json").content == card.read_bytes()

    def test_certificates_need_both_files(self, browser: Browser) -> None:
        files = [("files", ("tls.pem", b"x"))]
        done = browser.post("/upkeep/certificate", files=files)
        assert done.status_code == 422
        files.append(("files", ("ca.pem", b"x")))
        done = browser.post("/upkeep/certificate", files=files)
        assert done.status_code == 422
        assert not browser.regulator.config.tls.cert.exists()

    def test_a_certificate_is_installed(self, browser: Browser, tmp_path: Path) -> None:
        config = browser.regulator.config
        raw = browser.get("/upkeep/tls.csr").content
        request = Request.parse(raw, tmp_path / "tls.csr")
        signed = sign_request(authority(tmp_path / "ca"), request, tmp_path / "signed")
        files = [("files", (path.name, path.read_bytes())) for path in (signed.cert, signed.ca)]
        text = browser.follow(browser.post("/upkeep/certificate", files=files))
        assert "Installed, valid until" in text
        assert config.tls.cert.read_bytes() == signed.cert.read_bytes()


class TestVaultUnderAPassphrase:
    """Without an unlock file the officer types the vault's own passphrase."""

    OLD, NEW = "the old words of the vault", "the new words of the vault"

    @pytest.fixture
    def regulator(self, tmp_path: Path) -> Regulator:
        regulator = Regulator.create(tmp_path)
        regulator.vault.reseal(Secret(self.OLD.encode()))
        path = regulator.home / "regulator.toml"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(x for x in lines if not x.startswith("unlock_file")))
        regulator.config = type(regulator.config).load(regulator.home)
        assert regulator.config.unlock_file is None
        return regulator

    def test_it_proves_the_officer_and_is_changed(self, regulator: Regulator) -> None:
        with Browser(regulator) as browser:
            page = put(browser, regulator.plan_file())
            fields = ticks(browser.get(page).text)
            for wrong in ("other words", regulator.home.name):
                done = browser.post(f"{page}/approve", fields | {"passphrase": wrong}, proof=False)
                assert done.status_code == 422
            done = browser.post(f"{page}/approve", fields | {"passphrase": self.OLD}, proof=False)
            assert "Approved" in browser.follow(done)
            new = {"new": self.NEW, "new_again": self.NEW, "passphrase": self.OLD}
            for bad in ({"new_again": "otherwise, in words"}, {"new": "x", "new_again": "x"}):
                assert browser.post("/upkeep/vault", new | bad, proof=False).status_code == 422
            done = browser.post("/upkeep/vault", new, proof=False)
            assert "new passphrase" in browser.follow(done)
        table = Vault(regulator.config.vault_path, Secret(self.NEW.encode())).read()
        assert len(table) == 40

    def test_an_officers_key_does_not_open_it(self, regulator: Regulator, tmp_path: Path) -> None:
        key = tmp_path / "ada.key"
        public = make_officer_key(key, Secret(b"words of Ada Byron"))
        path = regulator.home / "regulator.toml"
        path.write_text(path.read_text() + f'[officers."Ada Byron"]\nkey = "{public}"\n')
        regulator.config = type(regulator.config).load(regulator.home)
        with Browser(regulator, (key,)) as browser:
            ada = {"passphrase": "words of Ada Byron", "file": str(tmp_path / "one.backup")}
            done = browser.post("/upkeep/backup", ada, proof=False)
            assert done.status_code == 422
            assert "vault&#39;s passphrase too" in done.text
            both = ada | {"vault_passphrase": self.OLD}
            assert "Wrote" in browser.follow(browser.post("/upkeep/backup", both, proof=False))


class TestLedger:
    def test_is_filtered_verified_and_saved(self, browser: Browser) -> None:
        assert "no ledger yet" in browser.get("/ledger").text
        browser.regulator.approve(browser.regulator.plan_file(name="=1+1"))
        assert "set aside" in browser.get("/ledger?type=reserve").text
        assert "No record fits" in browser.get("/ledger?type=debit").text
        text = browser.follow(browser.post("/ledger/verify", proof=False))
        assert "Verified now" in text
        state = ledger_state(browser.regulator.config.ledger_path)
        done = browser.post("/ledger/verify", {"head": state.head.hex()}, proof=False)
        assert "head is in it" in browser.follow(done)
        assert browser.post("/ledger/verify", {"head": "12"}, proof=False).status_code == 422
        assert browser.post("/ledger/verify", {"head": "0" * 64}, proof=False).status_code == 422
        lines = browser.get("/ledger.csv").text.splitlines()
        assert lines[0] == "record,time,type,who,plan,words"
        assert len(lines) == 5  # head, opened, who made the home, approval, set aside

    def test_one_that_was_changed_is_not_shown(self, browser: Browser) -> None:
        browser.regulator.approve(browser.regulator.plan_file())
        path = browser.regulator.config.ledger_path
        path.write_text(path.read_text().replace('"people":40', '"people":41', 1) + "x\n")
        for page in ("/ledger", "/", "/companies"):
            done = browser.get(page)
            assert done.status_code == 409
            assert "Error 41" in done.text


def test_what_takes_long_is_not_made_again_at_once(browser: Browser) -> None:
    made: list[int] = []

    def make() -> int:
        made.append(len(made))
        time.sleep(0.05)
        return made[-1]

    console = browser.console
    assert [console.kept("slow", make) for _ in range(3)] == [0, 0, 0]
    browser.post("/ledger/verify", proof=False)  # an act: whatever was kept may be wrong now
    assert console.kept("slow", make) == 1
    time.sleep(1.2)
    assert console.kept("slow", make) == 2


def test_nothing_of_a_request_is_logged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Browser(Regulator.create(tmp_path)) as browser:
        token = browser.access.new_token()
        browser.get(f"/login?token={token}")
        browser.post("/upkeep/clock", {"passphrase": "not this one"})
        browser.get("/ledger?plan=abcdef")
    said = "".join(capfd.readouterr())
    assert token not in said
    assert "not this one" not in said
    assert "abcdef" not in said
    assert json.dumps(browser.passphrase) not in said
