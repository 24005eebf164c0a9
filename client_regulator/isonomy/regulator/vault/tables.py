"""People's files, read row by row: CSV in UTF-8, or Parquet.

A row comes with its place ("line 7", "row 7"), so that a person can find it. Nothing is guessed:
text that is not UTF-8, a wrong number of cells, or a type that no id or group can have is a problem
with a place. Error texts never hold values.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isonomy.common.base.errors import ConfigError, DataError

MAX_SHOWN = 10
_WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # .xlsx is a ZIP archive, .xls is not
_BOMS = (b"\xff\xfe", b"\xfe\xff")
_PARQUET_MAGIC = b"PAR1"


@dataclass(frozen=True)
class Row:
    """One person's line: where it stands, the id as written, the values (None: empty)."""

    where: str
    person: str
    values: tuple[str | None, ...]


@dataclass
class Problems:
    """Bad lines of a file: all are counted, a few are listed. One is enough to change nothing."""

    path: Path
    outcome: str = "nobody was enrolled"
    examples: dict[str, list[str]] = field(default_factory=dict)  # what is bad, and where
    count: int = 0

    def add(self, where: str, what: str) -> None:
        self.count += 1
        if self.count <= MAX_SHOWN:
            self.examples.setdefault(what, []).append(where)

    def check(self) -> None:
        """Raise DataError if there was any."""
        if self.count:
            more = max(self.count - MAX_SHOWN, 0)
            shown = [f"{', '.join(where)}: {what}" for what, where in self.examples.items()]
            raise DataError(
                f"{self.path} has {self.count} bad line{'s' if self.count > 1 else ''}; "
                f"{self.outcome}. {'; '.join(shown)}{f'; and {more} more' if more else ''}"
            )


def read_rows(
    path: Path, id_column: str, attributes: Sequence[str], problems: Problems, delimiter: str = ","
) -> Iterator[Row]:
    """Yield all rows of a file, CSV or Parquet."""
    names = [id_column, *attributes]
    if len(set(names)) != len(names):
        raise ConfigError("the id column and the attributes are different columns, each named once")
    if _is_parquet(path):
        return _read_parquet(path, names, problems)
    return _read_csv(path, names, problems, delimiter)


def column_names(path: Path, delimiter: str = ",") -> list[str]:
    """Return the names of a file's columns, CSV or Parquet."""
    if _is_parquet(path):
        return _parquet_columns(path)
    with path.open("rb") as file:
        return _header(path, csv.reader(_decoded(path, file), delimiter=delimiter, strict=True))


def _is_parquet(path: Path) -> bool:
    """Return whether a file is Parquet and not CSV; DataError for what is neither."""
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    if start in _WORKBOOKS:
        raise DataError(f"{path} is an Excel workbook; save it as CSV UTF-8 and enroll that file")
    if start[:2] in _BOMS:
        raise DataError(f"{path} is text in UTF-16; save it as UTF-8")
    return start.startswith(_PARQUET_MAGIC)


def count_rows(path: Path) -> int | None:
    """Return about how many rows a file has, for a progress bar; None if it cannot be told."""
    try:
        with path.open("rb") as file:
            if file.read(4) == _PARQUET_MAGIC:
                import pyarrow.parquet as pq  # type: ignore[import-untyped]

                return int(pq.ParquetFile(path).metadata.num_rows)
            file.seek(0)
            return sum(part.count(b"\n") for part in iter(lambda: file.read(1 << 20), b""))
    except (OSError, ValueError):
        return None  # whoever reads it says what is wrong


# --- CSV -----------------------------------------------------------------------------------------


def _read_csv(
    path: Path, names: Sequence[str], problems: Problems, delimiter: str
) -> Iterator[Row]:
    """Yield the rows of a CSV file; a line with a wrong number of cells goes to `problems`."""
    if len(delimiter) != 1:
        raise ConfigError("--delimiter is one character, such as ';' (for a tab: $'\\t')")
    with path.open("rb") as file:
        reader = csv.reader(_decoded(path, file), delimiter=delimiter, strict=True)
        columns = _header(path, reader)
        hint = ""
        if len(columns) == 1 and delimiter == "," and ";" in columns[0]:
            hint = ". The columns seem to be separated by semicolons: add --delimiter ';'"
        _check_columns(path, columns, names, hint)
        places = [columns.index(name) for name in names]
        while True:
            try:
                cells = next(reader, None)
            except csv.Error as error:
                # After a lost quote nothing can be read, so this is not one of several problems.
                raise DataError(f"{path}, line {reader.line_num}: {error}") from None
            if cells is None:
                return
            if not cells:
                continue  # an empty line, usually the last
            where = f"line {reader.line_num}"
            if len(cells) != len(columns):
                problems.add(where, f"{len(cells)} cells where the header has {len(columns)}")
                continue
            person, *values = (cells[place] for place in places)
            yield Row(where, person, tuple(value.strip() or None for value in values))


def _header(path: Path, reader: Iterator[list[str]]) -> list[str]:
    try:
        header = next(reader, None)
    except csv.Error as error:
        raise DataError(f"{path}, line 1: {error}") from None
    if header is None:
        raise DataError(f"{path} is empty")
    return [name.strip() for name in header]


def _decoded(path: Path, file: Any) -> Iterator[str]:
    for number, raw in enumerate(file, start=1):
        try:
            yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise DataError(
                f"{path}, line {number} is not text in UTF-8; save the file as UTF-8 (it is "
                "probably Latin-1 or Windows-1252)"
            ) from None


def _check_columns(path: Path, columns: list[str], names: Sequence[str], hint: str = "") -> None:
    missing = [name for name in names if name not in columns]
    if missing:
        raise DataError(
            f"{path} has no column {', '.join(map(repr, missing))}; it has "
            f"{', '.join(map(repr, columns[:20]))}{hint}"
        )
    twice = [name for name in names if columns.count(name) > 1]
    if twice:
        raise DataError(f"{path} has the column {twice[0]!r} twice")


# --- Parquet -------------------------------------------------------------------------------------


def _read_parquet(path: Path, names: Sequence[str], problems: Problems) -> Iterator[Row]:
    """Yield the rows of a Parquet file; a row without an id goes to `problems`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _check_types(path, file.schema_arrow, names)
            number = 0
            for batch in file.iter_batches(columns=list(names)):
                columns = [batch.column(name).to_pylist() for name in names]
                for person, *values in zip(*columns, strict=True):
                    number += 1
                    if person is None:
                        problems.add(f"row {number}", "the id is missing")
                        continue
                    texts = tuple(None if v is None else _text(v).strip() or None for v in values)
                    yield Row(f"row {number}", _text(person), texts)
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        raise DataError(f"{path} is not a Parquet file, or cannot be read to its end") from None


def _parquet_columns(path: Path) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return list(pq.read_schema(path).names)
    except (pa.ArrowException, OSError):
        raise DataError(f"{path} is not a Parquet file, or cannot be read to its end") from None


def _check_types(path: Path, schema: Any, names: Sequence[str]) -> None:
    import pyarrow as pa

    _check_columns(path, schema.names, names)
    for name in names:
        kind = schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if not (text or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
            raise DataError(
                f"{path}: column {name!r} has type {kind}; ids and groups are text or whole "
                "numbers. Convert the column first"
            )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
