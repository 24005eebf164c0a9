"""report.html: self-contained, escaped, and honest where there is nothing to tell."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest
from report_kit import OFFICER, audited_run

from isonomy.common.agreements.about import About
from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import ConfigError
from isonomy.common.report.audit_unknowns import release_unknowns
from isonomy.common.report.build import build_report
from isonomy.common.report.from_ledger import plan_history
from isonomy.common.report.schema import Inspections, ReportFile, ReportSettings, Statement
from isonomy.company.federation.auditing import audit, audit_scores
from isonomy.regulator.report import _svg as svg
from isonomy.regulator.report._page import render
from isonomy.regulator.report.appendix import Appendix

HOSTILE = "<script>alert(1)</script>"
SERIES = {"label": HOSTILE, "colour": 0, "mark": "circle"}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ReportFile:
    run = audited_run(tmp_path_factory.mktemp("page"))
    for name, decided in (("before", run.before), ("after", run.after)):
        audit(run.oracle, decided, run.label, name=name, share=0.3)
    run.ledger.close()
    history = plan_history(run.ledger_path, run.plan.hash)
    return build_report(run.plan, history, created=1_800_000_000, software="test", officer=OFFICER)


def test_the_page_needs_no_network_and_runs_no_code(report: ReportFile) -> None:
    page = render(report).decode()
    assert not re.search(r"<(script|link|img|iframe|object)\b", page)
    assert not re.search(r"(src|href)=[\"'](?!#)", page)
    assert "http://" not in page
    assert "https://" not in page
    assert "default-src 'none'" in page


def text_of(report: ReportFile) -> str:
    """The page, with plain spaces for those at which no line ends."""
    return render(report).decode().replace("\N{NO-BREAK SPACE}", " ")


def test_the_page_says_what_was_asked_for(report: ReportFile) -> None:
    page = text_of(report)
    for text in (
        "95 % interval", "before", "after", "Four-fifths", "not law in lending", "Local Law 144",
        "People without a value", "Article 10(5)", "Who can learn what", "No inspections",
        report.plan.hash.hex(), report.ledger.head, report.plan.cohort_root,
    ):  # fmt: skip
        assert text in page, text
    assert "sex and race" in page  # intersections
    assert "withheld" in page.lower()


@pytest.mark.parametrize(
    ("carrier", "demanded", "said"),
    [
        ("homomorphic", 0, "5.0 % of the queries; in this run none"),
        ("homomorphic", 2, "so it saw the rows of these requests"),
        ("pads", 0, "5.0 % of the people of every query; in this run nobody"),
        ("pads", 2, "so it saw those rows"),
    ],
)
def test_the_page_says_what_was_inspected(
    report: ReportFile, carrier: str, demanded: int, said: str
) -> None:
    plan = {**report.plan.model_dump(mode="json"), "carrier": carrier}
    plan |= {"auditor": report.plan.regulator.x25519, "inspection_millionths": 50_000}
    counts = Inspections(demanded=demanded, opened=demanded, passed=demanded, failed=0, overdue=0)
    changed = report.model_copy(update={"plan": Plan.of(plan), "inspections": counts})
    page = text_of(changed)
    assert said in page
    each = "for each person's row in a question" if carrier == "pads" else "for each question"
    assert f"an inspection: at least 5 % {each} here" in html.unescape(page)


def test_what_was_not_given_is_listed_and_not_signed_as_a_statement(report: ReportFile) -> None:
    page = render(report).decode()
    assert 'Purpose</td><td class="small">not given' in page
    assert "not given whether the model was trained" in page
    about = About(selected="loan granted", purpose=HOSTILE)
    plan = report.plan.model_copy(update={"about": about})
    first, last = report.audits
    audits = (
        first.model_copy(update={"whose": "held out"}),
        last.model_copy(update={"whose": "trained on"}),
    )
    page = render(report.model_copy(update={"plan": plan, "audits": audits})).decode()
    word = "by the company&#39;s word, about people whom the model was"
    assert f"Audit “before”: {word} not trained on." in page
    assert f"Audit “after”: {word} trained on. They are no sample" in page
    assert "“Selected” means: the decision 1 (by the plan: loan granted)." in page
    assert "given whether" not in page
    assert HOSTILE not in page


SAMPLES = "drawn into the samples, which is secret, so the whole cap counts as spent"


@pytest.mark.parametrize(
    ("terms", "said", "unsaid"),
    [
        (
            {},
            ("sees ciphertexts and", "only as ciphertexts", "bound into the question"),
            ("counts as spent", "blinded choices", "keeps that account"),
        ),
        ({"record_privacy": True}, (SAMPLES, "may add up to more"), ("is not its subject",)),
        (
            {"individual_filter": True},
            ("which the regulator does not see", "keeps that account", "may add up to more"),
            (SAMPLES,),
        ),
        ({"carrier": "pads"}, ("only as blinded choices", "see encrypted"), ("ciphertexts",)),
        (
            {"companies": 2},
            ("all asked together given after the answer", "under this plan about people of other"),
            ("under this plan.",),
        ),
    ],
)
def test_what_is_signed_holds_for_this_plan(
    report: ReportFile, terms: dict[str, object], said: tuple[str, ...], unsaid: tuple[str, ...]
) -> None:
    if "companies" in terms:
        other = report.plan.companies[0].model_copy(update={"name": "other"})
        terms = {"companies": (*report.plan.companies, other)}
        settings = report.settings.model_copy(update={"company": "other"})
        report = report.model_copy(update={"settings": settings})
    plan = report.plan.model_copy(update=terms)
    page = render(report.model_copy(update={"plan": plan})).decode()
    for text in said:
        assert text in page, text
    for text in unsaid:
        assert text not in page, text


def test_a_question_of_the_regulators_own_is_not_a_companys(tmp_path: Path) -> None:
    run = audited_run(tmp_path, groups=1, people=400)
    run.oracle.counts(share=0.1)
    release_unknowns(run.ledger, run.plan, run.custodian.root, "sex", 9, 0.05)
    run.ledger.close()
    history = plan_history(run.ledger_path, run.plan.hash)
    page = render(build_report(run.plan, history, created=0, software="test", officer=OFFICER))
    assert "answered 1 questions of company and 1 of its own" in page.decode()


def test_an_audit_without_labels_is_not_called_too_noisy(tmp_path: Path) -> None:
    run = audited_run(tmp_path, groups=1, people=4000, notion="equal_opportunity")
    audit(run.oracle, run.before, name="hired", share=0.5)
    run.ledger.close()
    history = plan_history(run.ledger_path, run.plan.hash)
    report = build_report(run.plan, history, created=0, software="test", officer=OFFICER)
    page = render(report).decode()
    assert "people with the positive label: no labels in audit “hired”" in page
    assert ">too noisy<" not in page


def test_scores_have_rates_of_their_own_and_decide_no_verdict(tmp_path: Path) -> None:
    run = audited_run(tmp_path, groups=1, epsilon="20")
    audit(run.oracle, run.before, run.label, name="hired", share=0.3)
    scores = run.label + 3 * run.sex + np.linspace(0, 0.1, len(run.label))
    audit_scores(run.oracle, scores, name="ranks", share=0.3, whose="live")
    run.ledger.close()
    history = plan_history(run.ledger_path, run.plan.hash)
    report = build_report(run.plan, history, created=0, software="test", officer=OFFICER)
    page = render(report).decode()
    assert "Target of at most 1.0 points, audit “hired”" in page
    assert "Sex, audit “hired”</h3>" in page
    assert re.search("Sex, audit “ranks”</h3>.*scoring rate", page, re.S)
    assert "the selection rates of “ranks”: shares of people above the median score" in page
    assert "the decision 1 in “hired”; a score above the median in “ranks”" in page
    assert "Audit “ranks”: by the company&#39;s word, decisions that people really got." in page
    alone = render(report.model_copy(update={"audits": report.audits[:1]})).decode()
    assert "no audit of this run is about scores" in alone


def test_an_audit_of_some_people_only_is_pointed_out(tmp_path: Path) -> None:
    run = audited_run(tmp_path, groups=1)
    chosen = slice(0, 3000)
    audit(
        run.oracle, run.before[chosen], run.label[chosen], ids=run.cohort.ids[chosen],
        name="some", share=0.3,
    )  # fmt: skip
    run.ledger.close()
    history = plan_history(run.ledger_path, run.plan.hash)
    page = render(
        build_report(run.plan, history, created=0, software="test", officer=OFFICER)
    ).decode()
    assert "3,000 of the plan" in page


def test_the_same_report_gives_the_same_page(report: ReportFile) -> None:
    again = ReportFile.from_json(report.to_json())
    assert render(again) == render(report)


def test_names_and_words_from_others_are_escaped(report: ReportFile) -> None:
    hostile = report.model_copy(
        update={
            "plan": report.plan.model_copy(update={"name": HOSTILE}),
            "officer": OFFICER.model_copy(update={"reason": HOSTILE}),
            "company": Statement(
                plan="0" * 64,
                company="company",
                model=HOSTILE,
                model_sha256="",
                decisions={HOSTILE: "0" * 64},
                reason="",
            ),
        }
    )
    page = render(hostile).decode()
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page
    drawn = svg.intervals([HOSTILE], [svg.IntervalSeries(HOSTILE, [svg.Mark(0.1, 0.0, 0.2)])])
    assert HOSTILE not in drawn + svg.legend([HOSTILE]) + svg.bars([(HOSTILE, 1.0, HOSTILE)])


def test_a_narrow_screen_names_every_number_and_paper_repeats_every_head(
    report: ReportFile,
) -> None:
    page = render(report).decode()
    for table in re.findall(r'<table class="list.*?</table>', page, re.DOTALL):
        assert table.count("<thead>") == 1
        for row in re.findall(r"<tr>(.*?)</tr>", table.split("</thead>")[1], re.DOTALL):
            (first, *rest) = re.findall(r"<td([^>]*)>", row)
            assert 'class="group"' in first or not rest
            assert all("data-of=" in cell or "colspan" in cell for cell in rest)
    for rule in ("prefers-color-scheme: dark", "counter(pages)", "table-header-group"):
        assert rule in page


def test_right_to_left_names_keep_their_direction_to_themselves(report: ReportFile) -> None:
    audit = report.audits[-1]
    (table, *_) = audit.tables
    groups = (table.groups[0].model_copy(update={"label": "نساء"}), *table.groups[1:])
    table = table.model_copy(update={"groups": groups})
    audits = (audit.model_copy(update={"tables": (table,)}),)
    page = render(report.model_copy(update={"audits": audits})).decode()
    assert "\u2068نساء\u2069: impact ratio" in page
    assert "\u2068" not in render(report).decode()
    assert report.plan.hash.hex() in page


@pytest.mark.parametrize(
    "label",
    ["Black or African American, not Hispanic or Latino", "日本語の長い名前" * 4, "x" * 90, " "],
)
def test_a_long_name_is_broken_into_lines_of_its_plot(label: str) -> None:
    drawn = svg.intervals([label], [svg.IntervalSeries("a", [svg.Mark(0.1, 0.0, 0.2)])])
    lines = re.findall(r'text-anchor="end"><title>[^<]*</title>([^<]*)</text>', drawn)
    assert 1 <= len(lines) <= 3
    assert max(map(len, lines)) <= 14


def test_long_intersections_stay_distinct_in_a_plot() -> None:
    long = "Black or African American, not Hispanic or Latino"
    labels = [f"{long} × {sex}" for sex in ("female", "male")]
    mark = svg.Mark(0.1, 0.0, 0.2)
    drawn = svg.intervals(labels, [svg.IntervalSeries("a", [mark, mark])])
    for words in ("× female", "× male"):
        assert f">{words}</text>" in drawn


def test_a_run_without_audits_says_so(tmp_path: Path) -> None:
    run = audited_run(tmp_path, people=500, groups=1)
    run.ledger.close()
    history = plan_history(run.ledger_path, run.plan.hash)
    empty = build_report(
        run.plan, history, created=0, software="test", officer=OFFICER, settings=ReportSettings()
    )
    assert "makes no statement" in render(empty).decode()


def test_the_screening_signal_is_the_regulators_to_set(report: ReportFile) -> None:
    def page(limit: int) -> str:
        settings = ReportSettings(smallest_group=50, four_fifths=limit)
        return render(report.model_copy(update={"settings": settings})).decode()

    assert "at least 0.10: met" in page(100_000)
    assert re.search("at least 1.00: (not met|inconclusive)", page(1_000_000))
    assert "switched off" in page(0)


def test_an_appendix_is_data_and_nothing_else(report: ReportFile, tmp_path: Path) -> None:
    path = tmp_path / "appendix.json"
    good = {
        "title": HOSTILE,
        "parts": [
            {"kind": "table", "head": ["a", "b"], "rows": [[HOSTILE, "1"]]},
            {"kind": "bars", "rows": [["x", 0.5, "half"]], "limit": 1.0},
            {
                "kind": "plot",
                "x": HOSTILE,
                "series": [{**SERIES, "points": [[0.1, 0]]}],
                "rows": [HOSTILE],
                "row_notes": {"0": HOSTILE},
                "tolerance": 1,
            },
            {"kind": "text", "caption": "words"},
        ],
    }
    path.write_text(json.dumps(good))
    page = render(report, Appendix.load(path)).decode()
    assert HOSTILE not in page
    assert "Not the regulator" in page
    uneven = {"kind": "plot", "x": "x", "series": [{**SERIES, "points": [], "limits": [[0, 1]]}]}
    wrong = [json.dumps({"title": "x", "parts": [part]}) for part in ({"kind": "html"}, uneven)]
    for bad in ("{}", "[]", "not json", *wrong):
        path.write_text(bad)
        with pytest.raises(ConfigError):
            Appendix.load(path)
    with pytest.raises(ConfigError):
        Appendix.load(tmp_path / "absent.json")


@pytest.mark.parametrize("limits", [(0, 1e5), (-1e12, 1e12), (1e12, 1e12), (1e12, -1e12)])
def test_an_appendix_is_no_bomb(
    report: ReportFile, tmp_path: Path, limits: tuple[float, float]
) -> None:
    path = tmp_path / "appendix.json"
    points = [[x, y] for x in (-1e12, 0, 1e12) for y in (-1e12, 1e12)]
    series = {**SERIES, "points": points, "limits": [limits] * len(points), "line": True}
    bars = [["x", value, ""] for value in (-1e12, 1e-300, 1e12)]
    parts = [
        {"kind": "plot", "x": "x", "y": "y", "series": [series], "tolerance": limits[0]},
        {"kind": "plot", "x": "x", "series": [series], "rows": ["a"], "row_notes": {"-7": "x"}},
        {"kind": "bars", "rows": bars, "limit": -1e12},
    ]
    path.write_text(json.dumps({"title": "", "parts": parts}))
    assert len(render(report, Appendix.load(path))) < len(render(report)) + 20_000


def test_an_axis_shows_every_mark_and_never_more_than_all() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        value = float(rng.random())
        mark = svg.Mark(value, max(0.0, value - 0.3 * rng.random()), min(1.0, value + 0.2))
        low, high, step = svg._axis([mark])
        assert low <= mark.low + 1e-9
        assert mark.high <= high + 1e-9
        assert low >= -1e-9
        assert high <= 1.0 + 1e-9
        assert 1 <= round((high - low) / step) <= 8
