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

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from isonomy.common.figures.figure import Figure
from isonomy.common.figures.panels import Level, Panel, Series
from isonomy.common.figures.style import GREY, SHADE
from isonomy.company.compare.benchmark._published import Rival
from isonomy.company.compare.benchmark._summary import Mean, front
from isonomy.company.compare.benchmark.methods import method, published_method

_NOTE = "filled: run here, means over seeds · hollow: published"
_FLOOR = "sampling noise: cannot be told from zero"
_LEAST = 5e-4  # violations below are drawn here: a logarithm has no zero
_C_P = "primal_norm="
Where = tuple[str, str, str]
SeriesOf = Callable[[str], list[Series]]


def draw(
    means: Sequence[Mean],
    published: Sequence[Rival] = (),
    steps: Mapping[str, Any] | None = None,
) -> dict[str, Figure]:
    """File name without ending → figure. Figures without data are left out."""
    plain = [mean for mean in means if not mean.options]
    figures: dict[str, Figure] = {}
    for notion in dict.fromkeys(mean.notion for mean in plain):
        of_notion = [mean for mean in plain if mean.notion == notion]
        name = notion.replace("_", "-")
        figures[f"benchmark-tradeoff-{name}"] = _all_sets(notion, of_notion, published)
        for where in _places(of_notion):
            budgets = _budgets(mean for mean in of_notion if mean.where == where)
            if len(budgets) > 1:
                figures[f"benchmark-tradeoff-{where[0]}-{name}"] = _all_budgets(
                    where, budgets, of_notion, published
                )
        figures |= _against_epsilon(notion, of_notion)
    figures |= _clipping(means)
    if steps is not None:
        figures["benchmark-steps"] = _steps(steps)
    return figures


def _places(means: Iterable[Mean]) -> list[Where]:
    return list(dict.fromkeys(mean.where for mean in means))


def _budgets(means: Iterable[Mean]) -> list[float]:
    return sorted({mean.epsilon for mean in means if mean.epsilon is not None})


def _floor(means: Sequence[Mean], axis: str) -> list[Level]:
    """The mean violation that sampling alone shows; nothing where nothing ran."""
    if not means:
        return []
    return [
        Level(sum(mean.floor for mean in means) / len(means), _FLOOR, axis, band=True, colour=SHADE)
    ]


# --- Error against violation ---------------------------------------------------------------------


def _all_sets(notion: str, means: Sequence[Mean], published: Sequence[Rival]) -> Figure:
    panels = [_trade_off(_place(where), where, 1.0, means, published) for where in _places(means)]
    title = f"Error against violation of {_words(notion)} at ε = 1"
    return Figure(title, panels, note=_NOTE)


def _all_budgets(
    where: Where,
    budgets: Sequence[float],
    means: Sequence[Mean],
    published: Sequence[Rival],
) -> Figure:
    panels = [_trade_off(f"ε = {e:g}", where, e, means, published) for e in budgets]
    title = f"{_place(where)}: error against violation of {_words(where[2])}"
    return Figure(title, panels, note=_NOTE)


def _trade_off(
    title: str,
    where: Where,
    epsilon: float,
    means: Sequence[Mean],
    published: Sequence[Rival],
) -> Panel:
    """A panel of error against violation: published points below those that ran here."""
    here = [mean for mean in means if mean.where == where and mean.epsilon in (None, epsilon)]
    points = [point for point in published if (point.where, point.epsilon) == (where, epsilon)]
    return Panel(
        title, "violation (log scale)", "error", [*_published(points), *_run_here(here)],
        x_log=True, y_span=0.03, levels=_floor(here, "x"),
    )  # fmt: skip


def _run_here(means: Iterable[Mean]) -> list[Series]:
    """A method on one base model is one series; several of its settings are joined to a front."""
    groups: dict[tuple[str, str], list[Mean]] = {}
    for mean in means:
        groups.setdefault((mean.strategy, mean.base), []).append(mean)
    series = []
    # Tilt is drawn last, so that nothing hides it.
    for (strategy, base), group in sorted(groups.items(), key=lambda item: item[1][0].is_tilt):
        look = method(strategy)
        label = f"{look.label}, {base}"
        points = [(max(mean.violation, _LEAST), mean.error) for mean in group]
        edge = front(points)
        if len(edge) > 1:
            series.append(Series("", look.colour, "", edge, line=True))
        texts = [_hover(label, mean) for mean in group]
        series.append(Series(label, look.colour, _mark_of(strategy, base), points, texts))
    return series


def _mark_of(strategy: str, base: str) -> str:
    """The method's mark on logistic models; under tilt other bases have marks of their own."""
    mark = method(strategy).mark
    return {"gbdt": "star", "mlp": "down"}.get(base, mark) if strategy == "tilt" else mark


def _published(points: Iterable[Rival]) -> list[Series]:
    groups: dict[str, list[Rival]] = {}
    for point in points:
        groups.setdefault(point.method, []).append(point)
    series = []
    for name, group in groups.items():
        look = published_method(name)
        placed = sorted((max(point.violation, _LEAST), point.error) for point in group)
        texts = [f"{look.label}: error {error:.4f} @ {v:.4f}" for v, error in placed]
        series.append(
            Series(look.label, look.colour, look.mark, placed, texts, hollow=True, line=True)
        )
    return series


def _hover(label: str, mean: Mean) -> str:
    budget = "no budget" if mean.epsilon is None else f"ε = {mean.epsilon:g}"
    return (
        f"{label}, {budget}, tolerance {mean.tolerance:g}: error {mean.error:.4f} "
        f"@ {mean.violation:.4f}, {mean.seeds} seeds"
    )


# --- Against ε, and against C_p ------------------------------------------------------------------


def _two_panels(
    title: str, x_label: str, ticks: Sequence[float], floor: Sequence[Level], series: SeriesOf
) -> list[Panel]:
    """Violation and error over the same numbers, side by side; `series` makes both."""
    return [
        Panel(
            title, x_label, measure, series(measure), x_log=True, x_ticks=ticks,
            y_from_zero=measure == "violation", levels=floor if measure == "violation" else (),
        )
        for measure in ("violation", "error")
    ]  # fmt: skip


def _against_epsilon(notion: str, means: Sequence[Mean]) -> dict[str, Figure]:
    panels = []
    for where in _places(means):
        here = [mean for mean in means if mean.where == where and mean.tolerance == 0.01]
        budgets = _budgets(here)
        if len(budgets) > 1:
            series = partial(_sweeps, here, budgets)
            panels += _two_panels(
                _place(where), "ε (log scale)", budgets, _floor(here, "y"), series
            )
    if not panels:
        return {}
    title = f"{_words(notion).capitalize()}: violation and error against ε"
    name = f"benchmark-epsilon-{notion.replace('_', '-')}"
    return {name: Figure(title, panels, note=_NOTE)}


def _sweeps(here: Sequence[Mean], budgets: Sequence[float], measure: str) -> list[Series]:
    series = []
    for strategy, base in dict.fromkeys((mean.strategy, mean.base) for mean in here):
        look = method(strategy)
        group = [mean for mean in here if (mean.strategy, mean.base) == (strategy, base)]
        label = f"{look.label}, {base}"
        if look.private:
            points = sorted((m.epsilon, getattr(m, measure)) for m in group if m.epsilon)
            mark = _mark_of(strategy, base)
            series.append(Series(label, look.colour, mark, points, line=True))
        elif strategy == "unconstrained" and measure == "error":
            ends = [(budgets[0], group[0].error), (budgets[-1], group[0].error)]
            series.append(Series(label, GREY, "", ends, dash=True))
    return series


def _clipping(means: Sequence[Mean]) -> dict[str, Figure]:
    """PF-LD over primal_norm, Figure 3 of Tran et al.; ε by line."""
    swept = [mean for mean in means if mean.strategy == "pf_ld" and _C_P in mean.options]
    panels = []
    for where in _places(swept):
        here = [mean for mean in swept if mean.where == where]
        norms = sorted({_norm(mean) for mean in here})
        title = f"{_place(where)}, {_words(where[2])}"
        series = partial(_by_norm, here)
        panels += _two_panels(title, "C_p (log scale)", norms, _floor(here, "y"), series)
    title = "PF-LD: effect of the primal clipping bound C_p"
    return {"benchmark-clipping": Figure(title, panels, note=_NOTE)} if panels else {}


def _norm(mean: Mean) -> float:
    return float(mean.options.removeprefix(_C_P))


def _by_norm(here: Sequence[Mean], measure: str) -> list[Series]:
    looks = {0.5: ("#56b4e9", "triangle"), 1.0: ("#e69f00", "square")}
    series = []
    for epsilon in _budgets(here):
        colour, mark = looks.get(epsilon, ("#009e73", "diamond"))
        points = sorted((_norm(m), getattr(m, measure)) for m in here if m.epsilon == epsilon)
        series.append(Series(f"PF-LD, ε = {epsilon:g}", colour, mark, points, line=True))
    return series


# --- Cost of a step ------------------------------------------------------------------------------

# Tran et al., Table 1: seconds per epoch of N, F-LD, P, PF-LD by (layers, batch).
TABLE_1 = {
    (2, 16): (0.53, 0.60, 0.9, 1.0), (2, 64): (0.19, 0.25, 3.2, 3.3),
    (2, 256): (0.11, 0.16, 5.7, 5.7), (10, 16): (1.20, 1.30, 2.0, 2.1),
    (10, 64): (0.41, 0.47, 6.9, 7.0), (10, 256): (0.17, 0.20, 11.8, 11.8),
}  # fmt: skip


def _steps(steps: Mapping[str, Any]) -> Figure:
    """Ratios to the plain step: run here (`isonomy bench step --json`), and in Table 1."""
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
            here = [(row["batch"], row[f"{key}_ms"] / row["plain_ms"]) for row in rows]
            series.append(Series(f"{label}, here", colour, look.mark, here, line=True))
            table_1 = [
                (b, TABLE_1[layers, b][column] / TABLE_1[layers, b][0])
                for b in batches
                if (layers, b) in TABLE_1
            ]
            series.append(
                Series(f"{label}, published", colour, look.mark, table_1, hollow=True, line=True)
            )
        panels.append(
            Panel(
                f"{layers} hidden layers", "batch size (log scale)", "time over a plain step (log)",
                series, x_log=True, y_log=True, x_ticks=batches,
            )
        )  # fmt: skip
    return Figure("Cost of a training step over a plain one (Bank)", panels)


def _place(where: Where) -> str:
    return f"{where[0].replace('_', ' ')}, {where[1]}"


def _words(notion: str) -> str:
    return notion.replace("_", " ")
