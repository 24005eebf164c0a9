"""`diff`, `history` and `csv`: only verified reports of one company, and nothing said too much."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from regulator_kit import run_regulator
from report_kit import GROUPS, Audited, audited_run, sign_files, write_report

from isonomy.common.keys.party import PartyKeys
from isonomy.common.report.schema import Limits, ReportFile
from isonomy.company.federation.auditing import audit
from isonomy.regulator.report import diff
from isonomy.regulator.report.history import render_history
from isonomy.regulator.report.spreadsheet import csv_tables

HOSTILE = "<b>نساء</b>"
LABELS: Mapping[str, tuple[str, ...]] = {
    "sex": (HOSTILE, "=HYPERLINK(1)"),
    "race": (*(f"a long name of group {number}" for number in range(17)), "other"),
}
DAY = 86_400


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """reports/1 to 3 of one company (two of one plan), reports-of-another, card.json, plan.json."""
    folder = tmp_path_factory.mktemp("compare")
    first = audited_run(folder / "first", groups=1)
    parties = (first.company, first.regulator)
    audit(first.oracle, first.before, first.label, name="before", share=0.3)
    write_report(first, folder / "reports" / "1", created=1_700_000_000)
    audit(first.oracle, first.after, first.label, name="after", share=0.3)
    write_report(first, folder / "reports" / "2", created=1_700_000_000 + DAY)
    second = audited_run(folder / "second", groups=1, parties=parties, name=HOSTILE, labels=LABELS)
    audit(second.oracle, 1 - second.sex, second.label, name="after", share=0.5)
    write_report(second, folder / "reports" / "deep" / "3", created=1_700_000_000 + 90 * DAY)
    third = _of_another(folder, first)
    for run in (first, second, third):
        run.ledger.close()
    first.regulator.card().save(folder / "card.json")
    first.plan.save(folder / "plan.json")
    return folder


def _of_another(folder: Path, first: Audited) -> Audited:
    parties = (PartyKeys.generate("another", "company"), first.regulator)
    run = audited_run(folder / "third", people=100, groups=1, parties=parties)
    write_report(run, folder / "of-another" / "1")
    return run


def call(home: Path, *arguments: object, code: int = 0) -> Any:
    done = run_regulator(*arguments, "--card", home / "card.json", "--json")
    assert done.code == code, done.stderr
    return done.json if not code else done.json["error"]["text"]


def test_two_reports_beside_each_other(home: Path, tmp_path: Path) -> None:
    page = tmp_path / "diff.html"
    told = call(home, "diff", home / "reports/1", home / "reports/2/report.json", "-o", page)
    assert told["schema"] == "isonomy-regulator/diff/v1"
    (line,) = told["summary"]  # before: 15 points between the sexes; after: none, on purpose
    assert (line["attribute"], line["change"]) == ("sex", "smaller")
    terms = {each["what"]: each["values"] for each in told["terms"]}
    assert terms["spent ε"][0] < terms["spent ε"][1]
    assert terms["people"] == ["4,000", "4,000"]
    (caution,) = told["cautions"]
    assert "“before” is the same one in both reports" in caution
    titles = [table["title"] for table in told["tables"]]
    assert titles == ["Audit before → after", "Audit before"]
    same = [each for table in told["tables"][1:] for each in table["differences"] + table["rates"]]
    assert {each["change"] for each in same} == {"the same measurement"}  # one audit with itself
    text = page.read_text()
    assert "smaller" in text
    assert "not signed" in text


def test_what_does_not_compare_is_said(home: Path, tmp_path: Path) -> None:
    told = call(home, "diff", home / "reports/1", home / "reports/deep/3")
    assert told["html"] is None
    labels = {line["group"] for table in told["tables"] for line in table["rates"]}
    assert HOSTILE in labels  # as it is in JSON, escaped on the page
    assert {line["change"] for line in told["tables"][0]["rates"]} == {"not measured"}
    report = ReportFile.load(home / "reports/1/report.json")
    regulator = PartyKeys.load(home / "first/regulator/keys")
    other = report.plan.model_copy(update={"cohort_root": "0" * 64})
    empty = report.model_copy(update={"plan": other, "audits": ()})
    sign_files(empty, regulator, tmp_path / "empty")
    told = call(home, "diff", home / "reports/1", tmp_path / "empty", "-o", tmp_path / "page.html")
    assert "different people" in " ".join(told["cautions"])
    assert "No audit of the one" in " ".join(told["cautions"])
    assert "nothing to compare" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("one", "two", "word"),
    [
        (None, (5, 4, 6), "not measured"),
        ((5, 4, 6), (50, 7, 90), "larger"),
        ((5, 4, 6), (50, 6, 90), "within the error"),
        ((5, 4, 6), (2, 1, 3), "smaller"),
    ],
)
def test_a_change_is_one_that_the_intervals_show(
    one: Limits | None, two: Limits | None, word: str
) -> None:
    assert diff._change(one, two) == word


def test_a_history_counts_each_plan_once_and_each_report_once(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "reports", tmp_path / "reports")
    shutil.copytree(home / "reports/1", tmp_path / "reports/copy of 1")
    page = tmp_path / "history.html"
    told = call(home, "history", tmp_path / "reports", "-o", page)
    assert [line["created"] for line in told["reports"]] == sorted(
        line["created"] for line in told["reports"]
    )
    assert [line["target_verdict"] for line in told["reports"]] == [
        "not met", told["reports"][1]["target_verdict"], "not met",
    ]  # fmt: skip
    assert len(told["reports"]) == 3
    assert told["budget"]["plans"] == 2
    each = [line["spent_epsilon"] for line in told["reports"]]
    assert max(each) < told["budget"]["spent_epsilon"] < sum(each)
    assert "different people" not in " ".join(told["cautions"])  # the same ids
    text = page.read_text()
    assert HOSTILE not in text
    assert "&lt;b&gt;" in text
    assert not re.search(r"<(script|link|img|iframe|object)\b", text)
    assert "Somebody who was in all 2 plans" in text
    (figure,) = re.findall(r"<figure><figcaption>(.*?)</figcaption>(.*?)</figure>", text, re.S)
    assert figure[0].endswith(", in points")
    assert "%" not in re.sub("<.*?>", "", figure[1])


def test_a_history_of_reports_without_audits(home: Path) -> None:
    told = call(home, "history", home / "of-another")
    assert told["reports"][0]["target_verdict"] == "no audit could be evaluated"
    assert "nothing to show" in render_history(told).decode()


def test_other_companies_and_other_files_are_refused_by_name(home: Path, tmp_path: Path) -> None:
    one, other = home / "reports/1", home / "of-another/1"
    text = call(home, "diff", one, other, "-o", tmp_path / "page.html", code=10)
    assert "different companies" in text
    assert "another" in text
    assert "different companies" in call(home, "history", home, code=10)
    assert "the same report" in call(home, "diff", one, one, code=10)
    assert "not a report" in call(home, "diff", one, home / "plan.json", code=40)
    assert "plan.json" in call(home, "diff", one, home / "plan.json", code=40)
    assert "cannot read" in call(home, "diff", one, home / "absent.json", code=10)
    assert "no report.json lies in" in call(home, "history", home / "first", code=10)
    assert list(tmp_path.iterdir()) == []


def test_a_changed_report_stops_a_history(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "reports", tmp_path / "reports")
    changed = tmp_path / "reports/2/report.json"
    changed.write_bytes(changed.read_bytes().replace(b'"answers":2', b'"answers":1'))
    text = call(home, "history", tmp_path / "reports", "-o", tmp_path / "page.html", code=40)
    assert "reports/2/report.json" in text
    assert not (tmp_path / "page.html").exists()


def test_no_key_no_page_and_no_page_is_overwritten(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_regulator("history", home / "reports", "--json")
    assert done.code == 46
    assert "--card" in done.stderr
    (tmp_path / "card.json").write_bytes((home / "card.json").read_bytes())
    done = run_regulator("history", home / "reports", "--card", "card.json")
    assert (done.code, done.stdout.strip()) == (0, "history.html")
    assert "exists" in call(home, "history", home / "reports", "-o", "history.html", code=10)
    foreign = PartyKeys.generate("regulator", "regulator").card()
    foreign.save(tmp_path / "foreign.json")
    done = run_regulator("csv", home / "reports/1", "--card", "foreign.json", "-o", "a.csv")
    assert done.code == 40
    assert not (tmp_path / "a.csv").exists()


def test_a_spreadsheet_computes_nothing(home: Path, tmp_path: Path) -> None:
    call(home, "csv", home / "reports/deep/3", "-o", tmp_path / "tables.csv")
    data = (tmp_path / "tables.csv").read_bytes()
    report = ReportFile.load(home / "reports/deep/3/report.json")
    assert data == csv_tables(report)
    lines = list(csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline="")))
    labels = {line["group"] for line in lines}
    assert HOSTILE in labels
    assert any(label.startswith("'=HYPERLINK(1)") for label in labels)
    for line in lines:
        assert not any(cell.startswith(("=", "+", "@")) for cell in line.values())
        assert all(not cell.startswith("-") or float(cell) < 0 for cell in line.values())
    (table, *_) = report.audits[0].tables
    rates = [line for line in lines if line["measure"] == "selection_rate"]
    shown = [tuple(float(line[name]) for name in ("value", "low", "high")) for line in rates]
    assert shown == [
        tuple(part / 1e6 for part in limits or ()) for limits in table.rates["selection_rate"]
    ]


def test_people_without_a_value_are_left_out_and_not_unmeasured(home: Path) -> None:
    data = json.loads((home / "reports/1/report.json").read_bytes())
    group = data["audits"][0]["tables"][0]["groups"][1]
    group["label"] = "not stated"
    data["audits"][0]["tables"][0]["impact_ratios"][1] = None
    text = csv_tables(ReportFile.of(data)).decode()
    assert '"not stated","impact_ratio","","","","share","left out of impact ratios"' in text
    assert GROUPS["sex"][0] in text
