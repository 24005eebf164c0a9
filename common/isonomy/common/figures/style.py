"""Colours of every picture, for light and for dark screens.

Colours are the Okabe–Ito palette, which people with any of the usual colour blindnesses can tell
apart (a dark purple and a brown for its yellow, which is too light for thin marks). An element has
its light colour as an attribute, so that any program can show a picture; the style sheet replaces
it where the screen is dark. Paper is always light.
"""

from __future__ import annotations

BLUE, ORANGE, GREEN, RED = "#0072b2", "#e69f00", "#009e73", "#d55e00"
PINK, SKY, PURPLE, INK, GREY = "#cc79a7", "#56b4e9", "#5b2a86", "#222222", "#767676"
BROWN = "#8c510a"
RESERVE = ("#01665e", "#9e0142", "#4d4d4d", "#666633")
PAPER, GRID, SHADE, SOFT, TOLERATED = "#ffffff", "#e3e6ea", "#d9dde2", "#555555", "#d3eadf"
SERIES = (
    RED,
    BLUE,
    GREEN,
    PURPLE,
    GREY,
    BROWN,
    PINK,
    INK,
)  # in this order where no method is meant
MARKS = ("circle", "square", "diamond", "triangle", "down", "star", "plus", "cross")

_DARK = {
    BLUE: "#4fb0e8", SKY: "#b5dff7", GREEN: "#2cc295", RED: "#f5883a", PURPLE: "#b992e6",
    INK: "#e8e6e3", GREY: "#9aa1a8", BROWN: "#cf9750", PAPER: "#17191c",
    GRID: "#33383e", SHADE: "#3a4047",
    SOFT: "#a9afb6", TOLERATED: "#1d3f33",
    **dict(zip(RESERVE, ("#35b0a3", "#f06a9b", "#b4b4b4", "#c4c483"), strict=True)),
}  # fmt: skip

FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


def _dark_rules() -> str:
    return "".join(
        f'.drawing [{kind}="{light}"]{{{kind}:{dark}}}'
        for light, dark in _DARK.items()
        for kind in ("fill", "stroke")
    )


DARK = (
    f"@media screen and (prefers-color-scheme:dark){{.drawing{{fill:{_DARK[INK]}}}{_dark_rules()}}}"
)

# Of a page or a notebook's cell: panels stand side by side, on a telephone one below the other.
SHEET = (
    f".figure{{font-family:{FONT};background:{PAPER};color:{INK};padding:.6rem;margin:0 0 1.5rem}}"
    ".figure h2{font-size:1.15rem;margin:.2rem 0}"
    ".figure p{margin:.3rem 0;max-width:46rem;overflow-wrap:anywhere}"
    f".figure .note{{color:{SOFT};font-size:.88rem}}"
    ".figure .panels{display:flex;flex-wrap:wrap;gap:.8rem;align-items:flex-start}"
    ".figure .panels svg{width:100%;max-width:440px;height:auto;flex:1 1 320px}"
    ".figure .key{display:inline-flex;align-items:center;gap:.3rem;margin-right:1rem}"
    ".figure .key svg{flex:none}"
    "@media screen and (prefers-color-scheme:dark){"
    f".figure{{background:{_DARK[PAPER]};color:{_DARK[INK]}}}"
    f".figure .note{{color:{_DARK[SOFT]}}}}}" + DARK
)
PAGE = (
    f"body{{margin:0 auto;padding:1rem;max-width:60rem;font-family:{FONT};background:{PAPER};"
    f"color:{INK}}}h1{{font-size:1.4rem}}"
    "@media screen and (prefers-color-scheme:dark){"
    f"body{{background:{_DARK[PAPER]};color:{_DARK[INK]}}}}}"
)
