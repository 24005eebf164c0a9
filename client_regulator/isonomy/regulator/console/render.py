"""From templates and the catalogue of texts to pages; the console's pictures.

Every text of the console stands in texts.toml, in the order of its pages, so that another language
is another file. Texts that commands print too (findings, errors, a plan in words) come from the
functions that the commands call.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from isonomy.common.figures import style
from isonomy.common.figures.panels import Drawing
from isonomy.common.figures.shapes import box, text
from isonomy.common.privacy.shown import at_least, at_most
from isonomy.regulator.serving.status import moment

_ROOM = files("isonomy.regulator.console")
TEXTS: dict[str, dict[str, str]] = tomllib.loads((_ROOM / "texts.toml").read_text(encoding="utf-8"))
_WIDTH, _BAR, _LINE = 400, 22, 20


@cache
def _environment() -> jinja2.Environment:
    folder = _ROOM / "templates"
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
    )
    environment.globals["t"] = TEXTS
    environment.filters.update(
        fill=_fill, moment=moment, short=_short, at_most=at_most, at_least=at_least
    )
    return environment


def render(template: str, **fields: Any) -> str:
    """Return a page or a part of one."""
    return _environment().get_template(template).render(**fields)


def static_file(name: str) -> tuple[bytes, str] | None:
    """Return one of the shipped files and its type; None for any other name."""
    if name == "figures.css":
        return style.SHEET.encode(), "text/css"
    kinds = {
        "css": "text/css",
        "js": "text/javascript",
        "txt": "text/plain",
        "svg": "image/svg+xml",
    }
    for file in (_ROOM / "static").iterdir():
        if file.name == name:
            return file.read_bytes(), kinds[name.rsplit(".", 1)[1]]
    return None


def budget_bar(parts: Sequence[tuple[str, float, str]], label: str) -> Markup:
    """Return a bar of 100 % cut into parts (name, per cent, colour), with a legend below."""
    elements = [box(0, 0, _WIDTH, _BAR, style.SHADE)]
    x, y = 0.0, _BAR + _LINE
    for name, share, colour in parts:
        width = min(max(share, 0.0) / 100 * _WIDTH, _WIDTH - x)
        if width > 0:
            elements.append(box(x, 0, width, _BAR, colour, tip=f"{name}: {share:g} %"))
        elements += [box(0, y - 11, 12, 12, colour), text(20, y, f"{name}: {share:g} %", size=15)]
        x, y = x + width, y + _LINE
    drawing = Drawing(_WIDTH, y - _LINE + 8, elements)
    return Markup(drawing.svg(label))  # noqa: S704  (shapes escape every text)


def _fill(pattern: str, **values: object) -> str:
    """Return a text of the catalogue with its places filled; markup in values stays text."""
    return pattern.format(**values)


def _short(digits: str) -> str:
    return f"{digits[:12]}…"
