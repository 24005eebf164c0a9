"""The benchmark in words and numbers: Markdown for docs and terminals.

1. means per set and notion, 2. dominance at ε ≤ 1, 3. Tables 1 and 2 of Wang et al., with our
runs beside them, 4. paired tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from isonomy.company.compare.benchmark._published import EO_TABLE, GF_TABLE, Rival
from isonomy.company.compare.benchmark._summary import (
    Mean,
    Verdict,
    paired,
    rerun_rivals,
    verdict,
)
from isonomy.company.compare.benchmark.methods import method, published_method

Judged = tuple[Verdict, Verdict]


def markdown(means: Sequence[Mean], published: Sequence[Rival]) -> str:
    """All tables, one after the other."""
    parts = [means_tables(means), dominance_table(means, published), wang_tables(means)]
    return "\n".join([*parts, paired_table(means)])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], texts: int) -> str:
    """The first `texts` columns hold text, the rest numbers."""
    ruler = ["---"] * texts + ["---:"] * (len(head) - texts)
    lines = [head, ruler, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _number(value: float, digits: int = 4) -> str:
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


# --- Means -------------------------------------------------------------------------------------


def means_tables(means: Sequence[Mean]) -> str:
    """One table per set and notion, sorted by budget and error."""
    head = ("method", "base", "setting", "ε", "error", "violation", "floor", "seeds", "s")
    parts = ["## Means on test people\n"]
    for where in dict.fromkeys(mean.where for mean in means):
        here = sorted(
            (mean for mean in means if mean.where == where),
            key=lambda mean: (mean.epsilon or math.inf, mean.error),
        )
        rows = [
            (
                method(mean.strategy).label, mean.base, _setting(mean), _budget(mean),
                f"{mean.error:.4f}", f"{mean.violation:.4f}", f"{mean.floor:.4f}",
                str(mean.seeds), f"{mean.seconds:.1f}",
            )
            for mean in here
        ]  # fmt: skip
        title = f"### {where[0]}, {where[1]}: {where[2].replace('_', ' ')}\n"
        parts += [title, _table(head, rows, texts=3)]
    return "\n".join(parts)


def _setting(mean: Mean) -> str:
    tolerance = f"tolerance {mean.tolerance:g}" if mean.is_tilt else ""
    return ", ".join(part for part in (tolerance, mean.options) if part)


def _budget(mean: Mean) -> str:
    return "none" if mean.epsilon is None else f"{mean.epsilon:g}"


# --- Dominance ---------------------------------------------------------------------------------


def judged(means: Sequence[Mean], published: Sequence[Rival], cap: float) -> list[Judged]:
    """(verdict with any base model, verdict with logistic models) of every point at ε ≤ cap."""
    tilts = [mean for mean in means if mean.is_tilt]
    logistic = [mean for mean in tilts if mean.base == "logistic"]
    papers = [replace(one, method=published_method(one.method).label) for one in published]
    rivals = [*papers, *rerun_rivals(means)]
    pairs = [
        (verdict(rival, tilts), verdict(rival, logistic))
        for rival in sorted(rivals, key=lambda one: (one.where, one.method, one.epsilon, one.error))
        if rival.epsilon <= cap
    ]
    return [pair for pair in pairs if pair[0].by is not None]


def dominance_table(means: Sequence[Mean], published: Sequence[Rival], cap: float = 1.0) -> str:
    """For every private competitor at ε ≤ cap: is a point of tilt better in both?

    Counts per competitor, then every point that is not beaten. A competitor's curve begins at its
    unconstrained end, where violation is large and error small: those points are among the counts.
    """
    pairs = judged(means, published, cap)
    head = (
        "set", "notion", "competitor", "points", "both", "error only", "not",
        "with logistic: both", "error only", "not",
    )  # fmt: skip
    groups: dict[tuple[str, str, str], list[Judged]] = {}
    for pair in pairs:
        rival = pair[0].rival
        groups.setdefault((rival.where[0], rival.where[2], rival.method), []).append(pair)
    rows = [
        (name, notion.replace("_", " "), label, str(len(of)), *_counts(of, 0), *_counts(of, 1))
        for (name, notion, label), of in groups.items()
    ]
    open_rows = [
        (
            best.rival.where[0], best.rival.where[2].replace("_", " "), best.rival.method,
            f"{best.rival.epsilon:g}", f"{best.rival.error:.4f}", f"{best.rival.violation:.4f}",
            _point(best),
        )
        for best, _ in pairs
        if best.verdict == "no"
    ]  # fmt: skip
    both, error, no = _counts(pairs, 0)
    sentence = (
        f"Of {len(pairs)} points of private competitors at ε ≤ {cap:g}, {both} are beaten in both "
        f"error and violation by more than the noise floor, {error} in error only (violations "
        f"within one floor of each other), {no} not.\n"
    )
    parts = [f"## Dominance at ε ≤ {cap:g}\n", sentence, _table(head, rows, texts=3)]
    if open_rows:
        columns = ("set", "notion", "competitor", "ε", "error", "violation", "our nearest")
        parts += ["Not beaten:\n", _table(columns, open_rows, texts=3)]
    return "\n".join(parts)


def _counts(pairs: Sequence[Judged], which: int) -> tuple[str, str, str]:
    """How many `both`, `error`, `no`; where tilt was not run, a point is not beaten."""
    kinds = [pair[which].verdict for pair in pairs]
    return (str(kinds.count("both")), str(kinds.count("error")), str(kinds.count("no")))


def _point(best: Verdict) -> str:
    mean = best.by
    return "–" if mean is None else f"{mean.error:.4f} @ {mean.violation:.4f}, {mean.base}"


# --- Tables 1 and 2 of Wang et al. -------------------------------------------------------------


def wang_tables(means: Sequence[Mean]) -> str:
    """GF (24) and EO (26) on Adult by sex, published beside run here. Best: GF 1, EO 0."""
    parts = ["## Tables 1 and 2 of Wang et al. (Adult, sex)\n"]
    for title, published, notion in (
        ("GF, Eq. (24): ratio of selection rates, women over men", GF_TABLE, "demographic_parity"),
        ("EO, Eq. (26), with the true positive rate of A = 1 where they print a false positive "
         "one: differences of true and of false positive rates, added", EO_TABLE, "equalized_odds"),
    ):  # fmt: skip
        rows = [
            (f"{name}, published", "", "none", f"{measure:.3f}", f"{accuracy:.1f}", "–")
            for name, points in published.items()
            for measure, accuracy in points
        ]
        here = [mean for mean in means if mean.where == ("adult", "sex", notion)]
        for mean in sorted(here, key=lambda one: (one.strategy, one.base, one.epsilon or 0.0)):
            value = mean.group_fairness if notion == "demographic_parity" else mean.odds_sum
            rows.append(
                (
                    f"{method(mean.strategy).label}, {mean.base}", _setting(mean), _budget(mean),
                    _number(value, 3), f"{100 * (1 - mean.error):.1f}", str(mean.seeds),
                )
            )  # fmt: skip
        head = ("method", "setting", "ε", "GF" if "GF" in title else "EO", "accuracy %", "seeds")
        parts += [f"**{title}.**\n", _table(head, rows, texts=2)]
    return "\n".join(parts)


# --- Paired tests ------------------------------------------------------------------------------


def paired_table(means: Sequence[Mean], least: int = 3) -> str:
    """Tilt minus the other by seed, same base model and budget, two-sided p-values."""
    head = (
        "set", "notion", "against", "ε", "seeds", "error difference", "p (t)", "p (Wilcoxon)",
        "violation difference", "p (t)", "p (Wilcoxon)",
    )  # fmt: skip
    rows = []
    for tilt in (mean for mean in means if mean.is_tilt and mean.tolerance == 0.01):
        for other in means:
            alike = (other.where, other.base) == (tilt.where, tilt.base)
            if other.is_tilt or other.options or not alike:
                continue
            if other.epsilon not in (None, tilt.epsilon) or min(tilt.seeds, other.seeds) < least:
                continue
            seeds, tests = paired(tilt, other)
            rows.append(
                (
                    tilt.dataset, tilt.notion.replace("_", " "), method(other.strategy).label,
                    f"{tilt.epsilon:g}", str(seeds),
                    *(
                        text
                        for mean, t, wilcoxon in tests.itertuples(index=False)
                        for text in (f"{mean:+.4f}", _number(t, 3), _number(wilcoxon, 3))
                    ),
                )
            )  # fmt: skip
    body = _table(head, rows, texts=3) if rows else f"No pair has {least} seeds or more.\n"
    return f"## Paired tests: tilt minus the other, by seed\n\n{body}"
