"""Reports: built from the ledger alone, signed, verified, and never silent about a changed byte."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_kit import GROUPS, OFFICER, Audited, audited_run, sign_files

from isonomy.common.base.canonical import canonical_json
from isonomy.common.base.errors import ConfigError, VerificationError
from isonomy.common.keys.party import PartyKeys
from isonomy.common.ledger.records import DebitRecord
from isonomy.common.privacy.declarations import CELL_NAMES, Audit, Declaration
from isonomy.common.report._tables import audit_of
from isonomy.common.report.audit_unknowns import release_unknowns
from isonomy.common.report.build import build_report
from isonomy.common.report.from_ledger import plan_history
from isonomy.common.report.schema import ReportFile, ReportSettings
from isonomy.common.report.sign import Signatures, countersign, sign_report
from isonomy.common.report.verify import Check, ReportPaths, Verification, require
from isonomy.company.federation.auditing import AuditResult, audit
from isonomy.regulator.report._page import render


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    found = audited_run(tmp_path_factory.mktemp("run"))
    yield found
    found.ledger.close()


@pytest.fixture(scope="module")
def audits(run: Audited) -> dict[str, AuditResult]:
    run.oracle.blind_sum(
        np.ones((len(run.cohort), 3)), norm=2.0, share=0.2, attribute="sex", purpose="moments"
    )
    return {
        name: audit(run.oracle, decided, run.label, name=name, share=0.2)
        for name, decided in (("before", run.before), ("after", run.after))
    }


def built(run: Audited, **more: Any) -> ReportFile:
    history = plan_history(run.ledger_path, run.plan.hash)
    return build_report(
        run.plan,
        history,
        **{"created": 1_800_000_000, "software": "test", "officer": OFFICER, **more},
    )


def written(run: Audited, folder: Path, report: ReportFile | None = None) -> ReportPaths:
    return sign_files(report or built(run), run.regulator, folder)


def states(checks: list[Check]) -> dict[int, str]:
    return {own.number: own.state for own in checks}


# --- What a report says ------------------------------------------------------------------------


def test_the_regulator_rebuilds_from_its_ledger_what_the_company_was_told(
    run: Audited, audits: dict[str, AuditResult]
) -> None:
    report = built(run, settings=ReportSettings(smallest_group=50))
    assert [own.name for own in report.audits] == ["before", "after"]
    for shown in report.audits:
        told = audits[shown.name]
        for table, own in zip(shown.tables, told.tables, strict=True):
            assert table.attribute == own.attribute
            assert [g.label for g in table.groups] == [g.label for g in own.groups]
            found = own.findings()
            for name, rates in found.rates.items():
                for limits, estimate in zip(table.rates[name], rates, strict=True):
                    assert (limits is None) == (estimate is None)
                    if limits is not None and estimate is not None:
                        assert limits[0] / 1e6 == pytest.approx(estimate.value, abs=1e-5)
                        assert limits[2] / 1e6 == pytest.approx(estimate.high, abs=1e-5)


def test_rates_are_near_the_truth(run: Audited, audits: dict[str, AuditResult]) -> None:
    table = built(run).audits[0].tables[0]
    for group in (0, 1):
        limits = table.rates["selection_rate"][group]
        assert limits is not None
        assert abs(limits[0] / 1e6 - run.before[run.sex == group].mean()) < 0.05
    gap = table.differences["demographic_parity"]
    assert gap is not None
    assert 0.05 < gap[0] / 1e6 < 0.3


def test_the_privacy_account_is_the_ledgers(run: Audited, audits: dict[str, AuditResult]) -> None:
    privacy = built(run).privacy
    assert privacy.spent_units == run.ledger.spent_units(run.plan.hash)
    assert privacy.answers == 3
    assert sum(own.units for own in privacy.questions) == privacy.spent_units
    assert privacy.spent_epsilon <= built(run).plan.epsilon_millionths == 2_000_000


def declared(name: str, totals: tuple[int, ...]) -> Declaration:
    return Declaration(Audit(name, "yd", tuple(1000 * total for total in totals), "1"))


def test_a_company_that_lies_about_its_totals_gets_no_tables(tmp_path: Path) -> None:
    run = audited_run(tmp_path, groups=1)
    rows = np.eye(4)[2 * run.label + run.before]
    for name, wrong in zip("xz", ((1, 1, 1, 1), (3997, 1, 1, 1)), strict=True):
        run.oracle.open_sum(rows, norm=1.0, share=0.3, declaration=declared(name, wrong))
    first, second = built(run).audits
    assert "add up" in first.problem
    assert "contradict" in second.problem
    assert first.tables == second.tables == ()
    run.ledger.close()


def test_what_only_calls_itself_an_audit_is_not_believed(tmp_path: Path) -> None:
    run = audited_run(tmp_path, groups=1)
    rows = np.eye(4)[2 * run.label + run.before]
    totals = tuple(int(n) for n in rows.sum(axis=0))
    run.oracle.blind_sum(rows, norm=1.0, share=0.2, declaration=declared("x", totals))
    run.oracle.open_sum(rows, norm=3.0, share=0.2, declaration=declared("y", totals))
    problems = [own.problem for own in built(run).audits]
    assert "kind" in problems[0]
    assert "norm" in problems[1]
    run.ledger.close()


def test_totals_of_several_companies_come_by_statement(tmp_path: Path) -> None:
    run = audited_run(tmp_path, groups=1)
    rows = np.eye(4)[2 * run.label + run.before]
    told = run.oracle.open_sum(rows, norm=1.0, share=0.3, declaration=declared("x", ()))
    assert told.receipt is not None
    assert "not handed over" in built(run).audits[0].problem
    totals = [int(n) * 1_000_000 for n in rows.sum(axis=0)]
    report = built(run, totals={told.receipt.query_id: totals})
    assert len(report.audits[0].tables) == 1
    paths = written(run, tmp_path, report)
    assert states(Verification(paths, plan=run.plan, ledger=run.ledger_path).run())[9] == "ok"
    run.ledger.close()


@given(
    cells=st.sampled_from(["yd", "d"]),
    totals=st.lists(st.integers(0, 10**12), min_size=4, max_size=4),
    attribute=st.sampled_from(["sex", "race", "sex*race", "sex,race", "age", "", "sex*sex"]),
    columns=st.integers(1, 5),
    answer=st.binary(min_size=1, max_size=200),
)
def test_whatever_a_company_asks_the_report_can_be_written(
    cells: str, totals: list[int], attribute: str, columns: int, answer: bytes
) -> None:
    event: dict[str, str | int] = {
        "declaration": Declaration(
            Audit("x", cells, tuple(totals[: len(CELL_NAMES[cells])]), "1")  # type: ignore[arg-type]
        ).to_text(),
        "kind": "open",
        "shape": "groups",
        "mechanism": "gaussian",
        "norm": "1.0",
        "columns": columns,
        "attributes": attribute,
        "people": sum(totals) % 10**9,
        "noise": 1 << 20,
    }
    terms = (bytes(32), "q", bytes(32), bytes(32), 1, "attribute", event, answer)
    debit = DebitRecord(*terms, seq=1, time=1, hash=bytes(32))
    found = audit_of(debit, GROUPS, ReportSettings(), {})
    assert found is None or bool(found.problem) != bool(found.tables)


def test_people_without_a_value_are_a_row_that_nothing_is_compared_with(tmp_path: Path) -> None:
    """A third of the people stated nothing and are all selected: no gap, and no verdict, moves."""
    run = audited_run(tmp_path, people=6000, epsilon="20", groups=1, silent=1 / 3)
    assert run.oracle.labels("sex") == ("female", "male", "not stated")
    result = audit(
        run.oracle, np.where(run.sex == 2, 1, run.after), run.label, name="after", share=0.5
    )
    assert "not stated (about 2," in str(result)
    assert "left out of comparisons" in str(result)
    report = built(run)
    (table,) = report.audits[0].tables
    silent = [group.label for group in table.groups].index("not stated")
    selected = table.rates["selection_rate"][silent]
    assert selected is not None
    assert selected[0] > 980_000
    assert table.impact_ratios[silent] is None
    gap = table.differences["demographic_parity"]
    assert gap is not None
    assert gap[0] < 100_000
    run.ledger.close()


def test_unknowns_are_released_once_with_noise_and_paid_for(tmp_path: Path) -> None:
    run = audited_run(tmp_path, groups=1)
    before = run.ledger.spent_units(run.plan.hash)
    record = release_unknowns(run.ledger, run.plan, run.custodian.root, "sex", 400, 0.05)
    again = release_unknowns(run.ledger, run.plan, run.custodian.root, "sex", 999, 0.05)
    assert again == record  # no fresh noise for an old question
    cost = run.ledger.spent_units(run.plan.hash) - before
    assert 0.045 * run.plan.cap_units < cost <= 0.05 * run.plan.cap_units
    (shown,) = built(run).unknowns
    assert shown.attribute == "sex"
    value, low, high = shown.share
    assert low <= value <= high
    assert abs(value / 1e6 - 0.1) < 0.03
    run.ledger.close()


@pytest.mark.parametrize("forge", ["query_id", "request_hash", "kind"])
def test_nobody_but_the_regulator_says_how_many_are_unknown(tmp_path: Path, forge: str) -> None:
    """Purpose and answer of a blind query are the company's to choose."""
    run = audited_run(tmp_path, groups=1)
    scratch = audited_run(tmp_path / "other", groups=1)
    real = release_unknowns(scratch.ledger, run.plan, scratch_root(scratch, run), "sex", 9, 0.01)
    fields: dict[str, Any] = {
        "plan": run.plan.hash,
        "query_id": real.query_id,
        "request_hash": real.request_hash,
        "root": run.custodian.root,
        "units": 1,
        "event": dict(real.event),
        "answer": (1600 << 20).to_bytes(8, "little", signed=True),
    }
    if forge == "kind":
        fields["event"]["kind"] = "blind"
    else:
        other = {"query_id": f"{real.query_id[:17]}000000", "request_hash": b"\1" * 32}
        fields[forge] = other[forge]
    run.ledger.debit(**fields)
    assert built(run).unknowns == ()
    if forge == "query_id":  # the regulator's own id is free
        release_unknowns(run.ledger, run.plan, run.custodian.root, "sex", 0, 0.01)
        assert len(built(run).unknowns) == 1
    else:
        with pytest.raises(VerificationError, match="something else"):
            release_unknowns(run.ledger, run.plan, run.custodian.root, "sex", 0, 0.01)
    run.ledger.close()
    scratch.ledger.close()


def scratch_root(scratch: Audited, run: Audited) -> bytes:
    """Another ledger, in which `run`'s plan has a budget too."""
    root = scratch.ledger.add_people([bytes(15) + bytes([number]) for number in range(3)])
    scratch.ledger.reserve(run.plan.hash, root, run.plan.cap_units)
    return root


def test_what_was_asked_is_told_from_the_ledger(tmp_path: Path) -> None:
    run = audited_run(tmp_path, groups=1)
    with run.oracle.declared("pf_ld", "equalized_odds"):  # whatever the plan hoped
        run.oracle.counts(share=0.01, purpose="counts")
    lines = {(line.strategy, line.notion) for line in built(run).privacy.questions}
    assert lines == {("pf_ld", "equalized_odds")}
    assert b"pf_ld: equalized odds" in render(built(run))
    run.ledger.close()


def test_inspections_are_counted_by_how_far_they_came(tmp_path: Path) -> None:
    run = audited_run(tmp_path, groups=1)
    prefix = f"{run.plan.hash.hex()[:16]}-"
    ways = (("demanded",), ("demanded", "opened", "passed"), ("demanded", "opened", "failed"))
    for number, steps in enumerate(ways):
        for step in steps:
            query, request = f"{prefix}{number:06d}", bytes([number]) * 32
            run.ledger.note_inspection(run.plan.hash, query, request, step)
    shown = built(run).inspections
    assert (shown.demanded, shown.opened, shown.passed, shown.failed) == (3, 2, 1, 1)
    page = render(built(run))
    assert b"did not follow the protocol" in page
    assert b"1 had not been opened" in page
    late = built(run, created=4_200_000_000)
    assert (late.inspections.failed, late.inspections.overdue, late.inspections.opened) == (2, 1, 2)
    assert b"1 of the failed ones were never opened" in render(late)
    run.ledger.close()


def test_a_query_that_failed_later_is_in_the_report(tmp_path: Path) -> None:
    run = audited_run(tmp_path, groups=1)
    told = run.oracle.open_sum(np.ones((4000, 1)), norm=1.0, share=0.1)
    assert told.receipt is not None
    record = run.ledger.find(told.receipt.query_id)
    assert record is not None
    run.ledger.note_inspection(run.plan.hash, record.query_id, record.request_hash, "failed")
    shown = built(run).inspections
    assert (shown.demanded, shown.passed, shown.failed) == (1, 0, 1)
    assert b"did not follow the protocol" in render(built(run))
    run.ledger.close()


# --- Verification ------------------------------------------------------------------------------


def test_a_report_that_holds(run: Audited, audits: dict[str, AuditResult], tmp_path: Path) -> None:
    paths = written(run, tmp_path)
    assert states(Verification(paths).run()) == {
        1: "ok", 2: "ok", 3: "not given", 4: "ok", 5: "ok", 6: "ok",
        7: "not given", 8: "not given", 9: "not given",
    }  # fmt: skip
    full = Verification(
        paths, card=run.regulator.card(), plan=run.plan, ledger=run.ledger_path
    ).run()
    assert {own.state for own in full if own.number != 3} == {"ok"}


def test_any_changed_byte_is_found(
    run: Audited, audits: dict[str, AuditResult], tmp_path: Path
) -> None:
    paths = written(run, tmp_path)
    rng = np.random.default_rng(0)
    for path, number in ((paths.report, 60), (paths.signatures, 60), (paths.html, 25)):
        whole = path.read_bytes()
        places = rng.choice(len(whole), size=number, replace=False)
        for place in [0, len(whole) - 1, *places.tolist()]:
            changed = bytearray(whole)
            changed[place] ^= 1 << int(rng.integers(0, 8))
            path.write_bytes(bytes(changed))
            with pytest.raises(VerificationError):
                require(Verification(paths).run())
        for cut in (whole[:-1], whole + b"\n", b""):
            path.write_bytes(cut)
            with pytest.raises(VerificationError):
                require(Verification(paths).run())
        path.write_bytes(whole)
    require(Verification(paths).run())


def resigned(run: Audited, folder: Path, change: Any) -> list[Check]:
    """A report changed by the regulator's own hand, signed again: what else catches it?"""
    paths = written(run, folder)
    raw = json.loads(paths.report.read_bytes())
    change(raw)
    data = canonical_json(raw)
    paths.report.write_bytes(data)
    sign_report(data, run.regulator).save(paths.signatures)
    return Verification(paths, plan=run.plan, ledger=run.ledger_path).run()


def test_numbers_must_follow_from_counts(
    run: Audited, audits: dict[str, AuditResult], tmp_path: Path
) -> None:
    def better(raw: Any) -> None:
        raw["audits"][0]["tables"][0]["differences"]["demographic_parity"] = [1, 0, 2]

    found = states(resigned(run, tmp_path, better))
    assert found[2] == "ok"
    assert found[5] == "failed"


@pytest.mark.parametrize("change", [list.pop, list.clear, lambda counts: counts.append(1)])
def test_every_group_has_a_count_per_cell(
    run: Audited, audits: dict[str, AuditResult], tmp_path: Path, change: Any
) -> None:
    """A foreign report is refused by a check, not by a traceback."""
    ragged = resigned(
        run, tmp_path, lambda raw: change(raw["audits"][0]["tables"][0]["groups"][0]["counts"])
    )
    assert states(ragged) == {1: "failed"}


def test_counts_must_be_those_of_the_ledger(
    run: Audited, audits: dict[str, AuditResult], tmp_path: Path
) -> None:
    def other_settings(raw: Any) -> None:
        raw["settings"]["smallest_group"] = 3000

    def other_spending(raw: Any) -> None:
        raw["inspections"]["passed"] = 7

    def fewer_audits(raw: Any) -> None:
        del raw["audits"][0]

    for change in (other_settings, other_spending, fewer_audits):
        assert states(resigned(run, tmp_path, change))[9] == "failed"


def test_the_account_must_add_up(
    run: Audited, audits: dict[str, AuditResult], tmp_path: Path
) -> None:
    changes = (
        ("privacy", "spent_epsilon", 10),
        ("privacy", "answers", 1),
        ("plan", "epsilon_millionths", 10),
    )
    for part, name, value in changes:

        def change(raw: Any, part: str = part, name: str = name, value: int = value) -> None:
            raw[part][name] = value

        assert states(resigned(run, tmp_path, change))[6] == "failed"


def test_another_key_another_plan_another_ledger(
    run: Audited, audits: dict[str, AuditResult], tmp_path: Path
) -> None:
    paths = written(run, tmp_path)
    (tmp_path / "other").mkdir()
    other = audited_run(tmp_path / "other", groups=1)
    stranger = PartyKeys.generate("regulator", "regulator")
    assert states(Verification(paths, card=stranger.card()).run())[7] == "failed"
    assert states(Verification(paths, plan=other.plan).run())[8] == "failed"
    found = Verification(paths, plan=run.plan, ledger=other.ledger_path).run()
    assert states(found)[9] == "failed"
    data = paths.report.read_bytes()
    sign_report(data, stranger).save(paths.signatures)
    assert states(Verification(paths).run())[2] == "failed"
    other.ledger.close()


@pytest.mark.parametrize("delta", ["abc", "", "nan", "0", "2", "1e-6x", "inf"])
def test_a_delta_that_is_no_probability_makes_no_report(
    run: Audited, audits: dict[str, AuditResult], tmp_path: Path, delta: str
) -> None:
    paths = written(run, tmp_path)
    raw = json.loads(paths.report.read_bytes())
    raw["plan"]["delta"] = delta
    data = canonical_json(raw)
    paths.report.write_bytes(data)
    sign_report(data, run.regulator).save(paths.signatures)
    (found,) = Verification(paths).run()
    assert (found.number, found.state) == (1, "failed")
    assert "plan.delta" in found.detail


def test_a_ledger_that_grew_still_verifies_an_old_report(tmp_path: Path) -> None:
    run = audited_run(tmp_path, groups=1)
    audit(run.oracle, run.before, run.label, name="before", share=0.3)
    paths = written(run, tmp_path)
    audit(run.oracle, run.after, run.label, name="after", share=0.3)
    found = Verification(paths, plan=run.plan, ledger=run.ledger_path).run()
    assert states(found)[9] == "ok"
    assert len(built(run).audits) == 2
    run.ledger.close()


def test_a_company_countersigns_once_and_only_a_party_may(
    run: Audited, audits: dict[str, AuditResult], tmp_path: Path
) -> None:
    paths = written(run, tmp_path)
    data = paths.report.read_bytes()
    signed = Signatures.from_json(paths.signatures.read_bytes())
    both = countersign(data, signed, run.company)
    both.save(paths.signatures)
    assert states(Verification(paths).run())[3] == "ok"
    with pytest.raises(ConfigError):
        countersign(data, both, run.company)
    stranger = PartyKeys.generate("stranger", "company")
    countersign(data, signed, stranger).save(paths.signatures)
    assert states(Verification(paths).run())[3] == "failed"
    # A signature made as the regulator's cannot pass for a company's.
    swapped = signed.model_copy(update={"signatures": both.signatures[::-1]})
    swapped.save(paths.signatures)
    assert states(Verification(paths).run())[2] == "failed"


def test_verify_needs_no_encryption_no_network_and_no_roles(
    run: Audited, audits: dict[str, AuditResult], tmp_path: Path
) -> None:
    paths, card = written(run, tmp_path), tmp_path / "card.json"
    run.plan.regulator.save(card)
    code = (
        "import sys, socket\n"
        "for name in 'tenseal torch sklearn grpc flwr jinja2 pandas'.split():\n"
        "    sys.modules[name] = None\n"
        "def refuse(*a, **k): raise OSError('no network')\n"
        "socket.socket.connect = refuse\n"
        "socket.getaddrinfo = refuse\n"
        "from isonomy.common.report.command import app\n"
        "sys.argv = ['isonomy-verify', sys.argv[1], *sys.argv[2:]]\n"
        "app()\n"
    )
    good = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), "--json", "--card", str(card)],
        capture_output=True,
        text=True,
    )
    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout)["verified"] is True
    paths.report.write_bytes(paths.report.read_bytes().replace(b"before", b"befare", 1))
    bad = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
    )
    assert bad.returncode == 40
    assert "(2) FAILED" in bad.stderr
    for number in (4, 7):  # nobody signed what they compare with
        (line,) = [one for one in bad.stderr.splitlines() if one.startswith(f"({number})")]
        assert "not checked, because (2) failed" in line
