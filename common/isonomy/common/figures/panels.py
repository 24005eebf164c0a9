"""One pair of axes with points, lines, intervals, bands and rows, as SVG.

An axis shows all data, intervals and levels. Numbers that are not finite or absurdly large, and on
a logarithmic axis numbers that are not positive, have no place and are left out. Hovering a
mark shows its text.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from isonomy.common.figures.shapes import attribute, box, line, marker, path, text
from isonomy.common.figures.style import GREY, GRID, INK, SOFT

WIDTH = 420
_PLOT_HEIGHT = 236
_LEFT, _RIGHT, _BOTTOM, _LINE = 60, 16, 46, 17  # margins, and the height of a line of text
_ROW, _NAMES = 40, 150  # height of a row, and the most that its name may take
_TITLE, _LABEL, _TICK = 14.0, 12.5, 12.0  # sizes of text

_LEAST, _MOST = 1e-15, 1e15  # what an axis can show; beyond it, arithmetic would fail

Limits = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """Points of one colour and mark. `line`: joined in order; `dash`: a line without weight.

    `hollow`: published, or single runs. `x_limits`, `y_limits`: an interval per point. Without a
    label it is not in the legend.
    """

    label: str
    colour: str
    mark: str
    points: Sequence[tuple[float, float]]
    texts: Sequence[str] = ()
    hollow: bool = False
    line: bool = False
    dash: bool = False
    x_limits: Sequence[Limits | None] = ()
    y_limits: Sequence[Limits | None] = ()

    def __post_init__(self) -> None:
        for each in (self.texts, self.x_limits, self.y_limits):
            if each and len(each) != len(self.points):
                raise ValueError(f"{len(self.points)} points, but {len(each)} texts or intervals")


@dataclass(frozen=True)
class Level:
    """A value that divides an axis: a dashed line, or (`band`) everything below it in a colour."""

    value: float
    label: str
    axis: str = "x"
    band: bool = False
    colour: str = GREY


@dataclass(frozen=True)
class Panel:
    """One pair of axes. With `rows` the heights of points are numbers of rows, from the top.

    `row_notes` stand in a row that has no mark; `message` stands where there is nothing to draw.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    x_log: bool = False
    y_log: bool = False
    x_from_zero: bool = False
    y_from_zero: bool = False
    x_span: float = 0.0  # the least range, so that a difference of .001 does not look large
    y_span: float = 0.0
    x_within: Limits | None = None  # what the axis cannot pass, such as 0 and 100 %
    levels: Sequence[Level] = ()
    x_ticks: Sequence[float] = field(default=())
    rows: Sequence[str] = ()
    row_notes: Mapping[int, str] = field(default_factory=dict)
    message: str = ""


@dataclass(frozen=True)
class Drawing:
    """SVG elements and the room that they take."""

    width: float
    height: float
    elements: Sequence[str]

    def svg(self, label: str, *, head: str = "", sized: bool = False) -> str:
        """A whole SVG text. `sized`: it asks for its natural size instead of what is there."""
        size = f' width="{self.width:.0f}" height="{self.height:.0f}"' if sized else ""
        inside = "\n".join(self.elements)
        return (
            f'<svg class="drawing" xmlns="http://www.w3.org/2000/svg" '
            f'viewBox="0 0 {self.width:.0f} {self.height:.0f}"{size} '
            f'font-family="Helvetica, Arial, sans-serif" fill="{INK}" '
            f'role="img" aria-label="{attribute(label)}">{head}\n{inside}\n</svg>\n'
        )


# --- Text ----------------------------------------------------------------------------------------


def width_of(content: str, size: float) -> float:
    """About how wide a text is. Chinese, Japanese and Korean signs are square."""
    wide = sum(unicodedata.east_asian_width(sign) in "WF" for sign in content)
    return size * (0.56 * len(content) + 0.44 * wide)


def wrapped(content: str, size: float, room: float) -> list[str]:
    """Lines that fit into `room`; a word that is longer than a line is cut."""
    lines = [""]
    for word in re.split(r"[ \t\n\r]+", content.strip()):  # not at a non-breaking space
        rest = word
        while rest:
            joined = f"{lines[-1]} {rest}" if lines[-1] else rest
            if width_of(joined, size) <= room:
                lines[-1], rest = joined, ""
            elif lines[-1]:
                lines.append("")
            else:
                fits = 1
                while width_of(rest[: fits + 1], size) <= room:
                    fits += 1
                lines[-1], rest = rest[:fits], rest[fits:]
    return lines


def shortened(content: str, size: float, room: float, most: int = 2) -> list[str]:
    """At most so many lines; of a longer text the middle is left out: names differ at the ends."""
    lines = wrapped(content, size, room)
    half = min(len(content) // 2, round(most * room / size) + 1)  # more cannot fit
    while len(lines) > most:
        half -= 1
        lines = wrapped(f"{content[:half].rstrip()}…{content[-half:].lstrip()}", size, room)
    return lines


def lines_of(x: float, y: float, lines: Sequence[str], size: float, **look: str) -> list[str]:
    """Lines of text below each other, the first with its foot at y."""
    return [
        text(x, y + number * _LINE, content, size=size, **look)  # type: ignore[arg-type]
        for number, content in enumerate(lines)
    ]


# --- A panel -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Axes:
    """The rectangle of the data, and where a value lies in it."""

    x0: float
    x1: float
    y0: float  # the foot
    y1: float
    x_range: Limits
    y_range: Limits
    at_x: Callable[[float], float]
    at_y: Callable[[float], float]


def draw(panel: Panel) -> Drawing:
    """The panel as a drawing of the usual width."""
    title = wrapped(panel.title, _TITLE, WIDTH - 16) if panel.title else []
    names = max((width_of(name, _LABEL) for name in panel.rows), default=0.0)
    left = min(names, _NAMES) + 16 if panel.rows else _LEFT
    top = len(title) * _LINE + 10
    height = len(panel.rows) * _ROW if panel.rows else _PLOT_HEIGHT
    axes = _axes(panel, left, top, height)
    elements = lines_of(WIDTH / 2, 17, title, _TITLE, anchor="middle", weight="600")
    elements += _levels(panel, axes)
    elements += _ticks_and_names(panel, axes, left)
    for one in panel.series:
        elements += _series(one, panel, axes)
    if panel.message:
        lines = wrapped(panel.message, _LABEL, axes.x1 - axes.x0 - 20)
        middle = (axes.x0 + axes.x1) / 2
        foot = (axes.y0 + axes.y1) / 2 - _LINE * (len(lines) - 1) / 2
        elements += lines_of(middle, foot, lines, _LABEL, anchor="middle", colour=SOFT)
    return Drawing(WIDTH, top + height + _BOTTOM, elements)


def key(entry: Series | Level, x: float, y: float) -> list[str]:
    """What the legend shows of an entry, around a point."""
    if isinstance(entry, Level):
        if entry.band:
            return [box(x - 12, y - 6, 24, 12, entry.colour)]
        return [line(x - 12, y, x + 12, y, entry.colour, width=2, dashed=True)]
    elements = []
    if entry.line or entry.dash:
        elements.append(_joined([(x - 12, y), (x + 12, y)], entry))
    if entry.mark:
        elements.append(_mark(x, y, entry))
    return elements


def _axes(panel: Panel, left: float, top: float, height: float) -> _Axes:
    """Ranges that hold every point, interval and level."""
    xs = [x for one in panel.series for x, _ in one.points]
    ys = [y for one in panel.series for _, y in one.points]
    xs += [limit for one in panel.series for pair in one.x_limits if pair for limit in pair]
    ys += [limit for one in panel.series for pair in one.y_limits if pair for limit in pair]
    xs += [level.value for level in panel.levels if level.axis == "x"]
    ys += [level.value for level in panel.levels if level.axis == "y"]
    xs = [x for x in xs if _has_place(x, panel.x_log)]
    ys = [y for y in ys if _has_place(y, panel.y_log)]
    for values, span in ((xs, panel.x_span), (ys, panel.y_span)):
        if values and (lacking := span - (max(values) - min(values))) > 0:
            values += [min(values) - lacking / 2, max(values) + lacking / 2]
    x_range = _range(xs, panel.x_log, panel.x_from_zero)
    if panel.x_within is not None:
        x_range = (_inside(x_range[0], panel.x_within), _inside(x_range[1], panel.x_within))
    y_range = _range(ys, panel.y_log, panel.y_from_zero)
    if panel.rows:
        y_range = (len(panel.rows) - 0.5, -0.5)  # the first row is the uppermost
    x0, x1, y0, y1 = left, WIDTH - _RIGHT, top + height, top
    return _Axes(
        x0, x1, y0, y1, x_range, y_range,
        _scale(*x_range, x0, x1, panel.x_log), _scale(*y_range, y0, y1, panel.y_log),
    )  # fmt: skip


def _levels(panel: Panel, axes: _Axes) -> list[str]:
    """Bands first, so that lines are seen on them."""
    elements = []
    for level in sorted(panel.levels, key=lambda level: not level.band):
        across = level.axis == "x"
        if not _has_place(level.value, panel.x_log if across else panel.y_log):
            continue
        x = min(max(axes.at_x(level.value), axes.x0), axes.x1) if across else axes.x1
        y = axes.y1 if across else min(max(axes.at_y(level.value), axes.y1), axes.y0)
        if level.band:
            elements.append(
                box(axes.x0, y, x - axes.x0, axes.y0 - y, level.colour, tip=level.label)
            )
        else:
            start = (x, axes.y0) if across else (axes.x0, y)
            elements.append(line(*start, x, y, level.colour, width=2, dashed=True))
    return elements


def _ticks_and_names(panel: Panel, axes: _Axes, left: float) -> list[str]:
    """Grid, numbers, names of rows and of axes."""
    x0, x1, y0, y1 = axes.x0, axes.x1, axes.y0, axes.y1
    elements = []
    for number, name in enumerate(panel.rows):
        lines = shortened(name, _LABEL, left - 12)
        foot = axes.at_y(number) + 4.5 - _LINE * (len(lines) - 1) / 2
        elements += lines_of(x0 - 8, foot, lines, _LABEL, anchor="end", tip=name)
        if number:
            between = axes.at_y(number - 0.5)
            elements.append(line(x0, between, x1, between, GRID))
        note = shortened(panel.row_notes.get(number, ""), _TICK, x1 - x0 - 12)
        foot += 0 if len(note) == len(lines) else _LINE * (len(lines) - len(note)) / 2
        elements += lines_of(x0 + 8, foot, note, _TICK, colour=SOFT) if note[0] else []
    y_ticks = [] if panel.rows else _ticks(*axes.y_range, panel.y_log)
    for tick in y_ticks:
        elements.append(line(x0, axes.at_y(tick), x1, axes.at_y(tick), GRID))
        elements.append(text(x0 - 6, axes.at_y(tick) + 4, _number(tick), size=_TICK, anchor="end"))
    free = -math.inf
    for tick in panel.x_ticks or _ticks(*axes.x_range, panel.x_log):
        at, half = axes.at_x(tick), width_of(_number(tick), _TICK) / 2
        elements.append(line(at, y0, at, y0 + 4, INK))
        if at - half > free:  # numbers do not stand on each other
            elements.append(text(at, y0 + 17, _number(tick), size=_TICK, anchor="middle"))
            free = at + half + 4
    elements += [line(x0, y0, x1, y0, INK), line(x0, y0, x0, y1, INK)]
    elements.append(text((x0 + x1) / 2, y0 + 36, panel.x_label, size=_LABEL, anchor="middle"))
    if panel.y_label:
        middle = (y0 + y1) / 2
        elements.append(text(15, middle, panel.y_label, size=_LABEL, anchor="middle", turned=True))
    return elements


def _series(one: Series, panel: Panel, axes: _Axes) -> list[str]:
    """Line, intervals and marks of a series."""
    everything = [None] * len(one.points)
    entries = [
        (axes.at_x(x), axes.at_y(y), across, up, tip)
        for (x, y), across, up, tip in zip(
            one.points, one.x_limits or everything, one.y_limits or everything,
            one.texts or [one.label] * len(one.points), strict=True,
        )
        if _has_place(x, panel.x_log) and _has_place(y, panel.y_log)
    ]  # fmt: skip
    elements = []
    if (one.line or one.dash) and len(entries) > 1:
        elements.append(_joined([(x, y) for x, y, *_ in entries], one))
    for x, y, across, up, _ in entries:
        if across and not any(map(math.isnan, across)):
            x0, x1 = (axes.at_x(_inside(limit, axes.x_range)) for limit in across)
            elements += _interval(x0, y, x1, y, one.colour)
        if up and not any(map(math.isnan, up)):
            y0, y1 = (axes.at_y(_inside(limit, axes.y_range)) for limit in up)
            elements += _interval(x, y0, x, y1, one.colour)
    if one.mark:
        elements += [_mark(x, y, one, tip) for x, y, _, _, tip in entries]
    return elements


def _interval(x0: float, y0: float, x1: float, y1: float, colour: str) -> list[str]:
    """A line with short ends across it."""
    dx, dy = (0, 4) if y0 == y1 else (4, 0)
    return [
        line(x0, y0, x1, y1, colour, width=2),
        line(x0 - dx, y0 - dy, x0 + dx, y0 + dy, colour),
        line(x1 - dx, y1 - dy, x1 + dx, y1 + dy, colour),
    ]


# --- Scales --------------------------------------------------------------------------------------


def _inside(value: float, ends: Limits) -> float:
    return min(max(value, min(ends)), max(ends))


def _has_place(value: float, log: bool) -> bool:
    return _LEAST <= value <= _MOST if log else abs(value) <= _MOST  # NaN is neither


def _range(values: Sequence[float], log: bool, from_zero: bool) -> Limits:
    if not values:
        return (0.1, 10.0) if log else (0.0, 1.0)
    low, high = min(values), max(values)
    if log:
        return low / 1.35, high * 1.35
    from_zero = from_zero and low >= 0
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


def _number(value: float) -> str:
    return f"{value:g}"


def _mark(x: float, y: float, one: Series, tip: str = "") -> str:
    return marker(x, y, one.mark, one.colour, hollow=one.hollow, tip=tip)


def _joined(points: Sequence[tuple[float, float]], one: Series) -> str:
    return path(points, one.colour, dashed=one.dash or one.hollow)
