"""An officer's day in a real browser, over a real federation: server, daemon, company, console."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from browser_kit import HostilePage, barriers, chromium, new_context, overflows
from console_town import PAGES, TEXTS, Town, town
from playwright.sync_api import expect

from isonomy.common.keys.party import PartyKeys
from isonomy.common.report.sign import Signatures, countersign
from isonomy.regulator.plans.plan_files import ledger_state
from isonomy.regulator.vault.unlock import secret_from_file
from isonomy.regulator.vault.vault import Vault


def test_an_officers_day(tmp_path: Path) -> None:
    chromium()
    with town(tmp_path) as one:
        # One federation, looked at from all sides: it is too dear to repeat for each.
        faults: list[str] = []
        one.page.on("console", lambda said: faults.append(said.text))
        one.page.on("pageerror", lambda error: faults.append(str(error)))
        a_plan_comes_in_and_is_approved(one)
        its_session_is_watched_while_the_daemon_dies_and_comes_back(one)
        a_report_is_written_verified_and_printed(one)
        a_countersignature_is_taken_in(one)
        reports_are_put_beside_each_other(one)
        a_second_plan_is_rejected(one)
        people_are_enrolled(one)
        every_page_can_be_used_by_everybody(one)
        a_hostile_page_on_this_machine_gets_nothing(one)
        a_second_address_is_handed_out_by_the_command(one)
        refused = [text for text in faults if "422" not in text]  # a form that was not right
        assert not refused
        assert one.clicks == {"approve": 4, "report": 4, "reject": 2, "enroll": 3}


def a_plan_comes_in_and_is_approved(one: Town) -> None:
    page = one.page
    one.open("/")
    one.says("No plan waits")
    one.upload_plan(one.layout.plan)
    one.press("Show the plan", "approve")
    one.says("Your policy allows this plan.")
    one.says("89 %")  # ε = 2, the whole budget
    one.says(one.plan.hash.hex())
    assert barriers(page) == []
    boxes = page.locator("input[type=checkbox]")
    for number in range(boxes.count()):
        boxes.nth(number).check()
        one.count("approve")
    page.fill("#approve-passphrase", "not this one")
    one.press("Approve")
    one.says("The passphrase is wrong. Nothing was changed.")
    assert not ledger_state(one.layout.ledger).plans()
    assert boxes.nth(0).is_checked()  # what was ticked stays ticked
    page.focus("#approve-passphrase")
    page.keyboard.type(one.passphrase)  # by keyboard alone: no pointer is needed
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    one.count("approve")
    one.says("Approved:")


def its_session_is_watched_while_the_daemon_dies_and_comes_back(one: Town) -> None:
    """The page is never loaded again: whatever it says comes by its events."""
    page = one.page
    one.follow(one.plan.name, "report")
    one.says("No session is open for this plan now.")
    stop = page.get_by_role("button", name="Stop this session")
    expect(stop).to_be_hidden()
    company = one.start_company()
    one.federation.open_session()
    one.says("1 answered", 60)
    one.says("question <0>")
    expect(stop).to_be_visible()
    one.says("± ")  # people
    expect(page.locator("li:has-text('company') .light")).to_have_text("here")
    one.go(0)
    one.says("2 answered", 30)
    os.killpg(one.daemon.process.pid, signal.SIGKILL)
    one.daemon.process.wait()
    one.processes._running.remove(one.daemon)
    one.says("The daemon is not running", 20)
    one.says("2 answered")
    one.daemon = one.start_daemon()
    one.go(1, 2, 3)
    one.says("5 answered", 90)
    one.says("audit 'loans'")
    one.processes.finish(company)
    one.federation.outcome()
    one.says("No session is open for this plan now.", 30)
    expect(stop).to_be_hidden()
    assert page.locator("#lost").is_hidden()


def a_report_is_written_verified_and_printed(one: Town) -> None:
    page = one.page
    one.follow("Write a report", "report")
    for name, text in TEXTS.items():
        page.fill(f"#{name}", text)
    page.fill("#write-passphrase", one.passphrase)
    one.press("Write and sign", "report")
    one.says("The report holds.", 30)
    one.says("the ledger gives the same numbers")
    one.follow("Open the page", "report")
    expect(page.locator("body")).to_contain_text(TEXTS["reason"])
    paper = page.pdf(format="A4")
    assert paper.startswith(b"%PDF")
    assert len(paper) > 20_000
    page.go_back()
    with page.expect_download() as saved:
        page.get_by_role("link", name="report.csv").click()
    assert "loans" in Path(saved.value.path()).read_text(encoding="utf-8-sig")


def a_countersignature_is_taken_in(one: Town) -> None:
    page, (folder,) = one.page, (one.layout.regulator / "reports").glob("*")
    keys, old = (
        PartyKeys.load(one.layout.company.keys_folder),
        Signatures.load(folder / "report.sig"),
    )
    signed = countersign((folder / "report.json").read_bytes(), old, keys)
    forged = signed.signatures[1].model_copy(update={"signature": "00" * 64})
    back = one.layout.root / "report.sig"
    for signatures, words in (
        (old, "adds no company's signature"),
        (old.model_copy(update={"signatures": (*old.signatures, forged)}), "Not done"),
        (signed, "Countersigned by company."),
    ):
        signatures.save(back)
        if not page.locator("#sig").is_visible():
            page.get_by_text("Take in a company's countersignature").click()
        page.set_input_files("#sig", back)
        page.fill("#countersign-passphrase", one.passphrase)
        one.press("Take it in")
        one.says(words)
    one.says("countersignatures are those of the plan's companies: company")


def reports_are_put_beside_each_other(one: Town) -> None:
    page = one.page
    one.open(f"/reports/new?plan={one.plan.hash.hex()}")
    for name, text in TEXTS.items():
        page.fill(f"#{name}", text)
    page.fill("#write-passphrase", one.passphrase)
    one.press("Write and sign")
    one.says("The report holds.", 30)
    one.open("/reports")
    page.locator("form[action='/reports/history'] button").click()
    expect(page.locator("body")).to_contain_text("loans")
    page.go_back()
    page.locator("form[action='/reports/diff'] button").click()
    expect(page.locator("body")).to_contain_text("verdict on the target")


def a_second_plan_is_rejected(one: Town) -> None:
    page = one.page
    one.upload_plan(one.second_plan())
    one.press("Show the plan", "reject")
    one.says("more than there is")
    page.fill("#reason", "nothing is left for it")
    page.fill("#reject-passphrase", one.passphrase)
    one.press("Reject", "reject")
    one.says("Rejected: once more <b>")
    one.says("nothing is left for it")


def people_are_enrolled(one: Town) -> None:
    page, path = one.page, one.layout.root / "more.csv"
    attribute, (first, second) = one.population.attribute, one.population.labels
    path.write_text(f"id,{attribute}\nnew-1,{first}\nnew-2,other spelling\n")
    one.open("/people")
    page.set_input_files("#file", path)
    one.press("Look at it", "enroll")
    assert barriers(page) == []
    page.get_by_label("other spelling").select_option(second)
    page.select_option("#mode", "update")
    page.fill("#check-passphrase", one.passphrase)
    one.press("What would change?", "enroll")
    one.says("2 people would be added")
    page.fill("#check-passphrase", one.passphrase)
    one.press("Enroll", "enroll")
    one.says("Enrolled: 2 added")
    vault = Vault(one.layout.regulator / "vault.bin", secret_from_file(one.layout.regulator_unlock))
    assert len(vault.read()) == 1002
    assert not list((one.layout.regulator / "console" / "uploads").glob("*"))


def every_page_can_be_used_by_everybody(one: Town) -> None:
    """By keyboard and screen reader, on a telephone, on a dark screen."""
    page = one.page
    report = next((one.layout.regulator / "reports").glob("*")).name
    pages = (*PAGES, f"/live/{one.plan.hash.hex()}", f"/reports/{report}", "/reports/new")
    for path in pages:
        one.open(path)
        assert barriers(page) == [], path
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 400, "height": 800})
    for path in pages:
        one.open(path)
        assert barriers(page) == [], path
        assert not overflows(page), path


def a_hostile_page_on_this_machine_gets_nothing(one: Town) -> None:
    """Another service on 127.0.0.1, open in the officer's browser: it asks, posts, and frames."""
    with HostilePage(one.base) as hostile:
        page = one.page.context.new_page()
        for address in hostile.addresses:
            page.goto(address)
            expect(page.locator("#end")).to_have_text("tried", timeout=20_000)
            assert "Today" not in page.inner_text("body")
            assert one.base not in page.url
            frames = [frame.content() for frame in page.frames[1:]]
            assert not [text for text in frames if "Regulator's console" in text]
            page.locator("#post").click()  # a form for the console, sent by the officer's hand
            expect(page.locator("body")).to_contain_text("comes from another page")
        page.close()
    assert hostile.cookies
    assert not [cookie for cookie in hostile.cookies if "isonomy" in cookie]
    one.open("/")
    one.says("Today")  # the session goes on


def a_second_address_is_handed_out_by_the_command(one: Town) -> None:
    home = str(one.layout.regulator)
    command = ["isonomy-regulator", "console", "--home", home, "--address"]
    again = one.processes.run("address", command)
    address = again.log.read_text().strip()
    assert address.startswith(one.base)
    other = one.page.context.browser
    assert other is not None
    page = new_context(other).new_page()
    page.goto(address)
    page.wait_for_selector("nav")
    page.goto(address)  # who is in already is led on
    page.wait_for_selector("nav")
    third = new_context(other).new_page()
    assert third.goto(address) is not None
    expect(third.locator("h1")).to_have_text("This console is closed to you")


def test_without_a_browser_the_tests_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(pytest.skip.Exception, match="no Chromium"):
        chromium()
