"""Where raw tables come from: a folder of (gzipped) CSV files, or an online name.

Every file has a checksum that survives re-compression: rows, columns and the share of positives.
A table that fails it is refused, because results on it could not be compared with anything.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from isonomy.common.base.errors import DataError, TransportError
from isonomy.company.rehearsal.datasets._dataset import Dataset, dataset_of

RATE_TOLERANCE = 5e-5  # the rates of files have four decimals
ONLINE_TOLERANCE = 0.02  # online copies may be another sample of the same population


@dataclass(frozen=True)
class CsvFile:
    """One file of a set and what must be true of it."""

    path: str  # inside the data folder
    rows: int
    columns: int  # at least so many
    rate: float  # share of rows with a positive target


@dataclass(frozen=True)
class Prepared:
    """What a set makes of its raw table."""

    frame: pd.DataFrame  # the rows that stay
    features: pd.DataFrame
    values: Mapping[str, pd.Series] | pd.DataFrame  # every attribute's group label, by row
    notes: str
    ids: pd.Series | None = None  # whose row it is, where people have several


@dataclass(frozen=True)
class Source:
    """The files of a set, where they come from, and how they become a data set."""

    files: tuple[CsvFile, ...]
    origin: str  # for people: where to get the files, licence
    groups: Mapping[str, tuple[str, ...]]  # by attribute, the usual one first
    positive: Callable[[pd.DataFrame], pd.Series]
    prepare: Callable[[pd.DataFrame, tuple[str, ...]], Prepared]
    fetch: Callable[[], pd.DataFrame] | None  # None: no online copy with the same columns
    score: str | None = None  # the column of numbers that the target was cut from

    def load(self, name: str, data_dir: Path | None, hidden: tuple[str, ...]) -> Dataset:
        """The data set whose attributes `hidden` belong to the regulator."""
        raw = self._online(name) if data_dir is None else self._files(data_dir)
        try:
            prepared = self.prepare(raw, hidden)
        except KeyError as error:
            raise DataError(f"{name} lacks the column {error}; get it: {self.origin}") from None
        for attribute in hidden:
            if not prepared.values[attribute].isin(self.groups[attribute]).all():
                groups = ", ".join(self.groups[attribute])
                raise DataError(f"{name}: {attribute} has values outside {groups}")
        return dataset_of(
            name=name,
            features=prepared.features,
            target=self.positive(prepared.frame),
            values={attribute: prepared.values[attribute] for attribute in hidden},
            groups={attribute: self.groups[attribute] for attribute in hidden},
            ids=prepared.ids,
            notes=prepared.notes,
            source=self.origin,
            score=None if self.score is None else prepared.frame[self.score],
        )

    def _files(self, data_dir: Path) -> pd.DataFrame:
        """All files of the set as one table of original values."""
        if not data_dir.is_dir():
            raise DataError(f"the data folder {data_dir} does not exist; it should hold {self}")
        tables = []
        for table in self.files:
            path = data_dir / table.path
            if not path.is_file():
                path = path.with_suffix("")  # x.csv.gz, unpacked
            if not path.is_file():
                raise DataError(
                    f"{data_dir / table.path} is missing: {table.rows:,} rows × {table.columns} "
                    f"columns. Get it: {self.origin}"
                )
            try:
                frame = read_csv(path)
            except (OSError, EOFError, ValueError, zlib.error) as error:
                raise DataError(
                    f"{path} cannot be read as a CSV table ({type(error).__name__}); "
                    f"get it again: {self.origin}"
                ) from None
            self._check(str(path), frame, table, RATE_TOLERANCE, rows=table.rows)
            tables.append(frame)
        return pd.concat(tables, ignore_index=True)

    def _online(self, name: str) -> pd.DataFrame:
        """The online copy, checked; TransportError says how to go on without a connection."""
        if self.fetch is None:
            raise DataError(
                f"{name} has no online copy that loads by itself; get {self} and name its folder "
                "with --data-dir"
            )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # retries; what matters is said below
                frame = self.fetch()
        # Whatever goes wrong on the way, the reader needs one thing: how to go on without it.
        except Exception as error:
            raise TransportError(
                f"{name} could not be fetched online ({type(error).__name__}); with no "
                f"connection, put {self} in a folder and name it with --data-dir"
            ) from None
        where = f"the online copy of {name}"
        self._check(where, frame, self.files[0], ONLINE_TOLERANCE, rows=len(frame))
        return frame

    def _check(
        self, where: str, frame: pd.DataFrame, table: CsvFile, tolerance: float, *, rows: int
    ) -> None:
        """Raise DataError unless columns, rows and the share of positives are as published."""
        try:
            rate = float(self.positive(frame).mean())
        except KeyError:
            rate = float("nan")
        fits = len(frame) == rows and frame.shape[1] >= table.columns
        if not (fits and abs(rate - table.rate) <= tolerance):
            raise DataError(
                f"{where}: expected {table.rows:,} rows with {table.rate:.2%} positive, found "
                f"{len(frame):,} rows with {rate:.2%} (columns: at least {table.columns}, found "
                f"{frame.shape[1]}); get it again: {self.origin}"
            )

    def __str__(self) -> str:
        return f"{', '.join(table.path for table in self.files)} ({self.origin})"


def read_csv(path: Path) -> pd.DataFrame:
    """A CSV file with a header, gzipped or not; '?' and nothing are missing."""
    return pd.read_csv(path, na_values=["?", ""], keep_default_na=False, skipinitialspace=True)


def openml(data_id: int) -> pd.DataFrame:
    """An OpenML table by number, target included. Needs internet once; then it is cached."""
    from sklearn.datasets import fetch_openml

    bunch = fetch_openml(data_id=data_id, as_frame=True, parser="auto", n_retries=1, delay=0.5)
    frame: pd.DataFrame = bunch.frame
    return frame


def renamed_like(frame: pd.DataFrame, columns: tuple[str, ...]) -> pd.DataFrame:
    """OpenML writes `Jitter(%)` as `Jitter...`: match names by letters and digits alone."""
    plain = {_letters(column): column for column in columns}
    return frame.rename(columns={name: plain.get(_letters(name), name) for name in frame.columns})


def _letters(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
