"""Panels of points and lines as a static SVG: nothing to install, nothing to run, small diffs.

A figure is a grid of panels over one shared legend. Hovering a mark shows its text in a browser.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from isonomy.common.report.svg import attribute, box, line, marker, path, text

WIDTH, HEIGHT = 400, 300  # of a panel's plotting area and its margins
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 58, 12, 30, 44
INK, GRID, SHADE = "#222222", "#e3e6ea", "#d9dde2"
_LEGEND_COLUMN, _LEGEND_ROW = 260, 20
_NOISE = "sampling noise floor"


@dataclass(frozen=True)
class Series:
    """Points of one method. `hollow`: published; `line`: joined in order; `dash`: a reference.

    Without a label it is not in the legend.
    """

    label: str
    colour: str
    mark: str
    points: Sequence[tuple[float, float]]
    texts: Sequence[str] = ()
    hollow: bool = False
    line: bool = False
    dash: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes. `shade`: violations below it are sampling noise; `shade_y` by height."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    x_log: bool = False
    y_log: bool = False
    y_from_zero: bool = False
    y_span: float = 0.0  # the least range, so that a difference of .001 does not look large
    shade: float | None = None
    shade_y: float | None = None
    x_ticks: Sequence[float] = field(default=())


def figure(title: str, panels: Sequence[Panel], *, note: str = "", columns: int = 2) -> str:
    """The panels in rows, the legend of all of them below."""
    columns = min(columns, max(len(panels), 1))
    rows = -(-len(panels) // columns)
    named = {one.label: one for panel in panels for one in panel.series if one.label}
    legend = list(named.values())
    per_row = max(1, columns * WIDTH // _LEGEND_COLUMN)
    width = columns * WIDTH + 16
    legend_top = 44 + rows * HEIGHT + 8
    height = legend_top + -(-len(legend) // per_row) * _LEGEND_ROW + (26 if note else 8)
    body = [
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        text(width / 2, 26, title, size=16, anchor="middle", weight="600"),
    ]
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        body += _panel(panel, 8 + column * WIDTH, 40 + row * HEIGHT)
    for number, one in enumerate(legend):
        row, column = divmod(number, per_row)
        x, y = 30 + column * _LEGEND_COLUMN, legend_top + 8 + row * _LEGEND_ROW
        if one.line or one.dash:
            body.append(_joined([(x - 12, y), (x + 12, y)], one))
        if one.mark:
            body.append(_mark(x, y, one))
        body.append(text(x + 20, y + 4.5, one.label, size=12.5))
    if note:
        body.append(text(16, height - 8, note, size=11.5, colour="#555555"))
    inside = "\n".join(body)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="Helvetica, Arial, sans-serif" '
        f'fill="{INK}" '
        f'role="img" aria-label="{attribute(title)}">\n{inside}\n</svg>\n'
    )


# --- A panel -----------------------------------------------------------------------------------


def _panel(panel: Panel, left: float, top: float) -> list[str]:
    """The SVG elements of one panel, its upper left corner at (left, top)."""
    points = [point for one in panel.series for point in one.points]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    if panel.shade is not None:
        xs.append(panel.shade)
    if ys and (lacking := panel.y_span - (max(ys) - min(ys))) > 0:
        ys += [min(ys) - lacking / 2, max(ys) + lacking / 2]
    x_low, x_high = _range(xs, panel.x_log, False)
    y_low, y_high = _range(ys, panel.y_log, panel.y_from_zero)
    x0, x1 = left + MARGIN_LEFT, left + WIDTH - MARGIN_RIGHT
    y0, y1 = top + HEIGHT - MARGIN_BOTTOM, top + MARGIN_TOP
    at_x = _scale(x_low, x_high, x0, x1, panel.x_log)
    at_y = _scale(y_low, y_high, y0, y1, panel.y_log)
    out = [text((x0 + x1) / 2, top + 20, panel.title, size=13.5, anchor="middle", weight="600")]
    if panel.shade is not None:
        right = min(max(at_x(panel.shade), x0), x1)
        out.append(box(x0, y1, right - x0, y0 - y1, SHADE, tip=_NOISE))
    if panel.shade_y is not None:
        upper = min(max(at_y(panel.shade_y), y1), y0)
        out.append(box(x0, upper, x1 - x0, y0 - upper, SHADE, tip=_NOISE))
    for tick in _ticks(y_low, y_high, panel.y_log):
        out.append(line(x0, at_y(tick), x1, at_y(tick), GRID))
        out.append(text(x0 - 6, at_y(tick) + 4, f"{tick:g}", size=11, anchor="end"))
    for tick in panel.x_ticks or _ticks(x_low, x_high, panel.x_log):
        out.append(line(at_x(tick), y0, at_x(tick), y0 + 4, INK))
        out.append(text(at_x(tick), y0 + 17, f"{tick:g}", size=11, anchor="middle"))
    out += [line(x0, y0, x1, y0, INK), line(x0, y0, x0, y1, INK)]
    out.append(text((x0 + x1) / 2, y0 + 34, panel.x_label, size=12, anchor="middle"))
    middle = (y0 + y1) / 2
    out.append(text(left + 13, middle, panel.y_label, size=12, anchor="middle", turned=True))
    for one in panel.series:
        placed = [(at_x(x), at_y(y)) for x, y in one.points]
        if (one.line or one.dash) and len(placed) > 1:
            out.append(_joined(placed, one))
        if one.mark:
            texts = one.texts or [one.label] * len(placed)
            out += [_mark(x, y, one, t) for (x, y), t in zip(placed, texts, strict=True)]
    return out


def _range(values: Sequence[float], log: bool, from_zero: bool) -> tuple[float, float]:
    if not values:
        return (0.1, 10.0) if log else (0.0, 1.0)
    low, high = min(values), max(values)
    if log:
        return low / 1.35, high * 1.35
    room = 0.07 * (high - (0.0 if from_zero else low)) or 0.05 * abs(high) or 1.0
    return (0.0 if from_zero else low - room), high + room


def _scale(
    low: float, high: float, start: float, end: float, log: bool
) -> Callable[[float], float]:
    if log:
        low, high = math.log(low), math.log(high)
    return lambda value: (
        start + ((math.log(value) if log else value) - low) / (high - low) * (end - start)
    )


def _ticks(low: float, high: float, log: bool) -> list[float]:
    """Four to eight round numbers within the range."""
    if log:
        exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        wide = math.log10(high / low) > 2.5
        steps = (1.0,) if wide else (1.0, 2.0, 5.0)
        return [t for e in exponents for s in steps if low <= (t := float(f"{s}e{e}")) <= high]
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def _mark(x: float, y: float, one: Series, tip: str = "") -> str:
    return marker(x, y, one.mark, one.colour, hollow=one.hollow, tip=tip)


def _joined(points: Sequence[tuple[float, float]], one: Series) -> str:
    return path(points, one.colour, dashed=one.dash or one.hollow)
