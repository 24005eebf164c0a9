"""A figure: title, verdict in words, panels, legend, note. SVG, HTML, or a notebook's cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import write_whole
from isonomy.common.figures import style
from isonomy.common.figures.panels import (
    WIDTH,
    Drawing,
    Level,
    Panel,
    Series,
    draw,
    key,
    lines_of,
    width_of,
    wrapped,
)
from isonomy.common.figures.shapes import box, text

_GAP, _ROW, _KEY = 12, 20, 34  # between panels; of the legend: height of a row, room of a mark


@dataclass(frozen=True)
class Figure:
    """Panels under one title, above one legend.

    `figure.save("groups.svg")` or `.html`; as the last line of a notebook's cell it shows itself.
    """

    title: str
    panels: Sequence[Panel]
    verdict: str = ""
    note: str = ""
    columns: int = 2

    def legend(self) -> dict[str, Series | Level]:
        """What is explained below the panels, by its label, each once."""
        entries: list[Series | Level] = []
        for panel in self.panels:
            entries += [*panel.series, *panel.levels]
        return {entry.label: entry for entry in entries if entry.label}

    def svg(self) -> str:
        """One SVG of its natural size: for documents, and for programs that know no HTML."""
        columns = min(self.columns, max(len(self.panels), 1))
        width = columns * WIDTH + (columns - 1) * _GAP + 16
        room = width - 32
        titles = wrapped(self.title, 16, room)
        elements = lines_of(width / 2, 26, titles, 16, anchor="middle", weight="600")
        foot = 26.0 + 17 * len(titles)
        verdict = wrapped(self.verdict, 13, room) if self.verdict else []
        elements += lines_of(width / 2, foot, verdict, 13, anchor="middle")
        foot += 17 * len(verdict) - 6
        drawings = [draw(panel) for panel in self.panels]
        for start in range(0, len(drawings), columns):
            row = drawings[start : start + columns]
            for number, drawing in enumerate(row):
                shift = f"translate({8 + number * (WIDTH + _GAP)},{foot:.0f})"
                elements.append(f'<g transform="{shift}">' + "\n".join(drawing.elements) + "</g>")
            foot += max(drawing.height for drawing in row)
        foot = self._legend_below(elements, foot, room)
        notes = wrapped(self.note, 11.5, room) if self.note else []
        elements += lines_of(16, foot + 14, notes, 11.5, colour=style.SOFT)
        height = foot + 17 * len(notes) + 8
        elements.insert(0, box(0, 0, width, height, style.PAPER))
        sheet = f"<style>{style.DARK}</style>"
        return Drawing(width, height, elements).svg(self._spoken(), head=sheet, sized=True)

    def _legend_below(self, elements: list[str], foot: float, room: float) -> float:
        """Add the legend's entries in rows; returns where they end."""
        x, y = 16.0, foot + 12
        for label, entry in self.legend().items():
            width = _KEY + width_of(label, 12.5) + 14
            if x > 16 and x + width > room + 16:
                x, y = 16.0, y + _ROW
            elements += [*key(entry, x + 14, y), text(x + _KEY, y + 4.5, label, size=12.5)]
            x += width
        return y + 12 if self.legend() else foot

    def html(self) -> str:
        """A part of a page: panels that stand below each other where the screen is narrow."""
        parts = [f"<h2>{escape(self.title)}</h2>"] if self.title else []
        parts += [f"<p>{escape(self.verdict)}</p>"] if self.verdict else []
        pictures = "".join(draw(panel).svg(_spoken(panel)) for panel in self.panels)
        parts.append(f'<div class="panels">{pictures}</div>')
        keys = [
            '<span class="key"><svg class="drawing" width="28" height="16" aria-hidden="true">'
            f"{''.join(key(entry, 14, 8))}</svg>{escape(label)}</span>"
            for label, entry in self.legend().items()
        ]
        parts += [f"<p>{''.join(keys)}</p>"] if keys else []
        parts += [f'<p class="note">{escape(self.note)}</p>'] if self.note else []
        return f'<div class="figure">{"".join(parts)}</div>\n'

    def save(self, path: str | Path) -> Path:
        """Write the figure to a file that ends in .svg or .html; returns its path."""
        path = Path(path)
        if path.suffix not in (".svg", ".html"):
            raise ConfigError(f"{path.name}: a figure is saved as .svg or .html")
        whole = self.svg() if path.suffix == ".svg" else page(self.title, [self])
        write_whole(path, whole.encode())
        return path

    def _repr_html_(self) -> str:
        return f"<style>{style.SHEET}</style>{self.html()}"

    def _spoken(self) -> str:
        return f"{self.title}. {self.verdict}" if self.verdict else self.title


def _spoken(panel: Panel) -> str:
    return panel.title or f"{panel.y_label} against {panel.x_label}"


def page(title: str, figures: Sequence[Figure], *, heading: bool = False) -> str:
    """A whole page of figures, with no script and no network."""
    above = f"<h1>{escape(title)}</h1>\n" if heading else ""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style.PAGE}{style.SHEET}</style>\n"
        f"{above}{''.join(figure.html() for figure in figures)}</html>\n"
    )
