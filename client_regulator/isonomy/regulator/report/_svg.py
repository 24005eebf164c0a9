"""Plots of a report as inline SVG: light, sharp in print, no script, no network.

Series differ by colour *and* by marker, so that a reader can tell them apart in grey and
without seeing colours. The colours are the page's (base.html.j2), which has others for dark
screens. Shapes and escaping are in common/figures/shapes.
"""

from __future__ import annotations

import math
import textwrap
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from isonomy.common.figures.shapes import attribute, box, line, marker, text

WIDTH = 460
COLOURS = tuple(f"var(--series-{number})" for number in range(8))
_PAPER, _GRID, _LINE = "var(--paper)", "var(--grid)", "var(--label)"
_MARKERS = ("circle", "square", "diamond", "triangle")
_ROW, _SERIES_GAP, _TOP, _BOTTOM, _LINE_HEIGHT = 26, 15, 8, 34, 15
_PLOT_START, _PLOT_MARGIN = 122, 24  # row names stand before it
_BAR_START, _BAR_MARGIN = 185, 75
MOST_ROWS = 18  # of one drawing


@dataclass(frozen=True)
class Mark:
    """A value with its limits."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class IntervalSeries:
    """One colour of a plot: a mark per row, None where there is none."""

    name: str
    marks: Sequence[Mark | None]


def intervals(
    rows: Sequence[str],
    series: Sequence[IntervalSeries],
    *,
    limits: Sequence[float | None] = (),
    unit: str = " %",
) -> str:
    """Horizontal intervals: one row per group, one mark per series. Empty if there is no mark.

    `limits`, one for each row, are dashed lines. `unit` stands behind the axis' numbers.
    """
    marks = [m for s in series for m in s.marks if m is not None]
    if not marks:
        return ""
    axis = _axis([*marks, *(Mark(at, at, at) for at in limits if at is not None)])
    drawings = []
    for start in range(0, len(rows), MOST_ROWS):  # what is taller than a sheet cannot be printed
        part = slice(start, start + MOST_ROWS)
        cut = [IntervalSeries(one.name, one.marks[part]) for one in series]
        drawings.append(_rows(rows[part], cut, limits[part], axis, unit))
    return "".join(drawings)


def _rows(
    rows: Sequence[str],
    series: Sequence[IntervalSeries],
    limits: Sequence[float | None],
    axis: tuple[float, float, float],
    unit: str,
) -> str:
    """One drawing of `intervals`: its rows over an axis."""
    low, high, _ = axis
    longest = max(len(_lines(label, _PLOT_START)) for label in rows)
    height_of_row = max(_ROW, _SERIES_GAP * len(series) + 12, _LINE_HEIGHT * longest + 8)
    height = _TOP + height_of_row * len(rows) + _BOTTOM

    def x(value: float) -> float:
        return _PLOT_START + (WIDTH - _PLOT_START - _PLOT_MARGIN) * (value - low) / (high - low)

    body = [_grid(axis, x, height, unit)]
    for number, label in enumerate(rows):
        middle = _TOP + height_of_row * (number + 0.5)
        body.append(_label(label, middle))
        limit = limits[number] if limits else None
        if limit is not None:
            ends = (middle - height_of_row / 2, middle + height_of_row / 2)
            body.append(line(x(limit), ends[0], x(limit), ends[1], _LINE, width=2, dashed=True))
        for place, one in enumerate(series):
            mark = one.marks[number]
            if mark is not None:
                y = middle + (place - (len(series) - 1) / 2) * _SERIES_GAP
                body.append(_interval(x(mark.low), x(mark.value), x(mark.high), y, place))
    names = "; ".join(one.name for one in series)
    return _svg(height, f"Intervals by group: {names}", body)


def legend(names: Sequence[str]) -> str:
    """What the colours and markers mean."""
    items = [
        f'<span class="key"><svg width="16" height="14" viewBox="0 0 16 14" aria-hidden="true">'
        f"{_marker(8, 7, place)}</svg>{escape(name)}</span>"
        for place, name in enumerate(names)
    ]
    return f'<p class="legend">{"".join(items)}</p>'


def bars(rows: Sequence[tuple[str, float, str]], *, limit: float | None = None) -> str:
    """Horizontal bars with a text at their end; `limit` is a dashed line."""
    if not rows:
        return ""
    most = max([value for _, value, _ in rows] + ([limit] if limit else [])) or 1.0
    longest = max(len(_lines(label, _BAR_START)) for label, _, _ in rows)
    height_of_row = max(_ROW, _LINE_HEIGHT * longest + 8)
    height = _TOP + height_of_row * len(rows) + 10
    width = WIDTH - _BAR_START - _BAR_MARGIN

    body = []
    for number, (label, value, end) in enumerate(rows):
        middle = _TOP + height_of_row * (number + 0.5)
        length = width * max(value, 0.0) / most
        body.append(_label(label, middle, _BAR_START))
        body.append(box(_BAR_START, middle - 7, length, 14, COLOURS[1]))
        body.append(text(WIDTH, middle + 4, end, anchor="end"))
    if limit is not None:
        at = _BAR_START + width * limit / most
        body.append(line(at, _TOP, at, height - 10, _LINE, dashed=True))
    return _svg(height, "Bars", body)


def _axis(marks: Sequence[Mark]) -> tuple[float, float, float]:
    """Ends and step of an axis that shows all marks, and zero if it is near."""
    low, high = min(mark.low for mark in marks), max(mark.high for mark in marks)
    if low < 0.5 * high or low < 0.15:
        low = min(low, 0.0)
    spread = max(high - low, 0.01, 1e-6 * abs(high))  # an axis has a length, whatever the numbers
    top = 1.0 if high <= 1.0 else high
    steps = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
    step = next((s for s in steps if spread / s <= 6), max(0.25, spread / 8))  # never many lines
    last = math.ceil(high / step - 1e-9) * step
    first = math.floor(low / step + 1e-9) * step
    return first, max(min(last, max(top, low + step)), first + step), step


def _grid(
    axis: tuple[float, float, float], x: Callable[[float], float], height: float, unit: str
) -> str:
    low, high, step = axis
    parts = []
    for number in range(round((high - low) / step) + 1):
        value = low + number * step
        parts.append(line(x(value), _TOP, x(value), height - _BOTTOM, _GRID))
        digits = 0 if step >= 0.01 else 1
        number_words = f"{100 * value:.{digits}f}{unit}"
        parts.append(text(x(value), height - _BOTTOM + 18, number_words, anchor="middle"))
    return "".join(parts)


def _interval(low: float, value: float, high: float, y: float, place: int) -> str:
    colour = COLOURS[place % len(COLOURS)]
    whisker = line(low, y, high, y, colour, width=2)
    ends = line(low, y - 4, low, y + 4, colour) + line(high, y - 4, high, y + 4, colour)
    return whisker + ends + _marker(value, y, place)


def _marker(x: float, y: float, place: int) -> str:
    shape, colour = _MARKERS[place % len(_MARKERS)], COLOURS[place % len(COLOURS)]
    return marker(x, y, shape, colour, paper=_PAPER)


def _label(name: str, middle: float, right: float = _PLOT_START) -> str:
    """A row's name, in as many lines as it needs; the whole name is its tooltip."""
    lines = _lines(name, right)
    first = middle + 4 - _LINE_HEIGHT * (len(lines) - 1) / 2
    return "".join(
        text(right - 10, first + _LINE_HEIGHT * number, part, anchor="end", tip=name)
        for number, part in enumerate(lines)
    )


def _lines(name: str, right: float) -> list[str]:
    """A name broken at blanks to what fits before a plot, in at most three lines.

    Of a longer intersection every part keeps two lines, so that the rows of a plot stay distinct.
    """
    fits = (right - 10) / 8.0  # pixels of a letter, in a wide font
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in name) / max(len(name), 1)
    width, parts = round(fits / (1 + wide)), name.replace(" × ", "\0× ").split("\0")
    most = 3 if len(parts) == 1 else 2
    lines = textwrap.wrap(name, width)
    if len(lines) > 3:
        cut = [textwrap.wrap(part, width, max_lines=most, placeholder="…") for part in parts]
        lines = [line for part in cut for line in part]
    return lines or [name]


def _svg(height: float, title: str, body: Sequence[str]) -> str:
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{attribute(title)}">{"".join(body)}</svg>'
    )
