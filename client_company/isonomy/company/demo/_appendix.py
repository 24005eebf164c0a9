"""What the demonstration adds to the regulator's report, as plain data."""

from __future__ import annotations

from typing import Any

from isonomy.company.demo.run import DemoResult


def appendix_of(result: DemoResult) -> dict[str, Any]:
    """Scores on test people, the company's pictures, and how the exchange went."""
    return {
        "title": "the demonstration's own figures",
        "parts": [
            _scores(result),
            _rates(result),
            *result.plots,
            _budget(result),
            _traffic(result),
            _how(result),
        ],
    }


def _scores(result: DemoResult) -> dict[str, Any]:
    """A table of accuracy and violation on people who were not trained on."""
    summary, report = result.summary, result.report
    return {
        "kind": "table",
        "head": ["on people who were not trained on", "before", "after"],
        "rows": [
            ["accuracy", f"{summary['accuracy_before']:.4f}", f"{summary['accuracy_after']:.4f}"],
            [
                f"violation of {summary['notion'].replace('_', ' ')}",
                f"{summary['violation_before']:.4f}",
                f"{summary['violation_after']:.4f}",
            ],
        ],
        "caption": f"Exact rates of {summary['tested']:,} people whom the plan does not name. Only "
        "a demonstration, which knows everybody, can show them without noise. The company's "
        f"estimate of its violation, from noised answers: {_estimate(report)}.",
    }


def _estimate(report: dict[str, Any]) -> str:
    if report["interval"] is None:
        return "cannot be measured at this budget"
    low, high = report["interval"]
    return f"{report['violation']:.4f} (95 % interval {low:.4f} to {high:.4f})"


def _rates(result: DemoResult) -> dict[str, Any]:
    rows = []
    for label in result.before.rates:
        for name, score in (("before", result.before), ("after", result.after)):
            rate = score.rates[label]
            rows.append([f"{label}, {name}", rate, f"{100 * rate:.1f} %"])
    caption = "Share of positive decisions by group, on the same test people."
    return {"kind": "bars", "rows": rows, "caption": caption}


def _budget(result: DemoResult) -> dict[str, Any]:
    rows = [
        [_purpose(exchange), exchange["epsilon"], f"ε = {exchange['epsilon']:.3f}"]
        for exchange in result.exchanges
    ]
    caption = "Privacy spent after each exchange, against the cap (dashed)."
    limit = result.summary["epsilon_cap"]
    return {"kind": "bars", "rows": rows, "limit": limit, "caption": caption}


def _traffic(result: DemoResult) -> dict[str, Any]:
    rows = [
        [_purpose(exchange), exchange["bytes"] / 1e6, f"{exchange['seconds']:.2f} s"]
        for exchange in result.exchanges
    ]
    return {"kind": "bars", "rows": rows, "caption": "Megabytes and seconds of each exchange."}


def _purpose(exchange: dict[str, Any]) -> str:
    return f"{exchange['number']}: {exchange['purpose']}"


def _how(result: DemoResult) -> dict[str, Any]:
    summary = result.summary
    rows = [
        ["data, base model", f"{summary['dataset']}, {summary['base']}"],
        ["exchanges between company and regulator", str(summary["exchanges"])],
        ["bytes through the relay", f"{summary['bytes']:,}"],
        ["seconds, all processes included", f"{summary['seconds']:.1f}"],
        ["head of the relay's chain", f"{summary['relay_chain_head'][:32]}…"],
    ]
    notes = " ".join(result.report["notes"])
    return {"kind": "table", "head": ["how it ran", ""], "rows": rows, "caption": notes[:2000]}
