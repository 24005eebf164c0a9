"""The shapes that our figures are drawn with, as SVG text: no script, no network.

Every text and colour is escaped here, so what comes from elsewhere cannot become markup. Numbers
have one decimal, which keeps files small and the differences between two versions readable.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_CORNERS: dict[str, tuple[tuple[float, float], ...]] = {
    "square": ((-4.5, -4.5), (4.5, -4.5), (4.5, 4.5), (-4.5, 4.5)),
    "triangle": ((0, -6), (5.5, 4.5), (-5.5, 4.5)),
    "down": ((0, 6), (5.5, -4.5), (-5.5, -4.5)),
    "diamond": ((0, -6.2), (6.2, 0), (0, 6.2), (-6.2, 0)),
    "star": (
        (0, -7), (1.7, -2.3), (6.7, -2.2), (2.7, 0.9), (4.1, 5.7), (0, 2.8), (-4.1, 5.7),
        (-2.7, 0.9), (-6.7, -2.2), (-1.7, -2.3),
    ),
    "plus": (
        (-2, -6), (2, -6), (2, -2), (6, -2), (6, 2), (2, 2), (2, 6), (-2, 6), (-2, 2), (-6, 2),
        (-6, -2), (-2, -2),
    ),
    "cross": (
        (-5.5, -3), (-3, -5.5), (0, -2.5), (3, -5.5), (5.5, -3), (2.5, 0), (5.5, 3), (3, 5.5),
        (0, 2.5), (-3, 5.5), (-5.5, 3), (-2.5, 0),
    ),
}  # fmt: skip


def marker(
    x: float,
    y: float,
    shape: str,
    colour: str,
    *,
    hollow: bool = False,
    tip: str = "",
    paper: str = "#ffffff",
) -> str:
    """A mark at a point: one of the shapes above, or a circle. `tip` shows when it is hovered."""
    fill, edge, width = (paper, colour, 1.7) if hollow else (colour, paper, 0.9)
    style = f'fill="{attribute(fill)}" stroke="{attribute(edge)}" stroke-width="{width}"'
    title = f"<title>{_escaped(tip)}</title>" if tip else ""
    if shape in _CORNERS:
        corners = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in _CORNERS[shape])
        return f'<polygon points="{corners}" {style}>{title}</polygon>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.2" {style}>{title}</circle>'


def line(
    x0: float, y0: float, x1: float, y1: float, colour: str, *, width: int = 1, dashed: bool = False
) -> str:
    """A straight line."""
    place = f'x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}"'
    return f'<line {place} stroke="{attribute(colour)}" stroke-width="{width}"{_dash(dashed)}/>'


def path(points: Iterable[tuple[float, float]], colour: str, *, dashed: bool = False) -> str:
    """A line through points, in their order."""
    route = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polyline points="{route}" fill="none" stroke="{attribute(colour)}" stroke-width="1.6"'
        f'{_dash(dashed)} opacity="0.75"/>'
    )


def box(x: float, y: float, width: float, height: float, colour: str, *, tip: str = "") -> str:
    """A filled rectangle."""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    title = f"<title>{_escaped(tip)}</title>" if tip else ""
    return f'<rect {place} fill="{attribute(colour)}">{title}</rect>'


def text(
    x: float,
    y: float,
    content: str,
    *,
    anchor: str = "start",
    size: float = 0,
    weight: str = "",
    colour: str = "",
    turned: bool = False,
    tip: str = "",
) -> str:
    """One line of text. What is not set comes from the style of the page around it."""
    attributes = f' font-size="{size}"' if size else ""
    attributes += f' text-anchor="{anchor}"'
    attributes += f' font-weight="{weight}"' if weight else ""
    attributes += f' fill="{attribute(colour)}"' if colour else ""
    attributes += f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    title = f"<title>{_escaped(tip)}</title>" if tip else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{title}{_escaped(content)}</text>'


def attribute(value: str) -> str:
    """A value between double quotes, such as an aria-label."""
    return escape(value, quote=True)


def _escaped(content: str) -> str:
    return escape(content, quote=False)


def _dash(dashed: bool) -> str:
    return ' stroke-dasharray="5 4"' if dashed else ""
