"""The figures, from means and published points. Names of files are the keys.

| figure | shows |
|---|---|
| `benchmark-tradeoff-NOTION` | error against violation, a panel per set, ε = 1: all methods and published points |
| `benchmark-tradeoff-SET-NOTION` | the same for one set, a panel per ε |
| `benchmark-epsilon-NOTION` | violation and error against ε, per set |
| `benchmark-clipping` | PF-LD: effect of C_p |
| `benchmark-steps` | time of a step over a plain one, beside Table 1 of Tran et al. |

Hollow marks are published numbers, filled ones ran here. The grey band is the violation expected
from sampling alone: nothing inside it can be told from zero.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from isonomy.company.compare.benchmark.methods import GREY, method, published_method
from isonomy.company.compare.benchmark.published import Point
from isonomy.company.compare.benchmark.summary import Mean, front
from isonomy.company.rehearsal.panels import Panel, Series, figure

_NOTE = "filled: run here, means over seeds · hollow: published · grey: sampling noise"
_LEAST = 5e-4  # violations below are drawn here: a logarithm has no zero
Where = tuple[str, str, str]


def draw(
    found: Sequence[Mean],
    published: Sequence[Point] = (),
    steps: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """File name without ending → SVG text. Figures without data are left out."""
    plain = [own for own in found if not own.options]
    drawn: dict[str, str] = {}
    for notion in dict.fromkeys(own.notion for own in plain):
        of_notion = [own for own in plain if own.notion == notion]
        name = notion.replace("_", "-")
        drawn[f"benchmark-tradeoff-{name}"] = _all_sets(notion, of_notion, published)
        for where in dict.fromkeys(own.where for own in of_notion):
            budgets = sorted(
                {own.epsilon for own in of_notion if own.where == where and own.epsilon}
            )
            if len(budgets) > 1:
                drawn[f"benchmark-tradeoff-{where[0]}-{name}"] = _all_budgets(
                    where, budgets, of_notion, published
                )
        drawn |= _against_epsilon(notion, of_notion)
    drawn |= _clipping(found)
    if steps is not None:
        drawn["benchmark-steps"] = _steps(steps)
    return drawn


# --- Error against violation ---------------------------------------------------------------------


def _all_sets(notion: str, found: Sequence[Mean], published: Sequence[Point]) -> str:
    wheres = list(dict.fromkeys(own.where for own in found))
    panels = [_trade_off(_place(where), where, 1.0, found, published) for where in wheres]
    title = f"Error against violation of {_words(notion)} at ε = 1"
    return figure(title, panels, note=_NOTE, columns=2)


def _all_budgets(
    where: Where, budgets: Sequence[float], found: Sequence[Mean], published: Sequence[Point]
) -> str:
    panels = [_trade_off(f"ε = {e:g}", where, e, found, published) for e in budgets]
    title = f"{_place(where)}: error against violation of {_words(where[2])}"
    return figure(title, panels, note=_NOTE, columns=2)


def _trade_off(
    title: str, where: Where, epsilon: float, found: Sequence[Mean], published: Sequence[Point]
) -> Panel:
    here = [own for own in found if own.where == where and own.epsilon in (None, epsilon)]
    theirs = [
        point
        for point in published
        if (point.dataset, point.attribute, point.notion) == where and point.epsilon == epsilon
    ]
    series = [*_published(theirs), *_ours(here)]
    floors = [own.floor for own in here]
    return Panel(
        title, "violation (log scale)", "error", series, x_log=True, y_span=0.03,
        shade=sum(floors) / len(floors) if floors else None,
    )  # fmt: skip


def _ours(here: Iterable[Mean]) -> list[Series]:
    """A method on one base model is one series; several of its settings are joined to a front."""
    groups: dict[tuple[str, str], list[Mean]] = {}
    for one in here:
        groups.setdefault((one.strategy, one.base), []).append(one)
    series = []
    for (strategy, base), own in sorted(groups.items(), key=lambda item: _is_ours(item[0][0])):
        look = method(strategy)
        label = f"{look.label}, {base}"
        points = [(max(one.violation, _LEAST), one.error) for one in own]
        edge = front(points)
        if len(edge) > 1:
            series.append(Series("", look.colour, "", edge, line=True))
        texts = [_hover(label, one) for one in own]
        series.append(Series(label, look.colour, _mark_of(strategy, base), points, texts))
    return series


def _is_ours(strategy: str) -> bool:
    """Ours is drawn last, so that nothing hides it."""
    return method(strategy).ours


def _mark_of(strategy: str, base: str) -> str:
    """The method's own mark on logistic models; under tilt other bases have theirs."""
    look = method(strategy)
    return {"gbdt": "star", "mlp": "down"}.get(base, look.mark) if look.ours else look.mark


def _published(points: Iterable[Point]) -> list[Series]:
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.method, []).append(point)
    series = []
    for name, own in groups.items():
        look = published_method(name)
        placed = sorted((max(point.violation, _LEAST), point.error) for point in own)
        texts = [f"{look.label}: error {error:.4f} @ {v:.4f}" for v, error in placed]
        series.append(
            Series(look.label, look.colour, look.mark, placed, texts, hollow=True, line=True)
        )
    return series


def _hover(label: str, one: Mean) -> str:
    budget = "no budget" if one.epsilon is None else f"ε = {one.epsilon:g}"
    return (
        f"{label}, {budget}, tolerance {one.tolerance:g}: error {one.error:.4f} "
        f"@ {one.violation:.4f}, {one.seeds} seeds"
    )


# --- Against ε -----------------------------------------------------------------------------------


def _against_epsilon(notion: str, found: Sequence[Mean]) -> dict[str, str]:
    panels = []
    for where in dict.fromkeys(own.where for own in found):
        here = [own for own in found if own.where == where and own.tolerance == 0.01]
        budgets = sorted({own.epsilon for own in here if own.epsilon is not None})
        if len(budgets) < 2:
            continue
        floors = [own.floor for own in here]
        for measure in ("violation", "error"):
            panels.append(
                Panel(
                    _place(where), "ε (log scale)", measure, _sweeps(here, budgets, measure),
                    x_log=True, y_from_zero=measure == "violation", x_ticks=budgets,
                    shade_y=sum(floors) / len(floors) if measure == "violation" else None,
                )
            )  # fmt: skip
    if not panels:
        return {}
    title = f"{_words(notion).capitalize()}: violation and error against ε"
    name = f"benchmark-epsilon-{notion.replace('_', '-')}"
    return {name: figure(title, panels, note=_NOTE, columns=2)}


def _sweeps(here: Sequence[Mean], budgets: Sequence[float], measure: str) -> list[Series]:
    series = []
    for strategy, base in dict.fromkeys((own.strategy, own.base) for own in here):
        look, own = method(strategy), [o for o in here if (o.strategy, o.base) == (strategy, base)]
        label = f"{look.label}, {base}"
        if look.private:
            points = sorted((o.epsilon, getattr(o, measure)) for o in own if o.epsilon is not None)
            mark = _mark_of(strategy, base)
            series.append(Series(label, look.colour, mark, points, line=True))
        elif strategy == "unconstrained" and measure == "error":
            level = own[0].error
            ends = [(budgets[0], level), (budgets[-1], level)]
            series.append(Series(label, GREY, "", ends, dash=True))
    return series


# --- Effect of C_p, cost of a step ---------------------------------------------------------------


def _clipping(found: Sequence[Mean]) -> dict[str, str]:
    """PF-LD over primal_norm, Figure 3 of Tran et al.; ε by line."""
    own = [
        (float(one.options.removeprefix("primal_norm=")), one)
        for one in found
        if one.strategy == "pf_ld" and one.options.startswith("primal_norm=")
    ]
    if not own:
        return {}
    shades = {0.5: ("#56b4e9", "triangle"), 1.0: ("#e69f00", "square")}
    panels = []
    for where in dict.fromkeys(one.where for _, one in own):
        here = [(norm, one) for norm, one in own if one.where == where]
        for measure in ("violation", "error"):
            series = []
            for epsilon in sorted({one.epsilon or 0.0 for _, one in here}):
                colour, mark = shades.get(epsilon, ("#009e73", "diamond"))
                points = sorted((n, getattr(o, measure)) for n, o in here if o.epsilon == epsilon)
                series.append(Series(f"PF-LD, ε = {epsilon:g}", colour, mark, points, line=True))
            floors = [one.floor for _, one in here]
            panels.append(
                Panel(
                    f"{_place(where)}, {_words(where[2])}", "C_p (log scale)", measure, series,
                    x_log=True, y_from_zero=measure == "violation",
                    x_ticks=sorted({norm for norm, _ in here}),
                    shade_y=sum(floors) / len(floors) if measure == "violation" else None,
                )
            )  # fmt: skip
    title = "PF-LD: effect of the primal clipping bound C_p"
    return {"benchmark-clipping": figure(title, panels, note=_NOTE, columns=2)}


# Tran et al., Table 1: seconds per epoch of N, F-LD, P, PF-LD by (layers, batch).
TABLE_1 = {
    (2, 16): (0.53, 0.60, 0.9, 1.0), (2, 64): (0.19, 0.25, 3.2, 3.3),
    (2, 256): (0.11, 0.16, 5.7, 5.7), (10, 16): (1.20, 1.30, 2.0, 2.1),
    (10, 64): (0.41, 0.47, 6.9, 7.0), (10, 256): (0.17, 0.20, 11.8, 11.8),
}  # fmt: skip


def _steps(steps: Mapping[str, Any]) -> str:
    """Ratios to the plain step: ours from `isonomy bench step --json`, theirs from Table 1."""
    kinds = (
        ("f_ld", 1, method("f_ld"), "F-LD"),
        ("opacus", 2, method("dp_sgd_penalty"), "DP-SGD (Opacus)"),
        ("pf_ld", 3, method("pf_ld"), "PF-LD"),
    )
    panels = []
    for layers in sorted({row["layers"] for row in steps["rows"]}):
        rows = sorted(
            (row for row in steps["rows"] if row["layers"] == layers), key=lambda row: row["batch"]
        )
        batches = [row["batch"] for row in rows]
        series = []
        for key, column, look, label in kinds:
            colour = GREY if key == "f_ld" else look.colour
            ours = [(row["batch"], row[f"{key}_ms"] / row["plain_ms"]) for row in rows]
            series.append(Series(f"{label}, here", colour, look.mark, ours, line=True))
            theirs = [
                (b, TABLE_1[layers, b][column] / TABLE_1[layers, b][0])
                for b in batches
                if (layers, b) in TABLE_1
            ]
            series.append(
                Series(f"{label}, published", colour, look.mark, theirs, hollow=True, line=True)
            )
        panels.append(
            Panel(
                f"{layers} hidden layers", "batch size (log scale)", "time over a plain step (log)",
                series, x_log=True, y_log=True, x_ticks=batches,
            )
        )  # fmt: skip
    return figure("Cost of a training step over a plain one (Bank)", panels, columns=2)


def _place(where: Where) -> str:
    return f"{where[0].replace('_', ' ')}, {where[1]}"


def _words(notion: str) -> str:
    return notion.replace("_", " ")


__all__ = ["TABLE_1", "draw"]
