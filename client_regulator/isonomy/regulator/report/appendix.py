"""An appendix to a report's page: tables and figures as plain data, never as foreign HTML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from markupsafe import Markup
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from isonomy.common.base.errors import ConfigError
from isonomy.common.figures.figure import Figure
from isonomy.common.figures.panels import Level, Panel, Series
from isonomy.common.figures.style import SERIES, TOLERATED
from isonomy.regulator.report import _svg as svg

MAX_APPENDIX_BYTES = 1 << 20

Text = Annotated[str, StringConstraints(max_length=2000)]
Number = Annotated[float, Field(ge=-1e12, le=1e12, allow_inf_nan=False)]


class _AppendixPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DataTable(_AppendixPart):
    """Rows of text under a head."""

    kind: Literal["table"]
    caption: Text = ""
    head: tuple[Text, ...]
    rows: tuple[tuple[Text, ...], ...] = Field(max_length=500)


class Bars(_AppendixPart):
    """Bars of one series: (label, value, text at its end)."""

    kind: Literal["bars"]
    caption: Text = ""
    rows: tuple[tuple[Text, Number, Text], ...] = Field(max_length=200)
    limit: Number | None = None


class PlotSeries(_AppendixPart):
    """Points of one colour and mark, perhaps with intervals along x."""

    label: Text
    colour: int = Field(ge=0, lt=len(SERIES))
    mark: Literal["circle", "square", "diamond", "triangle", "star"]
    points: tuple[tuple[Number, Number], ...] = Field(max_length=200)
    limits: tuple[tuple[Number, Number] | None, ...] = ()
    line: bool = False

    @model_validator(mode="after")
    def _one_interval_each(self) -> Self:
        if self.limits and len(self.limits) != len(self.points):
            raise ValueError("an interval for each point, or none at all")
        return self


class Plot(_AppendixPart):
    """Points over two axes; with `rows`, over named rows. `tolerance`: a band along x."""

    kind: Literal["plot"]
    caption: Text = ""
    x: Text
    y: Text = ""
    series: tuple[PlotSeries, ...] = Field(max_length=8)
    rows: tuple[Text, ...] = Field((), max_length=200)
    row_notes: dict[int, Text] = {}
    tolerance: Number | None = None

    def drawing(self) -> str:
        """The plot in the house style, with its legend."""
        series = [
            Series(one.label, SERIES[one.colour], one.mark, one.points, line=one.line,
                   x_limits=one.limits)
            for one in self.series
        ]  # fmt: skip
        levels = []
        if self.tolerance is not None:
            levels = [Level(self.tolerance, "tolerated", band=True, colour=TOLERATED)]
        panel = Panel(
            "", self.x, self.y, series, x_from_zero=bool(levels), levels=levels,
            rows=self.rows, row_notes=self.row_notes,
        )  # fmt: skip
        return Figure("", [panel])._repr_html_()


class Paragraph(_AppendixPart):
    """A few sentences."""

    kind: Literal["text"]
    caption: Text


Section = Annotated[DataTable | Bars | Plot | Paragraph, Field(discriminator="kind")]


class Appendix(_AppendixPart):
    """A titled list of sections."""

    title: Text
    parts: tuple[Section, ...] = Field(max_length=30)

    @classmethod
    def load(cls, path: Path) -> Appendix:
        """Read an appendix; ConfigError for a file that is anything else."""
        try:
            if path.stat().st_size > MAX_APPENDIX_BYTES:
                raise ConfigError(f"{path} is larger than {MAX_APPENDIX_BYTES} bytes")
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"cannot read the appendix {path}: {error.strerror}") from None
        except ValidationError as error:
            places = sorted({".".join(map(str, e["loc"])) or "file" for e in error.errors()})
            raise ConfigError(f"{path} is not an appendix: see {', '.join(places[:5])}") from None

    def sections(self) -> list[dict[str, Any]]:
        """Return what the template shows: captions, tables and drawings."""
        return [
            {
                "caption": part.caption,
                "table": part if isinstance(part, DataTable) else None,
                "drawing": Markup(_drawing(part)),  # noqa: S704  (svg escapes)
            }
            for part in self.parts
        ]


def _drawing(part: DataTable | Bars | Plot | Paragraph) -> str:
    if isinstance(part, Bars):
        return svg.bars(part.rows, limit=part.limit)
    return part.drawing() if isinstance(part, Plot) else ""
