"""The verdicts of a report: three words, from intervals, and never "met" where one is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from report_kit import OFFICER, audited_run

from isonomy.common.report.build import build_report
from isonomy.common.report.from_ledger import plan_history
from isonomy.common.report.schema import Group, Limits, ReportedAudit, ReportFile, ShownTable
from isonomy.regulator.report import _words as words
from isonomy.regulator.report._page import render

M = 10_000  # millionths of a percentage point


def table(
    gaps: Mapping[str, Limits | None],
    ratios: Sequence[Limits | None],
    *,
    attribute: str = "sex",
    withheld: tuple[str, ...] = (),
) -> ShownTable:
    labels = ("female", "male") if attribute == "sex" else ("female × blue", "male × green")
    return ShownTable(
        attribute=attribute,
        groups=tuple(
            Group(label=label, members=(number,), counts=(1, 1))
            for number, label in enumerate(labels)
        ),
        withheld=withheld,
        rates={
            "selection_rate": tuple(
                None if ratio is None else (part, part, part)
                for ratio, part in zip(ratios, (20 * M, 40 * M), strict=True)
            )
        },
        impact_ratios=tuple(ratios),
        differences=gaps,
    )


def audited(name: str, *tables: ShownTable) -> ReportedAudit:
    return ReportedAudit(
        name=name, selected="1", whose="", cells="d", attribute="sex", query_id=name, sequence=1,
        time=1, request_hash="0" * 64, units=1, noise=1, people=100, totals=(1, 1), problem="",
        model_sha256="",
        tables=tables,
    )  # fmt: skip


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> ReportFile:
    run = audited_run(tmp_path_factory.mktemp("words"), people=100)
    run.ledger.close()
    history = plan_history(Path(run.ledger_path), run.plan.hash)
    return build_report(run.plan, history, created=0, software="test", officer=OFFICER)


FAIR, LOW, WIDE = (1_000_000, 900_000, 1_000_000), (500_000, 400_000, 600_000), (
    900_000, 640_000, 1_000_000,
)  # fmt: skip


@pytest.mark.parametrize(
    ("gap", "word"),
    [
        ((M, M // 2, M), "met"),
        ((5 * M, 4 * M, 6 * M), "not met"),
        ((M // 2, 0, 2 * M), "inconclusive"),  # the estimate is within, the interval is not
        (None, "inconclusive"),
    ],
)
def test_the_target_is_judged_by_the_interval(gap: Limits | None, word: str) -> None:
    shown = table({"demographic_parity": gap}, [FAIR, FAIR])
    found, why = words.target_verdict([shown], "demographic_parity", M)
    assert found == word
    assert (words.UNMEASURED in why) == (gap is None)


def test_a_group_that_was_not_measured_keeps_the_target_open() -> None:
    small = (M // 2, 0, M)
    for shown in (
        table({"demographic_parity": small}, [FAIR, FAIR], withheld=("other",)),
        table({"demographic_parity": small}, [FAIR, None]),
    ):
        assert words.target_verdict([shown], "demographic_parity", M)[0] == "inconclusive"
        assert words.screen_verdict([shown], 800_000)[0] == "inconclusive"


@pytest.mark.parametrize(
    ("ratio", "word"), [(FAIR, "met"), (LOW, "not met"), (WIDE, "inconclusive"), (None, None)]
)
def test_the_screen_gives_no_all_clear_that_its_interval_does_not(
    empty: ReportFile, ratio: Limits | None, word: str | None
) -> None:
    shown = table({}, [ratio, FAIR])
    assert words.screened(ratio, 800_000) == word
    assert words.screen_verdict([shown], 800_000)[0] == (word or "inconclusive")
    (line, _) = words.four_fifths(empty, audited("after", shown))
    assert line.endswith(f": {word}." if word else f"{words.UNMEASURED}.")


def test_the_summary_names_what_got_worse_and_the_worst_intersection(empty: ReportFile) -> None:
    def gaps(parity: int, accuracy: int) -> dict[str, Limits | None]:
        pairs = (("demographic_parity", parity), ("accuracy_parity", accuracy))
        return {name: (10 * M * n, 10 * M * n - M, 10 * M * n + M) for name, n in pairs}

    before = audited("before", table(gaps(2, 1), [FAIR, LOW]))
    crossed = table(gaps(4, 1), [LOW, FAIR], attribute="sex*race")
    after = audited("after", table(gaps(1, 3), [FAIR, FAIR]), crossed)
    text = " ".join(words.headline(empty, [before, after]))
    assert "“before” to “after”: accuracy parity by sex (10.0 to 30.0 points)." in text
    assert (
        "Target of at most 1.0 points, audit “after”: not met. By sex the true difference is at "
        "least 9.0 points."
    ) in text
    assert "Four-fifths screen at 0.80, audit “after”: not met. Below it: female × blue." in text
    assert "Worst intersection, by sex and race: 40.0 points" in text
    assert "between female × blue (20.0 %) and male × green (40.0 %)" in text
    better = " ".join(
        words.headline(empty, [before, audited("after", table(gaps(1, 1), [FAIR] * 2))])
    )
    assert "No measured difference got larger" in better
    unmeasured = audited("after", table(gaps(1, 1) | {"accuracy_parity": None}, [FAIR] * 2))
    text = " ".join(words.headline(empty, [before, unmeasured]))
    assert "Measured in audit “before” and not in “after”: accuracy parity by sex." in text


def test_names_with_commas_are_told_apart() -> None:
    assert words._listed(["a", "b"]) == "a, b"
    assert words._listed(["White, not Hispanic", "b"]) == "White, not Hispanic; b"


def test_people_who_stated_nothing_are_counted_and_left_out_of_ratios(empty: ReportFile) -> None:
    shown = table({"demographic_parity": (M, 0, M)}, [FAIR, FAIR])
    silent = Group(label="not stated", members=(2,), counts=(30_000_000, 34_000_000))
    shown = shown.model_copy(
        update={
            "groups": (*shown.groups, silent),
            "rates": {"selection_rate": (*shown.rates["selection_rate"], (M, M, M))},
            "impact_ratios": (*shown.impact_ratios, None),
        }
    )
    assert words.screen_verdict([shown], 800_000) == ("met", "")
    unmeasured = shown.model_copy(update={"withheld": ("not stated", "male × not stated")})
    assert words.target_verdict([unmeasured], "demographic_parity", M) == ("met", "")
    after = audited("after", shown)
    assert words.four_fifths(empty, after)[-1] == "not stated: left out of comparisons."
    page = render(empty.model_copy(update={"audits": (after,)})).decode()
    row = "not stated</td><td[^>]*><span>64</span></td><td[^>]*>left out of the calculation"
    assert re.search(row, page)


def test_the_number_without_a_value_is_given_whether_or_not_its_group_is_shown(
    empty: ReportFile,
) -> None:
    plan = empty.plan.model_copy(update={"groups": {"sex": ("female", "male", "not stated")}})
    report = empty.model_copy(update={"plan": plan})
    assert words.unknown_words(report)[0].startswith("sex: not known: no audit of this run")
    after = audited("after", table({"demographic_parity": (M, 0, M)}, [FAIR, FAIR]))
    after = after.model_copy(
        update={"without_value": {"sex": (12_400_000, 0, 60_000_000)}, "people": 1200}
    )
    report = report.model_copy(update={"audits": (after,)})
    assert words.unknown_words(report) == [
        "sex: about 12 (0 to 60) of 1,200 people in audit “after”: noised counts, with 95 % "
        "intervals."
    ]


def test_the_first_lines_say_what_only_the_company_can_know(empty: ReportFile) -> None:
    shown = table({"demographic_parity": (M, 0, M)}, [FAIR, FAIR])
    lines = words.headline(empty, [audited("after", shown)])
    assert lines[-1].endswith("is the word of company.")
    for whose, text in words.WHOSE_WORDS.items():
        assert text.startswith("by the company's word, ") == bool(whose)
