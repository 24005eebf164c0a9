"""Plots of a report as inline SVG: light, sharp in print, no script, no network.

Series differ by colour *and* by marker, so that they are told apart in grey and by everybody.
Every text goes through `escape`; numbers are formatted here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 460
COLOURS = ("#b5482f", "#1f4e79", "#5d7a3a", "#7a4d8c", "#6b6b6b", "#8a6d1c", "#2f7f86", "#333333")
_MARKERS = ("circle", "square", "diamond", "triangle")
_ROW, _SERIES_GAP, _LEFT, _RIGHT, _TOP, _BOTTOM = 26, 15, 122, 24, 8, 34
_BAR_LEFT, _BAR_RIGHT = 185, 75


@dataclass(frozen=True)
class Mark:
    """A value with its limits."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Series:
    """One colour of a plot: a mark per row, None where there is none."""

    name: str
    marks: Sequence[Mark | None]


def intervals(rows: Sequence[str], series: Sequence[Series], *, line: float | None = None) -> str:
    """Horizontal intervals: one row per group, one mark per series; an optional dashed line."""
    marks = [m for s in series for m in s.marks if m is not None]
    if not marks:
        return ""
    low, high, step = _axis(marks, line)
    height_of_row = max(_ROW, _SERIES_GAP * len(series) + 12)
    height = _TOP + height_of_row * len(rows) + _BOTTOM

    def x(value: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * (value - low) / (high - low)

    body = [_grid(low, high, step, x, height)]
    if line is not None and low <= line <= high:
        body.append(_line(x(line), _TOP, x(line), height - _BOTTOM, "#444", dash="5 4"))
    for number, label in enumerate(rows):
        middle = _TOP + height_of_row * (number + 0.5)
        body.append(_label(label, middle))
        for place, own in enumerate(series):
            mark = own.marks[number]
            if mark is not None:
                y = middle + (place - (len(series) - 1) / 2) * _SERIES_GAP
                body.append(_interval(x(mark.low), x(mark.value), x(mark.high), y, place))
    names = "; ".join(own.name for own in series)
    return _svg(height, f"Intervals by group: {names}", body)


def legend(names: Sequence[str]) -> str:
    """What the colours and markers mean."""
    items = [
        f'<span class="key"><svg width="16" height="14" viewBox="0 0 16 14" aria-hidden="true">'
        f"{_marker(8, 7, place)}</svg>{escape(name)}</span>"
        for place, name in enumerate(names)
    ]
    return f'<p class="legend">{"".join(items)}</p>'


def curve(
    points: Sequence[tuple[Mark, float]], *, x_title: str, y_title: str, special: int | None
) -> str:
    """Points joined by a line, with horizontal intervals; `special` is drawn apart (not joined)."""
    if not points:
        return ""
    xs = [mark for mark, _ in points]
    low, high, step = _axis(xs, None)
    bottom, top = min(y for _, y in points), max(y for _, y in points)
    pad = max((top - bottom) * 0.1, 1e-4)
    bottom, top = bottom - pad, top + pad
    height = 260

    def x(value: float) -> float:
        return 70 + (WIDTH - 70 - _RIGHT) * (value - low) / (high - low)

    def y(value: float) -> float:
        return height - 52 - (height - 52 - _TOP) * (value - bottom) / (top - bottom)

    body = [_grid(low, high, step, x, height - 18)]
    for tick in (bottom + pad, (bottom + top) / 2, top - pad):
        body.append(_text(62, y(tick) + 4, f"{100 * tick:.2f} %", anchor="end"))
    body.append(_text(WIDTH / 2, height - 4, x_title, anchor="middle"))
    body.append(_text(4, 12, y_title))
    joined = [own for number, own in enumerate(points) if number != special]
    path = " ".join(f"{x(mark.value):.1f},{y(value):.1f}" for mark, value in joined)
    body.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[1]}" stroke-width="1.2"/>')
    for number, (mark, value) in enumerate(points):
        place = 0 if number == special else 1
        body.append(_interval(x(mark.low), x(mark.value), x(mark.high), y(value), place))
    return _svg(height, f"{y_title} against {x_title}", body)


def bars(rows: Sequence[tuple[str, float, str]], *, limit: float | None = None) -> str:
    """Horizontal bars with a text at their end; `limit` is a dashed line."""
    if not rows:
        return ""
    most = max([value for _, value, _ in rows] + ([limit] if limit else [])) or 1.0
    height = _TOP + _ROW * len(rows) + 10
    width = WIDTH - _BAR_LEFT - _BAR_RIGHT

    body = []
    for number, (label, value, text) in enumerate(rows):
        middle = _TOP + _ROW * (number + 0.5)
        length = width * max(value, 0.0) / most
        body.append(_label(label, middle, _BAR_LEFT))
        body.append(
            f'<rect x="{_BAR_LEFT}" y="{middle - 7:.1f}" width="{length:.1f}" height="14" '
            f'fill="{COLOURS[1]}"/>'
        )
        body.append(_text(WIDTH, middle + 4, text, anchor="end"))
    if limit is not None:
        at = _BAR_LEFT + width * limit / most
        body.append(_line(at, _TOP, at, height - 10, "#444", dash="5 4"))
    return _svg(height, "Bars", body)


def _axis(marks: Sequence[Mark], line: float | None) -> tuple[float, float, float]:
    """Ends and step of an axis that shows all marks, and zero if it is near."""
    values = [v for m in marks for v in (m.low, m.high)] + ([line] if line is not None else [])
    low, high = min(values), max(values)
    if low < 0.5 * high or low < 0.15:
        low = min(low, 0.0)
    spread = max(high - low, 0.01)
    top = 1.0 if high <= 1.0 else high
    step = next(
        (s for s in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2) if spread / s <= 6), 0.25
    )
    last = math.ceil(high / step - 1e-9) * step
    return math.floor(low / step + 1e-9) * step, min(last, max(top, low + step)), step


def _grid(low: float, high: float, step: float, x: Callable[[float], float], height: float) -> str:
    parts = []
    for number in range(round((high - low) / step) + 1):
        value = low + number * step
        parts.append(_line(x(value), _TOP, x(value), height - _BOTTOM, "#dddddd"))
        digits = 0 if step >= 0.01 else 1
        parts.append(
            _text(x(value), height - _BOTTOM + 18, f"{100 * value:.{digits}f} %", anchor="middle")
        )
    return "".join(parts)


def _interval(low: float, value: float, high: float, y: float, place: int) -> str:
    colour = COLOURS[place % len(COLOURS)]
    whisker = _line(low, y, high, y, colour, width=2)
    ends = _line(low, y - 4, low, y + 4, colour) + _line(high, y - 4, high, y + 4, colour)
    return whisker + ends + _marker(value, y, place)


def _marker(x: float, y: float, place: int) -> str:
    colour = COLOURS[place % len(COLOURS)]
    kind = _MARKERS[place % len(_MARKERS)]
    if kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.6" fill="{colour}"/>'
    if kind == "square":
        return (
            f'<rect x="{x - 4.2:.1f}" y="{y - 4.2:.1f}" width="8.4" height="8.4" fill="{colour}"/>'
        )
    corners = [(0.0, -5.4), (5.4, 0.0), (0.0, 5.4), (-5.4, 0.0)]
    if kind == "triangle":
        corners = [(0.0, -5.4), (5.2, 4.2), (-5.2, 4.2)]
    path = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{path}" fill="{colour}"/>'


def _label(text: str, middle: float, left: float = _LEFT) -> str:
    """A row's name, shortened to what fits; the whole name is its tooltip."""
    fits = round((left - 10) / 6.8)
    short = text if len(text) <= fits else text[: fits - 1] + "…"
    return (
        f'<text x="{left - 10}" y="{middle + 4:.1f}" text-anchor="end">'
        f"<title>{escape(text)}</title>{escape(short)}</text>"
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(
    x1: float, y1: float, x2: float, y2: float, colour: str, *, width: float = 1, dash: str = ""
) -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        f'stroke-width="{width}"{dashed}/>'
    )


def _svg(height: float, title: str, body: Sequence[str]) -> str:
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(title, quote=True)}">{"".join(body)}</svg>'
    )
