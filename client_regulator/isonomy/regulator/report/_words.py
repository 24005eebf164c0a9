"""A report's findings in plain sentences. Every sentence is a function of numbers in the report."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from isonomy.common.agreements.about import NOT_GIVEN
from isonomy.common.people.cohort import takes_missing, without_value
from isonomy.common.privacy.declarations import SCORED, Whose
from isonomy.common.privacy.shown import right_guess
from isonomy.common.report.audit_cells import NOTION_RATES, notions_of
from isonomy.common.report.schema import Limits, ReportedAudit, ReportFile, ShownTable

Verdict = Literal["met", "not met", "inconclusive"]
UNMEASURED = "cannot be measured at this budget"
_TOO_SMALL = "Too few people, or too much noise to measure them at this budget"
NOTION_WORDS = {
    "demographic_parity": "shares of people selected",
    "equal_opportunity": "shares selected among people with the positive label",
    "equal_fpr": "shares selected among people with another label",
    "equalized_odds": "shares selected among people with the same label",
    "accuracy_parity": "shares of right decisions",
}
RATE_WORDS = {
    "selection_rate": "Selection rate",
    "true_positive_rate": "True positive rate",
    "false_positive_rate": "False positive rate",
    "accuracy": "Accuracy",
}
_MOST_NAMES = 8  # of one sentence
_RIGHT_TO_LEFT = ("R", "AL", "AN")
_ISOLATE, _END = "\u2068", "\u2069"
CARRIER_WORDS = {
    "homomorphic": {
        "company": "ciphertexts",
        "attributes": "Attributes left the regulator only as ciphertexts under keys of one "
        "question each",
    },
    "pads": {
        "company": "blinded choices of an oblivious transfer",
        "attributes": "Attributes left the regulator only as blinded choices of an oblivious "
        "transfer of keys, once for the plan",
    },
}
_OTHERS = "other people's rates may differ, and accuracy is likely to be lower."
WHOSE_WORDS: dict[Whose, str] = {
    "": "it was not given whether the model was trained on these people. If it was, " + _OTHERS,
    "trained on": "by the company's word, about people whom the model was trained on. They are no "
    "sample of those whom it will meet: " + _OTHERS,
    "held out": "by the company's word, about people whom the model was not trained on.",
    "live": "by the company's word, decisions that people really got.",
}

_NO_FILE = "it was not given which file decided."


def percent(value: int, digits: int = 1) -> str:
    """Return millionths as a percentage."""
    return f"{value / 10_000:.{digits}f} %"


def points(value: int) -> str:
    """Return millionths as percentage points."""
    return f"{value / 10_000:.1f}"


def day(time: int) -> str:
    """Return Unix seconds as a day and minute in UTC."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")


def attribute_words(attribute: str) -> str:
    """Return an attribute in words: "sex*race" is "sex and race"."""
    return " and ".join(map(isolated, attribute.split("*")))


def isolated(label: str) -> str:
    """Return a group's name with marks that keep each right-to-left part's direction to itself."""
    return "".join(
        f"{_ISOLATE}{part}{_END}"
        if any(unicodedata.bidirectional(char) in _RIGHT_TO_LEFT for char in part)
        else part
        for part in re.split("( × | or )", label)
    )


def notion_name(notion: str) -> str:
    """Return a notion as people write it; several are joined by "+"."""
    return notion.replace("_", " ").replace("fpr", "FPR").replace("+", ", ")


def main_notion(report: ReportFile) -> str:
    """Return the plan's notion if audits know it, else demographic parity."""
    return report.plan.notion if report.plan.notion in NOTION_WORDS else "demographic_parity"


def single_tables(audit: ReportedAudit) -> list[ShownTable]:
    """Return the tables by one attribute, which the summary is about."""
    return [table for table in audit.tables if "*" not in table.attribute]


def headline(report: ReportFile, usable: Sequence[ReportedAudit]) -> list[str]:
    """Return the result in a few sentences, about the audits that could be evaluated.

    Differences by attribute, the two verdicts, what got worse, and the worst intersection.
    """
    if not usable:
        return [
            "No audit in this run could be evaluated, so this report makes no statement about the "
            "model's decisions. What was asked and what it cost is below."
        ]
    notion, last = main_notion(report), judged(usable)
    names = dict.fromkeys(table.attribute for audit in usable for table in single_tables(audit))
    sentences = [_attribute_sentence(name, usable, notion) for name in names]
    if report.plan.notion == notion:
        sentences.append(_target_sentence(report.plan.tolerance_millionths, last, notion))
    if report.settings.four_fifths:
        word, why = screen_verdict(last.tables, report.settings.four_fifths)
        sentences.append(
            f"Four-fifths screen at {report.settings.four_fifths / 1e6:.2f}, audit “{last.name}”: "
            f"{word}. {why}".rstrip()
        )
    return [*sentences, *_worse(usable), *_intersection(last, notion, report), _word_of(report)]


def _word_of(report: ReportFile) -> str:
    """Return what of the result only the companies can know."""
    names = [card.name for card in report.plan.companies]
    whose = names[0] if len(names) == 1 else "the companies"
    return (
        "The groups are the regulator's records. Which decisions and labels were audited is the "
        f"word of {whose}."
    )


def company_words(report: ReportFile) -> list[str]:
    """Return whose audits a report of several companies shows."""
    names, company = [card.name for card in report.plan.companies], report.settings.company
    if len(names) == 1:
        return []
    if not company:
        return [
            "This report shows what all companies had audited together. What one of them had "
            "audited alone is in a report of its own."
        ]
    return [
        f"This report is about {company}, one of {len(names)} companies of the plan: first what "
        f"all had audited together, if anything, then what {company} had audited alone. The ε "
        f"spent is that of {company}'s people."
    ]


def judged(usable: Sequence[ReportedAudit]) -> ReportedAudit:
    """Return the audit that verdicts are about: the last one of decisions, not of scores."""
    return next((a for a in reversed(usable) if a.selected != SCORED), usable[-1])


def verdict(limits: Limits | None, most: int) -> Verdict:
    """Return whether something is at most `most`, by its interval alone."""
    if limits is None:
        return "inconclusive"
    _, low, high = limits
    return "met" if high <= most else "not met" if low > most else "inconclusive"


def target_verdict(tables: Sequence[ShownTable], notion: str, most: int) -> tuple[Verdict, str]:
    """Return the verdict on the largest differences of some tables, and why.

    It is met only if every group could be measured: one that was not may differ by more.
    """
    gaps = [(table, table.differences.get(notion)) for table in tables]
    words = [verdict(limits, most) for _, limits in gaps]
    lines = []
    for (table, limits), word in zip(gaps, words, strict=True):
        by = f"By {attribute_words(table.attribute)}"
        if limits is None:
            lines.append(f"{by} the difference {UNMEASURED}.")
        elif word == "not met":
            lines.append(f"{by} the true difference is at least {points(limits[1])} points.")
        elif word == "inconclusive":
            lines.append(
                f"{by} the true difference may be {points(limits[1])} to {points(limits[2])} "
                f"points; the target is {points(most)}."
            )
    unmeasured = _unmeasured(tables, NOTION_RATES[notion])
    if unmeasured:
        lines.append(f"{_TOO_SMALL}: {_listed(unmeasured)}.")
    return _joint(words, unmeasured), " ".join(lines)


def screen_verdict(tables: Sequence[ShownTable], limit: int) -> tuple[Verdict, str]:
    """Return the verdict of the four-fifths screen over some tables, and which groups decide it."""
    of_groups = [
        (group.label, screened(ratio, limit))
        for table in tables
        for group, ratio in zip(table.groups, table.impact_ratios, strict=True)
        if not without_value(group.label)
    ]
    below = [label for label, word in of_groups if word == "not met"]
    open_ones = [label for label, word in of_groups if word == "inconclusive"]
    unmeasured = _unmeasured(tables, ["selection_rate"])
    unmeasured += [label for label, word in of_groups if word is None and label not in unmeasured]
    lines = [
        f"{words}: {_listed(labels)}."
        for words, labels in (
            ("Below it", below),
            ("May lie on either side", open_ones),
            (_TOO_SMALL, unmeasured),
        )
        if labels
    ]
    words = [word for _, word in of_groups if word is not None]
    return _joint(words, unmeasured), " ".join(lines)


def screened(ratio: Limits | None, limit: int) -> Verdict | None:
    """Return whether an impact ratio is at least `limit`, by its interval; None without one."""
    if ratio is None:
        return None
    _, low, high = ratio
    return "met" if low >= limit else "not met" if high < limit else "inconclusive"


def four_fifths(report: ReportFile, audit: ReportedAudit) -> list[str]:
    """Return the screen's verdict on each group."""
    limit = report.settings.four_fifths
    if not limit:
        return ["The screening signal is switched off in this report."]
    sentences = []
    for table in audit.tables:
        for group, ratio in zip(table.groups, table.impact_ratios, strict=True):
            if ratio is None:
                why = "left out of comparisons" if without_value(group.label) else UNMEASURED
                sentences.append(f"{group.label}: {why}.")
                continue
            value, low, high = (part / 1e6 for part in ratio)
            sentences.append(
                f"{group.label}: impact ratio {value:.2f} ({low:.2f} to {high:.2f}), at least "
                f"{limit / 1e6:.2f}: {screened(ratio, limit)}."
            )
        sentences += [f"{label}: {UNMEASURED}, too few people." for label in table.withheld]
    return sentences


def _listed(labels: Sequence[str]) -> str:
    """Return the names, or the first of very many: each one is judged under the screening."""
    more = len(labels) - _MOST_NAMES
    comma = "; " if any("," in label for label in labels) else ", "
    if more <= 1:
        return comma.join(labels)
    return f"{comma.join(labels[:_MOST_NAMES])} and {more} others"


def _joint(words: Sequence[Verdict], unmeasured: Sequence[str]) -> Verdict:
    if "not met" in words:
        return "not met"
    return "met" if words and set(words) == {"met"} and not unmeasured else "inconclusive"


def _unmeasured(tables: Sequence[ShownTable], rates: Sequence[str]) -> list[str]:
    """Return the compared groups that are withheld, or of which a rate cannot be told."""
    labels = []
    for table in tables:
        for place, group in enumerate(table.groups):
            if any(table.rates[name][place] is None for name in rates if name in table.rates):
                labels.append(group.label)
        labels += table.withheld
    return [label for label in labels if not without_value(label)]


def _attribute_sentence(attribute: str, usable: Sequence[ReportedAudit], notion: str) -> str:
    parts = []
    for audit in usable:
        for table in audit.tables:
            if table.attribute == attribute:
                gaps = {name: gap_words(limits) for name, limits in table.differences.items()}
                of = ", of scores" if audit.selected == SCORED else ""
                parts.append(f"{gaps.get(notion, 'no labels')} in audit “{audit.name}”{of}")
    return (
        f"Largest difference between groups by {attribute_words(attribute)} in the "
        f"{NOTION_WORDS[notion]}: {', '.join(parts)}."
    )


def gap_words(limits: Limits | None) -> str:
    """Return a difference with its interval, in points."""
    if limits is None:
        return UNMEASURED
    value, low, high = map(points, limits)
    return f"{value} points (95 % interval {low} to {high})"


def _target_sentence(tolerance: int, last: ReportedAudit, notion: str) -> str:
    word, why = target_verdict(single_tables(last), notion, tolerance)
    aim = f"Target of at most {points(tolerance)} points, audit “{last.name}”"
    if notion not in notions_of(last.cells):
        return f"{aim}: inconclusive. Without labels the audit tells nothing about it."
    return f"{aim}: {word}. {why}".rstrip()


def _worse(usable: Sequence[ReportedAudit]) -> list[str]:
    """Return a sentence that names every notion that got worse from the first audit to the last.

    Only audits of the same decision are compared: each class of several is a question of its own.
    """
    last = judged(usable)
    first = next(audit for audit in usable if audit.selected == last.selected)
    if first is last:
        return []
    before = {table.attribute: table.differences for table in first.tables}
    lines, lost = [], []
    for table in last.tables:
        for notion in NOTION_RATES:  # a mapping of the report has another order once it was read
            limits = table.differences.get(notion)
            old = before.get(table.attribute, {}).get(notion)
            what = f"{notion_name(notion)} by {attribute_words(table.attribute)}"
            if old is not None and limits is None:
                lost.append(what)
            if old is None or limits is None or float(points(limits[0])) <= float(points(old[0])):
                continue
            sure = "" if limits[1] > old[2] else ", within the error"
            lines.append(f"{what} ({points(old[0])} to {points(limits[0])} points{sure})")
    between = f"from audit “{first.name}” to “{last.name}”"
    larger = f"Larger differences {between}: {'; '.join(lines)}."
    unknown = f"Measured in audit “{first.name}” and not in “{last.name}”: {'; '.join(lost)}."
    return [
        larger if lines else f"No measured difference got larger {between}.",
        *([unknown] if lost else []),
    ]


def _intersection(last: ReportedAudit, notion: str, report: ReportFile) -> list[str]:
    """Return a sentence about the intersection that differs most, if attributes were crossed."""
    crossed = [table for table in last.tables if "*" in table.attribute]
    if not crossed or notion not in notions_of(last.cells):
        return []
    gaps = [(limits, table) for table in crossed if (limits := table.differences.get(notion))]
    if not gaps:
        return [f"The differences between intersections: {UNMEASURED}."]
    limits, table = max(gaps, key=lambda pair: pair[0])
    word, _ = target_verdict([table], notion, report.plan.tolerance_millionths)
    low, high = _extremes(table, notion)
    return [
        f"Worst intersection, by {attribute_words(table.attribute)}: {gap_words(limits)}, between "
        f"{low} and {high}. Measured against the same target: {word}."
    ]


def _extremes(table: ShownTable, notion: str) -> tuple[str, str]:
    """Return the two compared groups whose rates lie farthest apart, each with its rate."""
    pairs = []
    for name in NOTION_RATES[notion]:
        rates = [
            (limits[0], group.label)
            for group, limits in zip(table.groups, table.rates[name], strict=True)
            if limits is not None and not without_value(group.label)
        ]
        if rates:
            pairs.append((max(rates)[0] - min(rates)[0], min(rates), max(rates)))
    _, low, high = max(pairs)
    return f"{low[1]} ({percent(low[0])})", f"{high[1]} ({percent(high[0])})"


def in_full_words(report: ReportFile) -> str:
    """Return why the whole cap counts as spent; empty where what was spent is told."""
    if report.plan.record_privacy:
        return (
            "What was really spent depends on who was drawn into the samples, which is secret, so "
            "the whole cap counts as spent."
        )
    if report.plan.individual_filter:
        return (
            "Each person's loss depends on their own rows, which the regulator does not see, so "
            "the whole cap counts as spent."
        )
    return ""


def selected_words(report: ReportFile, usable: Sequence[ReportedAudit]) -> str:
    """Return what "selected" means in each audit."""
    decisions = dict.fromkeys(audit.selected for audit in usable)
    parts = []
    for decision in decisions:
        names = ", ".join(f"“{audit.name}”" for audit in usable if audit.selected == decision)
        where = f" in {names}" if len(decisions) > 1 else ""
        parts.append(f"{decision if decision == SCORED else f'the decision {decision}'}{where}")
    meaning = report.plan.words.selected
    return f"{'; '.join(parts)}{f' (by the plan: {meaning})' if meaning else ''}"


def whose_words(usable: Sequence[ReportedAudit]) -> list[tuple[str, bool]]:
    """Return whose decisions the audits are about, by the company's word; True for a warning."""
    sentences = []
    for whose, words in WHOSE_WORDS.items():
        names = [f"“{audit.name}”" for audit in usable if audit.whose == whose]
        if names:
            audits = "Audit" if len(names) == 1 else "Audits"
            sentences.append((f"{audits} {', '.join(names)}: {words}", _OTHERS in words))
    return sentences


def model_words(report: ReportFile, usable: Sequence[ReportedAudit]) -> list[tuple[str, bool]]:
    """Return which files the audits are about, by the company's word; True for a warning."""
    files = dict.fromkeys(audit.model_sha256 for audit in usable)
    if not any(files):
        return []
    sentences = []
    for sha256 in files:
        names = [f"“{audit.name}”" for audit in usable if audit.model_sha256 == sha256]
        audits = "Audit" if len(names) == 1 else "Audits"
        of = f"of the file with SHA-256 {sha256}, by the company's word." if sha256 else _NO_FILE
        sentences.append((f"{audits} {', '.join(names)}: {of}", not sha256))
    if len(files) > 1:
        sentences.append(("These audits are not all of one file: they are no series.", True))
    stated = report.company.model_sha256 if report.company else ""
    if stated and any(sha256 not in ("", stated) for sha256 in files):
        other = "The company's statement names another file than some of these audits are of."
        sentences.append((other, True))
    return sentences


def law144_words(report: ReportFile, usable: Sequence[ReportedAudit]) -> list[tuple[str, str]]:
    """Return what else Local Law 144 wants published, each under its name, given or not."""
    about, scored = report.plan.words, [audit for audit in usable if audit.selected == SCORED]
    days = f"{day(usable[0].time)} to {day(usable[-1].time)}" if usable else "no audit"
    scores = "not measured: no audit of this run is about scores, and decisions do not tell them"
    if scored:
        names = ", ".join(f"“{audit.name}”" for audit in scored)
        scores = f"the selection rates of {names}: shares of people above the median score"
    return [
        ("Date of the audits", days),
        ("Source of the data", about.data_source or NOT_GIVEN),
        ("Dates of the data", about.data_dates or NOT_GIVEN),
        ("System in use since", about.distributed or NOT_GIVEN),
        ("Scoring rates", scores),
    ]


def unknown_words(report: ReportFile) -> list[str]:
    """Return, for each attribute, how many people have no value, or why that is not known."""
    released = {each.attribute: each.share for each in report.unknowns}
    sentences = []
    for name, labels in report.plan.groups.items():
        if name in released:
            share, low, high = (f"{limit / 10_000:.1f}" for limit in released[name])
            words = f"{share} % ({low} to {high}), a noised count, paid for in the ledger."
        elif not takes_missing(labels):
            words = "none. The regulator enrolled nobody without a value."
        elif without_value(labels[-1]):
            words = _without_value(report, name)
        else:
            words = (
                f"not released; they are counted in “{labels[-1]}”. An exact number would disclose "
                "private data, and the plan's budget can buy one with noise (report --unknowns)."
            )
        sentences.append(f"{name}: {words}")
    return sentences


def _without_value(report: ReportFile, name: str) -> str:
    """Return how many people have no value by each audit of an attribute, or that none tells."""
    parts = [
        f"about {value:,} ({low:,} to {high:,}) of {audit.people:,} people in audit “{audit.name}”"
        for audit in report.audits
        if name in audit.without_value
        for value, low, high in [[round(part / 1e6) for part in audit.without_value[name]]]
    ]
    if not parts:
        return "not known: no audit of this run that could be evaluated is by this attribute."
    return f"{'; '.join(parts)}: noised counts, with 95 % intervals."


def privacy_meaning(report: ReportFile) -> str:
    """Return what ε means for one person, as the chance of a right guess."""
    sure = right_guess(report.plan.epsilon_millionths / 1e6)
    return (
        f"Suppose somebody who knows everything else about a person thinks that the odds of their "
        f"attribute being one value or another are even. After seeing every answer of this run, "
        f"that guess is right with a chance of at most {sure} instead of 50 % "
        f"(except for a failure of probability about {report.plan.delta})."
    )


def inspection_words(report: ReportFile) -> str:
    """Return what inspections found, or that there were none."""
    plan, counts = report.plan, report.inspections
    by_rows = plan.carrier == "pads"
    if counts.demanded == 0:
        if plan.inspection_millionths == 0:
            return (
                "No inspections: the plan names none. A company that sent other rows than it "
                "should have would not have been caught; the counts rest on its honesty."
            )
        rate = percent(plan.inspection_millionths)
        if by_rows:
            return (
                f"The plan inspects {rate} of the people of every query; in this run "
                "nobody was drawn."
            )
        return f"The plan inspects at least {rate} of the queries; in this run none was drawn."
    words = (
        f"{counts.demanded} requests were inspected: "
        f"{counts.opened} were opened, {counts.passed} passed, {counts.failed} failed."
    )
    if counts.overdue:
        words += (
            f" {counts.overdue} of the failed ones were never opened, and the last day for it "
            f"({plan.inspection_deadline}) is over."
        )
    waiting = counts.demanded - counts.opened - counts.overdue
    if waiting:
        words += f" {waiting} had not been opened when this report was written."
    if by_rows and plan.inspection_millionths:
        words += (
            " Of each request those people's rows were looked at who had been drawn, "
            f"{percent(plan.inspection_millionths)} in the mean. Everybody's pads were compared "
            "with the keys that were transferred."
        )
    if plan.regulator_audits:
        rows = "those rows" if by_rows else "the rows of these requests"
        words += f" The regulator is the auditor itself, so it saw {rows}."
    if not (plan.regulator_audits or plan.inspection_waits):
        words += " Answers went out before the auditor's verdict."
    if counts.failed:
        words += " A failed inspection means that the company did not follow the protocol."
    return words
