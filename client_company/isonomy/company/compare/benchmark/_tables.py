"""The benchmark in words and numbers: Markdown for docs and terminals.

1. the summary: how often tilt is better, not told apart, worse, by rival, 2. every comparison with
its intervals, 3. Tables 1 and 2 of Wang et al., with our runs beside them, 4. means.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from isonomy.company.compare.benchmark._published import EO_TABLE, GF_TABLE, Rival
from isonomy.company.compare.benchmark._summary import Mean
from isonomy.company.compare.benchmark.comparison import (
    WORDS,
    Comparison,
    Difference,
    compare,
    rivals,
)
from isonomy.company.compare.benchmark.methods import method

Pair = tuple[Comparison | None, Comparison | None]


def markdown(means: Sequence[Mean], published: Sequence[Rival]) -> str:
    """All tables, one after the other."""
    parts = [summary_table(means, published), comparison_table(means, published)]
    return "\n".join([*parts, wang_tables(means), means_tables(means)])


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


# --- Tilt beside the rivals --------------------------------------------------------------------


def comparisons(means: Sequence[Mean], published: Sequence[Rival], cap: float) -> list[Pair]:
    """(on the rival's base model, on trees) for every point; None where tilt was not run."""
    tilts = [mean for mean in means if mean.is_tilt]
    return [
        (compare(rival, tilts, rival.base), compare(rival, tilts, "gbdt"))
        for rival in rivals(means, published, cap)
    ]


def summary_table(means: Sequence[Mean], published: Sequence[Rival], cap: float = 1.0) -> str:
    """Counts of words by rival, over all sets, notions and settings; fits one screen."""
    groups: dict[str, list[Pair]] = {}
    for pair in comparisons(means, published, cap):
        of = next((one for one in pair if one is not None), None)
        if of is not None:
            private = "" if of.rival.epsilon is not None else f", {of.rival.base}"
            groups.setdefault(of.rival.method + private, []).append(pair)
    head = ("rival", "points", *WORDS, *(f"trees: {word}" for word in WORDS))
    rows = [
        (label, str(len(pairs)), *_counts(pairs, 0), *_counts(pairs, 1))
        for label, pairs in groups.items()
    ]
    text = (
        f"Tilt beside every point at ε ≤ {cap:g} (and beside references that are not private): on "
        "the rival's base model, then on trees. How often is tilt …\n"
    )
    return "\n".join(["## Summary\n", text, _table(head, rows, texts=1)])


def _counts(pairs: Sequence[Pair], which: int) -> tuple[str, ...]:
    """How often each word; "–" where tilt was not run on such a base model."""
    words = [one.word for pair in pairs if (one := pair[which]) is not None]
    return tuple(str(words.count(word)) if words else "–" for word in WORDS)


def comparison_table(means: Sequence[Mean], published: Sequence[Rival], cap: float = 1.0) -> str:
    """Every point that ran here, with its differences; of the published ones those not beaten."""
    head = (
        "set", "notion", "rival", "ε", "its error @ violation", "tilt's", "seeds",
        "error difference", "violation difference", "tilt is",
    )  # fmt: skip
    rows = []
    for same, trees in comparisons(means, published, cap):
        for one in dict.fromkeys((same, trees)):
            if one is None or not (one.rival.by_seed or one.word != "better"):
                continue
            rival = one.rival
            rows.append(
                (
                    rival.where[0], rival.where[2].replace("_", " "),
                    f"{rival.method}, {rival.base}",
                    "none" if rival.epsilon is None else f"{rival.epsilon:g}",
                    f"{rival.error:.4f} @ {rival.violation:.4f}",
                    f"{one.tilt.error:.4f} @ {one.tilt.violation:.4f}, {one.tilt.base}",
                    str(one.seeds), _interval(one.error), _interval(one.violation), one.word,
                )
            )  # fmt: skip
    rows.sort(key=lambda row: row[:4])
    body = _table(head, rows, texts=3) if rows else "Nothing to compare.\n"
    return f"## Tilt minus the other, by seed\n\n{body}"


def _interval(gap: Difference) -> str:
    half = "∞" if math.isinf(gap.half) else f"{gap.half:.4f}"
    return f"{gap.mean:+.4f} ± {half}"


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
