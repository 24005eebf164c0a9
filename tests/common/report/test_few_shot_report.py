"""The report of a few-shot run: from the ledger's rounds, through the same signing and checks."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from regulator_kit import run_regulator
from report_kit import OFFICER, audited_run, sign_files, write_report
from round_kit import ROUNDS, SAMPLES, SIZE, Federation, Regulator, few_shot_settings
from round_kit import make_federation as make_few_shot

from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.base.errors import ConfigError, VerificationError
from isonomy.common.few_shot.rounds.desk import RoundDesk
from isonomy.common.keys.party import PartyKeys
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.privacy.accounting import epsilon_of
from isonomy.common.report.build import rounded_epsilon
from isonomy.common.report.few_shot import (
    AnyReport,
    FewShotReport,
    build_few_shot_report,
    read_report,
)
from isonomy.common.report.from_ledger import plan_history
from isonomy.common.report.schema import ReportFile, Statement
from isonomy.common.report.verify import ReportPaths, Verification, require
from isonomy.regulator.report._page import render
from isonomy.regulator.report._words import right_guess
from isonomy.regulator.report.collection import VerifiedReport
from isonomy.regulator.report.diff import compare, render_diff
from isonomy.regulator.report.history import history_of, render_history
from isonomy.regulator.report.spreadsheet import csv_tables

HOSTILE = "<script>alert(1)</script>"
THETA = np.zeros(SIZE, np.float32)


@dataclass
class Run:
    """A few-shot plan of which some rounds are in the ledger."""

    federation: Federation
    folder: Path
    rounds: int = 0

    @property
    def plan(self) -> FewShotPlan:
        assert isinstance(self.federation.plan, FewShotPlan)
        return self.federation.plan

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.jsonl"

    def report(self, **fields: Any) -> FewShotReport:
        history = plan_history(self.ledger, self.plan.hash)
        given = {"created": 1_800_000_000, "software": "test", "officer": OFFICER, **fields}
        return build_few_shot_report(self.plan, history, **given)

    def files(self, name: str, report: FewShotReport | None = None) -> ReportPaths:
        keys = self.federation.keys("regulator")
        return sign_files(report or self.report(), keys, self.folder / name)


def answered(folder: Path, rounds: int, **changes: Any) -> Run:
    run = Run(make_few_shot(folder, **changes), folder, rounds)
    cap, samples = run.plan.held_units, run.plan.samples
    members = [hashlib.sha256(b"sample%d" % n).digest()[:16] for n in range(samples)]
    with Ledger.create(run.ledger, cap_units=cap, delta=run.plan.delta_value) as ledger:
        desk = RoundDesk(
            run.plan,
            lambda: Regulator(samples=samples),
            ledger,
            folder / "desk",
            members=members,
            member_key_tag=b"t" * 32,
        )
        for number in range(rounds):
            desk.contribute(number, THETA)
        if run.plan.settings.measured_tasks:
            desk.measure(rounds, THETA)
    return run


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that was measured; the kit's counts are those of 20 tasks, 5 ways, 5 queries."""
    settings = few_shot_settings(
        inner_noise=20_000_000, query_noise=20_000_000, measured_tasks=20, epsilon=30_000_000
    )
    folder = tmp_path_factory.mktemp("few-shot-measured")
    return answered(folder, 3, settings=settings, samples=1_200)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    quiet = few_shot_settings(inner_noise=20_000_000, query_noise=20_000_000)  # far from the cap
    folder, about = tmp_path_factory.mktemp("few-shot-report"), {"purpose": "Digits for all"}
    return answered(folder, 3, settings=quiet, about=about)


def test_it_states_what_the_ledger_says_and_what_a_sample_can_have_lost(run: Run) -> None:
    training, plan = run.report().training, run.plan
    assert training.rounds == 3
    assert training.lost_units == 3 * plan.round_units < plan.cap_units
    assert training.lost_epsilon >= epsilon_of(training.lost_units, plan.delta_value) * 1e6 - 1e-3
    assert training.replaced_epsilon > training.lost_epsilon  # an attribute costs more
    assert training.reserved_units == plan.held_units
    page = render(run.report()).decode()
    for text in (
        "3 of 4 rounds", f"{SAMPLES} samples", "not measured", "this report makes no statement",
        "How accurate the model is", "no fairness constraint", training.transcript,
        plan.hash.hex(), plan.fingerprint, "the noise, not the encryption", "Digits for all",
        'Legal basis</td><td class="small">not given',
    ):  # fmt: skip
        assert text in page, text


def test_no_more_than_the_cap_is_lost_whatever_the_rounds_cost(tmp_path: Path) -> None:
    dear = few_shot_settings(inner_noise=300_000, query_noise=300_000, epsilon=1_000_000)
    one = answered(tmp_path, 1, settings=dear)
    assert one.plan.round_units > one.plan.cap_units
    training = one.report().training
    assert training.lost_units == one.plan.cap_units
    assert training.lost_epsilon <= 1_000_000 + 2


def test_no_round_no_loss(tmp_path: Path) -> None:
    none = answered(tmp_path, 0)
    assert none.report().training.lost_epsilon == 0
    assert "0 of 4 rounds" in render(none.report()).decode()
    require(Verification(none.files("report"), ledger=none.ledger).run())


def test_a_constraint_is_an_aim_and_no_finding(run: Run) -> None:
    noises = {"dual_noise": 2_000_000, "share_noise": 2_000_000, "method": "pf_ld"}
    plan = run.plan.model_copy(update={"settings": few_shot_settings(**noises)})
    page = render(run.report().model_copy(update={"plan": plan})).decode()
    assert "no finding about its result" in page
    assert "2 (dual), 2 (share)" in page
    assert "not measured" in page


def test_a_measured_run_states_rates_by_group_with_intervals(measured: Run) -> None:
    report, plan = measured.report(), measured.plan
    found = report.measured
    assert found is not None
    assert (found.tasks, found.rounds, found.noise) == (20, 3, plan.measure_noise)
    for limits in found.table.rates["accuracy"]:
        assert limits is not None
        assert limits[1] < limits[0] < limits[2]
    assert report.training.lost_units == max(3 * plan.round_units, plan.measure_units)
    page = render(report).decode().replace("\N{NO-BREAK SPACE}", " ")
    guess = right_guess(epsilon_of(plan.measure_units, plan.delta_value))  # more than all rounds
    for text in ("and the measurement, a guess", f"at most {guess} instead of 50 %",
                 "Measured after 3 rounds on 20 tasks", "Accuracy, with 95 % intervals: group 0",
                 "which is in no round", found.theta, "and measured its model once",
                 "How the model does on other tasks"):  # fmt: skip
        assert text in page, text
    for text in ("not measured", "How accurate the model is, in all"):
        assert text not in page, text


def test_a_measured_report_is_recomputed_by_whoever_verifies_it(
    measured: Run, tmp_path: Path
) -> None:
    checks = Verification(measured.files("whole"), ledger=measured.ledger).run()
    assert {c.number: c.state for c in checks if c.number in (5, 6, 9)} == {
        5: "ok",
        6: "ok",
        9: "ok",
    }
    report, keys = measured.report(), measured.federation.keys("regulator")
    assert report.measured is not None
    values = (report.measured.values[0] + 2**24, *report.measured.values[1:])
    better = report.measured.table.model_copy(
        update={"differences": dict.fromkeys(report.measured.table.differences, (0, 0, 10_000))}
    )
    changes: tuple[tuple[dict[str, Any], int], ...] = (
        ({"values": values}, 5), ({"table": better}, 5), ({"tasks": 40}, 6), ({"noise": 9}, 6),
        ({"rounds": 2}, 6), ({"theta": "0" * 64}, 9), ({"time": 1}, 9),
    )  # fmt: skip
    for change, number in changes:
        lie = report.model_copy(update={"measured": report.measured.model_copy(update=change)})
        paths = sign_files(lie, keys, tmp_path / str(change)[:12].strip("{'"))
        failed = [
            check.number
            for check in Verification(paths, ledger=measured.ledger).run()
            if check.state == "failed"
        ]
        assert number in failed, change
    without = sign_files(report.model_copy(update={"measured": None}), keys, tmp_path / "without")
    with pytest.raises(VerificationError, match="measured"):
        require(Verification(without, ledger=measured.ledger).run())


def test_a_run_before_its_measurement_says_that_it_waits(measured: Run) -> None:
    page = render(measured.report().model_copy(update={"measured": None})).decode()
    assert "not measured yet" in page


def test_two_are_compared_and_all_are_listed_beside_reports_of_audits(
    measured: Run, run: Run, tmp_path: Path
) -> None:
    def kept(report: AnyReport, name: str) -> VerifiedReport:
        return VerifiedReport(Path(name), report)

    first = kept(measured.report(), "first")
    second = kept(measured.report(created=1_800_000_900), "second")
    third = kept(run.report(created=1_800_009_000), "third")
    told = compare(first, second)
    (table,) = told["tables"]
    assert table["title"] == "Measured tasks"
    assert {line["change"] for line in table["rates"]} == {"the same measurement"}
    assert "Both reports show the same measurement" in told["cautions"][0]
    assert {"what": "rounds", "values": ["3 of 4", "3 of 4"]} in told["terms"]
    assert "Measured tasks, by few-shot group" in render_diff(told).decode()
    other = compare(first, third)
    assert not other["tables"]
    assert "Not both runs were measured: no rate can be compared." in other["cautions"]
    audited = audited_run(tmp_path / "audited", people=100, groups=1)
    audited.ledger.close()
    paths = write_report(audited, tmp_path / "audited" / "report", created=1_799_000_000)
    audits = kept(read_report(paths.report.read_bytes()), "audits")
    with pytest.raises(ConfigError, match="no rates in common"):
        compare(first, audits)
    lines = history_of([first, third, audits])
    assert [line["kind"] for line in lines["reports"]] == ["audits", "few-shot", "few-shot"]
    units = [measured.plan.measure_units, 4 * 3 * measured.plan.round_units]
    both = max(units) + 4 * 3 * run.plan.round_units
    assert lines["budget"]["spent_epsilon"] == rounded_epsilon(both, "1e-6")
    page = render_history(lines).decode()
    assert "3 few-shot rounds, not measured." in page
    for report, text in ((first.report, "equalized_odds"), (third.report, "not measured")):
        assert text in csv_tables(report).decode("utf-8-sig")


def test_it_is_verified_by_the_same_checks(run: Run) -> None:
    paths = run.files("verified")
    card, plan = run.plan.regulator, run.plan
    checks = Verification(paths, card=card, plan=plan, ledger=run.ledger).run()
    states = {check.number: check.state for check in checks}
    assert states == {n: "not given" if n in (3, 5) else "ok" for n in range(1, 10)}
    (run.folder / "plan.json").write_bytes(plan.to_json())
    card.save(run.folder / "card.json")
    given = ("--card", run.folder / "card.json", "--plan", run.folder / "plan.json")
    done = run_regulator("verify", paths.report, *given, "--ledger", run.ledger)
    assert done.code == 0, done.stderr
    assert "3 few-shot rounds" in done.stderr


@pytest.mark.parametrize(
    ("change", "number"),
    [
        ({"rounds": 2}, 6),
        ({"rounds": ROUNDS + 1}, 6),
        ({"lost_epsilon": 1}, 6),
        ({"replaced_epsilon": 1}, 6),
        ({"reserved_units": 1}, 6),
        ({"transcript": "0" * 64}, 9),
        ({"first": 1}, 9),
    ],
)
def test_a_signed_number_that_is_not_the_ledgers_is_found(
    run: Run, tmp_path: Path, change: dict[str, Any], number: int
) -> None:
    report = run.report()
    training = report.training.model_copy(update=change)
    keys = run.federation.keys("regulator")
    paths = sign_files(report.model_copy(update={"training": training}), keys, tmp_path)
    checks = Verification(paths, ledger=run.ledger).run()
    assert number in [check.number for check in checks if check.state == "failed"]


def test_any_other_signer_or_byte_is_found(run: Run, tmp_path: Path) -> None:
    stranger = PartyKeys.generate("regulator", "regulator")
    with pytest.raises(VerificationError, match=r"\(2\)"):
        require(Verification(sign_files(run.report(), stranger, tmp_path / "stranger")).run())
    paths = run.files("bytes")
    data = paths.report.read_bytes()
    for place in range(0, len(data), 97):
        paths.report.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(VerificationError):
            require(Verification(paths).run())


def test_a_ledger_with_other_records_is_refused(run: Run) -> None:
    settings = few_shot_settings(inner_noise=30_000_000, query_noise=20_000_000)
    other = FewShotPlan.of({**run.plan.model_dump(), "settings": settings})
    history = plan_history(run.ledger, run.plan.hash)
    with pytest.raises(VerificationError, match="round"):
        build_few_shot_report(other, history, created=0, software="test", officer=OFFICER)


def test_words_from_others_are_escaped_and_the_same_report_gives_the_same_page(run: Run) -> None:
    word = Statement(plan="0" * 64, company="company", model=HOSTILE, model_sha256="")
    report = run.report(officer=OFFICER.model_copy(update={"reason": HOSTILE}), company=word)
    page = render(report)
    assert HOSTILE not in page.decode()
    again = read_report(report.to_json())
    assert isinstance(again, FewShotReport)
    assert render(again) == page
    with pytest.raises(ConfigError, match="this is a few-shot report, not a report"):
        ReportFile.from_json(report.to_json())
    with pytest.raises(ConfigError):
        read_report(json.dumps({"html_sha256": "", "training": {}}).encode())
    assert hashlib.sha256(page).digest() != hashlib.sha256(render(run.report())).digest()
