"""The officer's decisions on plans: what is kept, what is refused, and what a "no" changes."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import click
import pytest
from regulator_kit import COMPANY, GAPS, Regulator

from isonomy.common.agreements.approvals import company_signatures, sign_agreement
from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import PolicyRefused
from isonomy.common.ledger.entries import read_entries
from isonomy.common.privacy.queries import Query
from isonomy.common.session.tickets import Ticket
from isonomy.company.federation.planning import write_plan
from isonomy.regulator.serving._few_shot import FewShotDesks
from isonomy.regulator.serving._sessions import Sessions
from isonomy.regulator.serving.daemon import Daemon


@pytest.fixture
def regulator(tmp_path: Path) -> Regulator:
    return Regulator.create(tmp_path)


def test_a_rejection_is_kept_and_listed_after_an_approval(
    regulator: Regulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISONOMY_OFFICER", "J. Doe")
    plan = regulator.plan_file()
    done = regulator.run("reject", plan, "--reason", "too much", "--yes", "--json")
    record = Path(done.json["record"])
    assert json.loads(record.read_bytes())["officer"] == "J. Doe"
    regulator.approve(plan)
    assert record.exists()
    shown = regulator.run("status")
    assert "rejected" in shown.stdout
    assert "by J. Doe: too much" in shown.stdout
    assert regulator.run("reject", plan, "--yes").code == 0  # withdrawn: in the ledger too
    kinds = [
        e.event["kind"] for e in read_entries(regulator.config.ledger_path) if e.kind == "note"
    ]
    assert kinds == ["home", "rejection", "approval", "rejection"]
    assert "J. Doe" in regulator.run("ledger").stdout


def test_a_second_rejection_and_a_closed_plan_change_nothing(regulator: Regulator) -> None:
    plan = regulator.plan_file()
    regulator.approve(plan)
    assert "withdraws the approval, for good" in regulator.run("reject", plan, "--yes").stderr
    before = regulator.config.ledger_path.read_bytes()
    again = regulator.run("reject", plan, "--yes", "--json")
    assert (again.code, again.json["changed"]) == (0, False)
    closed = regulator.run("approve", plan, "--yes")
    assert closed.code == 51
    assert "it was closed, for good" in closed.stderr
    assert "Compare these fingerprints" not in closed.stderr  # a refusal comes first, and alone
    assert regulator.config.ledger_path.read_bytes() == before


def test_approving_twice_changes_nothing_and_says_so(regulator: Regulator) -> None:
    plan = regulator.plan_file()
    assert regulator.run("approve", plan, "--yes", "--json").json["changed"] is True
    before = regulator.config.ledger_path.read_bytes()
    again = regulator.run("approve", plan, "--json")  # asks nothing: there is nothing to decide
    assert (again.code, again.json["changed"]) == (0, False)
    assert regulator.config.ledger_path.read_bytes() == before


def test_a_plan_whose_every_question_would_be_refused(regulator: Regulator) -> None:
    done = regulator.run("approve", regulator.plan_file(list(regulator.people(9))), "--yes")
    assert done.code == 51
    assert "9 people; at least 10 are required" in done.stderr
    audits = regulator.plan(name="audits", strategy="audit")[0]
    hopeless = {
        "takes none": {"record_privacy": True},
        "it was valid until 2020-01-01": {"about": {"valid_until": "2020-01-01"}},
        "inspections ended on 2020-01-01": {
            **{"auditor": "ab" * 32, "auditor_signing": "cd" * 32, "auditor_name": "watch"},
            **{"inspection_millionths": 1000, "inspection_deadline": "2020-01-01"},
        },
    }
    for words, terms in hopeless.items():
        plan = Plan.of({**audits.model_dump(mode="json"), **terms})
        write_plan(plan, regulator.plan()[1], regulator.folder / "audits.json")
        done = regulator.run("approve", regulator.folder / "audits.json", "--yes")
        assert (done.code, words in done.stderr) == (51, True), done.stderr
    regulator.change('kinds = ["blind", "open"]', 'kinds = ["blind"]')
    done = regulator.run("approve", regulator.plan_file(strategy="audit"), "--yes")
    assert (done.code, "policy.kinds allows none" in done.stderr) == (51, True)
    assert not regulator.config.ledger_path.exists()


def test_a_plan_gets_no_answers_after_its_last_day(
    regulator: Regulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, cohort = regulator.plan()
    plan = Plan.of({**plan.model_dump(mode="json"), "about": {"valid_until": "2099-12-31"}})
    file = regulator.folder / "plan.json"
    write_plan(plan, cohort, file)
    sign_agreement(plan, file, COMPANY)
    regulator.approve(file)
    ticket = Ticket("localhost:1", "relay", b"", plan.hash, "regulator", "regulator", 2**31)
    query = Query("q", plan.hash, "", "open", "sum", ("sex",), 1, "gaussian", 1, 1.0)
    with Daemon(regulator.config, regulator.vault, least="error") as daemon:
        daemon.plans.half(plan.hash)
        limits, office = daemon.plans._limits(plan), daemon._office
        limits(query, 1)
        sessions = Sessions(office, daemon.plans, FewShotDesks(office))
        monkeypatch.setattr(Plan, "has_ended", lambda *_: True)  # a day later, in the same session
        for act in (
            lambda: limits(query, 1),
            lambda: daemon.plans.release_unknowns(plan.hash, 1, "Ada"),
            lambda: sessions.open(ticket),
        ):
            with pytest.raises(PolicyRefused, match="was valid until 2099-12-31"):
                act()
    assert "gets no more answers: it was valid until" in regulator.run("doctor").stdout


def test_no_and_ctrl_c_change_nothing_and_say_so(
    regulator: Regulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = regulator.plan_file()

    def interrupt(*_: object, **__: object) -> bool:
        raise click.Abort

    for answer, code in ((lambda *_, **__: False, 74), (interrupt, 130)):
        monkeypatch.setattr("typer.confirm", answer)
        done = regulator.run("approve", plan)
        assert done.code == code
        assert "nothing was changed" in done.stderr
    # Left at the question for the passphrase, after the approval was agreed to: the same.
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.prompt", interrupt)
    regulator.change("unlock_file", "# unlock_file")
    assert regulator.run("approve", plan, "--yes").code == 130
    assert not list(regulator.config.plans_folder.glob("*.json"))
    assert not regulator.config.ledger_path.exists()


def test_who_is_in_two_plans_counts_once(regulator: Regulator) -> None:
    people = list(regulator.people(40))
    for name, ids in (("a", people[:20]), ("b", people[20:]), ("c", people[10:30])):
        regulator.approve(regulator.plan_file(ids, name=name, epsilon="0.2"))
    assert regulator.run("status", "--json").json["aligned"] == 40


def test_wrong_files_are_named_for_what_they_are(regulator: Regulator) -> None:
    plan, card = regulator.plan_file(), regulator.config.keys_folder / "card.json"
    done = regulator.run("approve", card)
    assert "this is a party's card, not a plan" in done.stderr
    done = regulator.run("approve", plan.with_suffix(".people"))
    assert (done.code, "this is not a plan: it is not JSON" in done.stderr) == (10, True)
    done = regulator.run("ledger", plan)
    assert (done.code, "is a plan, not a ledger" in done.stderr) == (10, True)
    done = regulator.run("ledger", plan.with_suffix(".people"))
    assert (done.code, "not a ledger, or its beginning was changed" in done.stderr) == (41, True)
    regulator.approve(plan)
    done = regulator.run("ledger", "--head", "1234")
    assert (done.code, "64 hexadecimal digits" in done.stderr) == (10, True)


def test_the_approval_screen_says_what_the_plan_means(regulator: Regulator) -> None:
    first, second = regulator.plan_file(name="a"), regulator.plan_file(name="b", epsilon="1")
    regulator.approve(first)
    screen = regulator.run("approve", second, "--yes")
    assert "74 % instead of 50 %" in screen.stderr
    found = re.search(
        r"takes ([\d.]+) %; ([\d.]+) % are set.*?; ([\d.]+) % are left", screen.stderr
    )
    assert found is not None
    shares = [float(text) for text in found.groups()]
    assert sum(shares) == pytest.approx(100)
    assert f"ε = 1, which is {shares[0]:g} % of the whole budget (ε = 2)" in screen.stdout


def test_values_are_translated_and_workbooks_are_named(tmp_path: Path) -> None:
    regulator = Regulator.create(tmp_path, people=0, groups=GAPS)
    file = tmp_path / "people.csv"
    file.write_text("id,sex\na,F\nb,male\nc,\n")
    enroll = ("enroll", file, "--attribute", "sex", "--show-sizes", "--json")
    assert regulator.run(*enroll).code == 12
    for wrong in ("F=woman", "male=female", "F"):
        assert regulator.run(*enroll, "--map", wrong).code == 10
    sizes = regulator.run(*enroll, "--map", "F=female").json["sizes"]["sex"]
    assert (sizes["female"], sizes["male"]) == (1, 1)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
    done = regulator.run(*enroll, "--update")
    assert (done.code, "Excel workbook; save it as CSV UTF-8" in done.stderr) == (12, True)
    done = regulator.run("tasks", "add", "people", file)
    assert (done.code, "is an Excel workbook, not an .npz file" in done.stderr) == (12, True)
    done = regulator.run("approve", regulator.plan_file(), "--people", file)
    assert (done.code, "an Excel workbook is one), not a list of ids" in done.stderr) == (12, True)


def test_a_plan_that_was_changed_after_its_signature(regulator: Regulator) -> None:
    plan, file = regulator.plan()[0], regulator.plan_file()
    assert list(company_signatures(plan, file)) == ["acme"]
    signature = (file.with_suffix(".acme.sig")).read_bytes()
    regulator.plan_file(epsilon="0.6")  # the same file, with more ε
    file.with_suffix(".acme.sig").write_bytes(signature)
    done = regulator.run("approve", file, "--yes")
    assert (done.code, "changed after it was signed" in done.stderr) == (40, True)
    regulator.plan_file()
    done = regulator.run("approve", file, "--yes")
    assert "acme signed exactly this plan" in done.stderr
