"""The model card: what a reader of the model should know, as JSON and as Markdown."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from isonomy.company.fair.scores.score_report import ScoreReport
from isonomy.company.fair.tilt.fit_report import Report


def card_json(
    report: Report, base_type: str, queries: list[str], fingerprints: dict[str, str]
) -> dict[str, Any]:
    """The card's facts. Fingerprints tie it to the files beside it."""
    return {
        "schema": 3,
        "strategy": "tilt",
        "notion": report.notion,
        "pos_label": report.pos_label,
        "threshold": report.threshold,
        "tolerance": report.tolerance,
        "attributes": list(report.attributes),
        "groups": list(report.groups),
        "returned": report.returned,
        "violation": {
            "base": report.base_violation,
            "base_deviation": report.base_deviation,
            "estimated": report.violation,
            "interval_95": report.interval and list(report.interval),
            "unmeasured": list(report.unmeasured),
        },
        "by_attribute": [asdict(each) for each in report.by_attribute],
        "error": {"base": report.base_error, "estimated": report.error},
        "selection_rate": {"base": report.base_selection_rate, "now": report.selection_rate},
        "privacy": {
            "epsilon_certified": report.epsilon_cap,
            "epsilon_spent": report.epsilon_spent,
            "releases_reused": report.reused,
            "delta": report.delta,
            "adjacency": "one person's attribute is replaced",
            "queries": queries,
        },
        "base_model": base_type,
        "fingerprints": fingerprints,
        "notes": list(report.notes),
    }


def card_markdown(report: Report, card: dict[str, Any]) -> str:
    """The same for people."""
    facts = [
        ("Base model", card["base_model"]),
        ("Notion", f"{report.notion}, tolerance {report.tolerance:g}"),
        ("Selected means", f"decision = {report.pos_label}"),
        (
            "Rule of the base model",
            "the most probable class"
            if report.threshold is None
            else f"selected at a probability of {report.threshold:.4g} and above",
        ),
        ("Attributes", ", ".join(report.attributes)),
        ("Groups", ", ".join(report.groups)),
        ("Violation of the base model", _pm(report.base_violation, report.base_deviation)),
        ("Violation now (estimated)", _pm(report.violation, report.deviation)),
        ("Error (out of fold)", f"{report.base_error:.4f} before, {report.error:.4f} now"),
        (
            "Selection rate",
            f"{report.base_selection_rate:.4f} before, {report.selection_rate:.4f} now",
        ),
        (
            "Privacy of the attributes",
            f"ε = {report.epsilon_cap:.4g} certified, {report.epsilon_spent:.4g} spent, "
            f"δ = {report.delta:g}",
        ),
        *((f"SHA-256 of {name}", value) for name, value in card["fingerprints"].items()),
    ]
    lines = ["# Model card", "", *str(report).splitlines(), "", "| | |", "|---|---|"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in facts]
    lines += [
        "",
        "Violations are estimates from noised sums over the training people with out-of-fold "
        "scores; the deviation covers sampling, privacy noise and the proxy. The rule uses neither "
        "attribute nor label at prediction.",
    ]
    return "\n".join(lines)


def score_card(
    report: ScoreReport, base_type: str, queries: list[str], fingerprints: dict[str, str]
) -> tuple[dict[str, Any], str]:
    """The card of a fair score, as facts and for people."""
    card = {
        "schema": 3,
        "strategy": "tilt",
        **{name: value for name, value in report.to_json().items() if name != "rates"},
        "queries": queries,
        "base_model": base_type,
        "fingerprints": fingerprints,
    }
    facts = [("Base model", base_type), ("Notion", f"{report.notion} within {report.tolerance:g}")]
    facts += [(f"SHA-256 of {name}", value) for name, value in fingerprints.items()]
    lines = ["# Model card", "", *str(report).splitlines(), "", "| | |", "|---|---|"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in facts]
    lines += [
        "",
        "Distances are estimates from noised sums over the training people with out-of-fold "
        "scores. The score uses neither attribute nor target at prediction.",
    ]
    return card, "\n".join(lines)


def _pm(value: float | None, deviation: float | None) -> str:
    if value is None or deviation is None:
        return "cannot be measured at this budget"
    return f"{value:.4f} ± {deviation:.4f}"


def _cell(text: str) -> str:
    """Markdown's table separator must not come from a column or group name."""
    return str(text).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
