"""An appendix to a report's page: tables and figures as plain data, never as foreign HTML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from markupsafe import Markup
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from isonomy.common.base.errors import ConfigError
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


class Curve(_AppendixPart):
    """Points (x, low, high, y), of which one may be special."""

    kind: Literal["curve"]
    caption: Text = ""
    x: Text
    y: Text
    points: tuple[tuple[Number, Number, Number, Number], ...] = Field(max_length=200)
    special: int | None = None


class Paragraph(_AppendixPart):
    """A few sentences."""

    kind: Literal["text"]
    caption: Text


Section = Annotated[DataTable | Bars | Curve | Paragraph, Field(discriminator="kind")]


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


def _drawing(part: DataTable | Bars | Curve | Paragraph) -> str:
    if isinstance(part, Bars):
        return svg.bars(part.rows, limit=part.limit)
    if isinstance(part, Curve):
        points = [(svg.Mark(x, low, high), y) for x, low, high, y in part.points]
        return svg.curve(points, x_title=part.x, y_title=part.y, special=part.special)
    return ""
