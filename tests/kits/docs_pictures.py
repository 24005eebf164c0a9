"""Draws three pictures of the pages: `python tests/kits/docs_pictures.py`, or `make docs-pictures`.

overview.svg: who has what. query.svg: one query, message by message. privacy.svg: what ε means for
one person. All in the house style, with a dark mode, and narrow enough for a telephone.
"""

from __future__ import annotations

import math
from pathlib import Path

from isonomy.common.figures.shapes import attribute, line, text
from isonomy.common.figures.style import BLUE, DARK, FONT, GREY, INK, PAPER, RED, SHADE, SOFT
from isonomy.common.privacy.shown import right_guess

FOLDER = Path(__file__).parents[2] / "docs" / "images"
WIDTH, SHOWN = 480, 640  # letters are large enough on a telephone, and not huge on a desk


def picture(height: int, label: str, *shapes: str) -> str:
    """Return an SVG file with a background, for light and dark screens."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{SHOWN}" '
        f'class="drawing" '
        f'font-family="{attribute(FONT)}" font-size="15" fill="{INK}" role="img" '
        f'aria-label="{attribute(label)}"><style>text{{paint-order:stroke}}{DARK}</style>'
        f'<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>' + "".join(shapes) + "</svg>\n"
    )


def frame(x: float, y: float, width: float, height: float, colour: str) -> str:
    """Return a rectangle with round corners."""
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="10" fill="{PAPER}" '
        f'stroke="{colour}" stroke-width="2"/>'
    )


def arrow(x0: float, x1: float, y: float, words: str, colour: str = SOFT) -> str:
    """Return a horizontal arrow from x0 to x1 with words above it."""
    tip = x1 - 9 if x1 > x0 else x1 + 9
    head = f'<polygon points="{x1},{y} {tip},{y - 5} {tip},{y + 5}" fill="{colour}"/>'
    return line(x0, y, tip, y, colour, width=2) + head + halo(
        text((x0 + x1) / 2, y - 7, words, anchor="middle", size=13.5)
    )  # fmt: skip


def halo(content: str) -> str:
    """Return text with paper around it, so that lines behind it do not disturb."""
    return content.replace("<text ", f'<text stroke="{PAPER}" stroke-width="5" ')


def lines(x: float, y: float, rows: list[str], *, size: float = 14, colour: str = INK) -> str:
    """Return lines of text, centred at x, from y downwards."""
    return "".join(
        text(x, y + 19 * at, row, anchor="middle", size=size, colour=colour)
        for at, row in enumerate(rows)
    )


PARTIES = (
    (82, BLUE, "Company", ["features, labels,", "the model"]),
    (240, GREY, "Server", ["trusted with", "nothing"]),
    (398, RED, "Regulator", ["sensitive attributes,", "ledger, budget"]),
)
LEFT, MIDDLE, RIGHT = (x for x, *_ in PARTIES)


def overview() -> str:
    """Return the picture of who has what, and what passes between them."""
    boxes = [
        frame(x - 76, 12, 152, 94, colour)
        + text(x, 40, name, anchor="middle", size=18, weight="bold", colour=colour)
        + lines(x, 65, rows)
        for x, colour, name, rows in PARTIES
    ]
    flows = [
        (LEFT, RIGHT, 150, "sums over rows, encrypted and masked"),
        (RIGHT, LEFT, 190, "sums by group, with noise, in the ledger first"),
        (RIGHT, LEFT, 230, "a signed report, for anybody to verify"),
    ]
    verdicts = [
        (LEFT, BLUE, ["never sees", "anybody's attribute"]),
        (MIDDLE, GREY, ["sees sealed", "messages"]),
        (RIGHT, RED, ["never sees rows", "or model"]),
    ]
    return picture(
        300, "Company and regulator train a fair model through a server trusted with nothing",
        *boxes,
        *(line(x, 106, x, 250, SHADE, width=2, dashed=True) for x, *_ in PARTIES),
        *(arrow(x0, x1, y, words) for x0, x1, y, words in flows),
        *(lines(x, 270, rows, colour=colour) for x, colour, rows in verdicts),
    )  # fmt: skip


def query() -> str:
    """Return one blind query by homomorphic encryption, message by message, from top to bottom."""
    steps = [
        (LEFT, RIGHT, "1  query: what is asked, and what for"),
        (RIGHT, LEFT, "2  encrypted columns: who is in which group"),
        (LEFT, RIGHT, "3  products of columns and rows, masked"),
        (RIGHT, LEFT, "4  answer: with noise, in the ledger, signed"),
    ]
    notes = [
        (RIGHT, 120, "checks plan, policy, budget; makes a key"),
        (LEFT, 180, "multiplies blindly, adds a mask"),
        (RIGHT, 240, "sees the masked sum only"),
        (LEFT, 300, "takes the mask off: a private sum"),
    ]
    heads = [
        text(x, 26, name, anchor="middle", size=17, weight="bold", colour=colour)
        for x, colour, name, _ in PARTIES
    ]
    rails = [line(x, 40, x, 322, SHADE, width=2, dashed=True) for x, *_ in PARTIES]
    side = [
        text(x - 72 if x == LEFT else x + 72, y, words, size=13, colour=SOFT,
             anchor="start" if x == LEFT else "end")
        for x, y, words in notes
    ]  # fmt: skip
    return picture(
        334, "One blind query in four messages: query, columns, masked products, answer",
        *rails, *heads,
        *(arrow(x0, x1, 95 + 60 * at, words) for at, (x0, x1, words) in enumerate(steps)),
        *map(halo, side),
    )  # fmt: skip


def privacy() -> str:
    """Return a bar per ε: how sure somebody can be of a person's attribute after all answers."""
    left, top, scale = 90, 66, 3.3  # pixels per per cent, from 0 to 100
    shapes = [
        text(16, 28, "How sure can anybody be of one attribute?", size=17, weight="bold"),
        text(16, 50, "Before: 50 %. After all answers of a plan, at most:", colour=SOFT),
    ]
    for at, epsilon in enumerate((0.1, 0.5, 1.0, 2.0, 3.0)):
        sure, y = 100 / (1 + math.exp(-epsilon)), top + 40 * at
        shapes += [
            text(16, y + 20, f"ε = {epsilon:g}", weight="bold"),
            f'<rect x="{left}" y="{y + 4}" width="{50 * scale}" height="22" fill="{SHADE}"/>',
            f'<rect x="{left + 50 * scale}" y="{y + 4}" width="{(sure - 50) * scale:.1f}" '
            f'height="22" fill="{RED}"/>',
            text(left + sure * scale + 8, y + 20, right_guess(epsilon), weight="bold"),
        ]
    bottom = top + 40 * 5
    middle = left + 50 * scale
    shapes += [
        line(middle, top, middle, bottom, INK, dashed=True),
        text(middle, bottom + 18, "50 %: a coin", anchor="middle", size=13, colour=SOFT),
        text(16, bottom + 44, "For whoever knows everything else about the person;",
             size=12.5, colour=SOFT),
        text(16, bottom + 62, "except with chance δ. Bars: e^ε / (1 + e^ε).",
             size=12.5, colour=SOFT),
    ]  # fmt: skip
    return picture(bottom + 76, "With ε = 1, 74 per cent instead of 50", *shapes)


PICTURES = {"overview.svg": overview, "query.svg": query, "privacy.svg": privacy}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw())
