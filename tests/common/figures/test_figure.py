"""Figures: every label is readable, every number has a place, nothing leaves the picture."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isonomy.common.base.errors import ConfigError
from isonomy.common.figures import style
from isonomy.common.figures.figure import Figure, page
from isonomy.common.figures.panels import (
    WIDTH,
    Level,
    Panel,
    Series,
    draw,
    shortened,
    width_of,
    wrapped,
)

HOSTILE = '"><script>alert(1)</script>&'
NAMES = [f"group {n} with a name that is much longer than its place 群体 {n}" for n in range(18)]


def _elements(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)  # noqa: S314  (our own text)


def _rows() -> Panel:
    points = [(float(n), n) for n in range(17)]
    limits = [(n - 0.5, n + 0.5) for n in range(17)]
    series = [Series("before", style.RED, "circle", points, x_limits=limits)]
    return Panel("", "rate, %", "", series, rows=NAMES, row_notes={17: "too few people"})


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=8), st.booleans())
def test_whatever_the_numbers_are_marks_lie_inside(values: list[float], log: bool) -> None:
    series = [Series("a", style.BLUE, "circle", [(value, value) for value in values], line=True)]
    drawing = draw(Panel("t", "x", "y", series, x_log=log, levels=[Level(1.0, "one")]))
    root = _elements(drawing.svg("t"))
    circles = [part for part in root.iter() if part.tag.endswith("circle")]
    shown = [v for v in values if (1e-15 <= v <= 1e15 if log else abs(v) <= 1e15)]
    assert len(circles) == len(shown)
    for mark in circles:
        assert 0 <= float(mark.attrib["cx"]) <= WIDTH
        assert 0 <= float(mark.attrib["cy"]) <= drawing.height


@pytest.mark.parametrize("title", ["", "word " * 60, "x" * 300, "群" * 100, "λ\n\t  ε"])
def test_text_is_wrapped_to_its_room_and_keeps_every_sign(title: str) -> None:
    lines = wrapped(title, 14, 200)
    assert all(width_of(line, 14) <= 200 for line in lines)
    assert "".join(lines).replace(" ", "") == "".join(title.split())
    short = shortened(title, 14, 200)
    assert len(short) <= 2
    assert all(width_of(line, 14) <= 200 for line in short)


def test_eighteen_groups_have_a_row_each_and_the_whole_name_as_tip() -> None:
    texts = {part.text for part in _elements(draw(_rows()).svg("t")).iter()}
    assert set(NAMES) <= texts
    assert "too few people" in texts


def test_axes_hold_intervals_and_levels() -> None:
    one = Series("a", style.BLUE, "circle", [(1.0, 1.0)], x_limits=[(0.5, 9.0)])
    drawing = draw(Panel("t", "x", "y", [one], levels=[Level(20.0, "tolerance")]))
    places = [float(x) for x in re.findall(r'x2="([\d.-]+)"', "".join(drawing.elements))]
    assert max(places) <= WIDTH


def test_a_figure_is_a_page_a_picture_and_a_cell(tmp_path: Path) -> None:
    figure = Figure("title", [_rows()], "The verdict.", "a note")
    svg = figure.save(tmp_path / "a.svg").read_text()
    assert "The verdict." in _elements(svg).attrib["aria-label"]
    html = figure.save(tmp_path / "a.html").read_text()
    for text in (svg, html, figure._repr_html_()):
        assert "prefers-color-scheme:dark" in text
        assert "<script" not in text
        assert "url(" not in text
    assert 'name="viewport"' in html
    with pytest.raises(ConfigError, match=r"\.svg or \.html"):
        figure.save(tmp_path / "a.png")


def test_labels_cannot_become_markup() -> None:
    panel = Panel(HOSTILE, HOSTILE, HOSTILE, [Series(HOSTILE, style.RED, "star", [(0, 0)])],
                  rows=[HOSTILE], row_notes={0: HOSTILE}, message=HOSTILE,
                  levels=[Level(1.0, HOSTILE, band=True)])  # fmt: skip
    figure = Figure(HOSTILE, [panel], HOSTILE, HOSTILE)
    assert "<script" not in figure.svg() + page(HOSTILE, [figure], heading=True)


def test_every_dark_colour_can_be_read_on_the_dark_paper() -> None:
    """WCAG: 3 to 1 for marks, 4.5 to 1 for text, in both modes."""
    marks = (*style.SERIES, style.GREEN, style.PURPLE, style.BROWN, style.INK, style.SOFT)
    for light, paper, ink in (
        (lambda c: c, style.PAPER, 4.5),
        (lambda c: style._DARK.get(c, c), style._DARK[style.PAPER], 4.5),
    ):
        for colour in marks:
            least = ink if colour in (style.INK, style.SOFT) else 3.0
            assert _contrast(light(colour), paper) >= least, colour


def _contrast(a: str, b: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)
