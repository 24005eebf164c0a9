"""Where raw tables come from: a folder of (gzipped) CSV files, or an online name.

Every file has a checksum that survives re-compression: rows, columns and the share of positives.
A table that fails it is refused, because results on it could not be compared with anything.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from isonomy.common.base.errors import DataError, TransportError
from isonomy.company.rehearsal.datasets._dataset import Dataset, numbered

RATE_TOLERANCE = 5e-5  # rates below are given to four decimals
ONLINE_TOLERANCE = 0.02  # online copies may be another sample of the same population


@dataclass(frozen=True)
class CsvFile:
    """One file of a set and what must be true of it."""

    path: str  # inside the data folder
    rows: int
    columns: tuple[str, ...]
    rate: float  # share of rows with a positive target


@dataclass(frozen=True)
class Source:
    """The files of a set, where they come from, and how to tell a positive row."""

    name: str
    files: tuple[CsvFile, ...]
    origin: str  # for people: where to get the files, licence
    positive: Callable[[pd.DataFrame], pd.Series]
    fetch: Callable[[], pd.DataFrame] | None  # None: no online copy with the same columns

    def read(self, data_dir: Path | None) -> pd.DataFrame:
        """All files of the set as one table of original values; '?' is missing."""
        if data_dir is None:
            return self._online()
        if not data_dir.is_dir():
            raise DataError(
                f"the data folder {data_dir} does not exist; it should hold "
                f"{', '.join(table.path for table in self.files)} ({self.origin})"
            )
        frames = [self._table(data_dir, table) for table in self.files]
        return pd.concat(frames, ignore_index=True)

    def dataset(
        self,
        raw: pd.DataFrame,
        features: pd.DataFrame,
        *,
        attributes: Mapping[str, Sequence[str | None]],
        groups: Mapping[str, Sequence[str]],
        notes: str,
    ) -> Dataset:
        """A data set of one row per person; `raw` says which rows are positive."""
        return Dataset(
            name=self.name,
            features=features.reset_index(drop=True),
            target=self.positive(raw).to_numpy().astype(np.int64),
            attributes={name: list(attributes[name]) for name in attributes},
            groups={name: tuple(groups[name]) for name in attributes},
            ids=numbered(self.name, len(raw)),
            people=None,
            notes=notes,
            source=self.origin,
        )

    def _table(self, data_dir: Path, table: CsvFile) -> pd.DataFrame:
        path = self._find(data_dir, table)
        try:
            frame = read_csv(path)
        except (OSError, EOFError, ValueError, zlib.error, pd.errors.ParserError) as error:
            raise DataError(
                f"{path} cannot be read as a CSV table ({type(error).__name__}); "
                f"get it again: {self.origin}"
            ) from None
        self._check(str(path), frame, table, RATE_TOLERANCE)
        return frame

    def _find(self, data_dir: Path, table: CsvFile) -> Path:
        path = data_dir / table.path
        for candidate in (path, path.with_suffix("")):  # x.csv.gz, or unpacked x.csv
            if candidate.is_file():
                return candidate
        raise DataError(
            f"{path} is missing: {self.name} needs it, {table.rows:,} rows × "
            f"{len(table.columns)} columns. Get it: {self.origin}"
        )

    def _online(self) -> pd.DataFrame:
        """The online copy, checked; TransportError says how to go on without a connection."""
        names = ", ".join(table.path for table in self.files)
        if self.fetch is None:
            raise DataError(
                f"{self.name} has no online copy that loads by itself; get {names} ({self.origin}) "
                "and name its folder with --data-dir"
            )
        try:
            # A fetch retries and warns of it; the error below is all that a reader needs.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # retries; what matters is said below
                frame = self.fetch()
        # Whatever goes wrong on the way, the reader needs one thing: how to go on without it.
        except Exception as error:
            raise TransportError(
                f"{self.name} could not be fetched online ({type(error).__name__}); with no "
                f"connection, put {names} ({self.origin}) in a folder and name it with --data-dir"
            ) from None
        whole = self.files[0]
        self._check(f"the online copy of {self.name}", frame, whole, ONLINE_TOLERANCE, online=True)
        return frame

    def _check(
        self,
        where: str,
        frame: pd.DataFrame,
        table: CsvFile,
        tolerance: float,
        online: bool = False,
    ) -> None:
        """Raise DataError unless columns, rows and the share of positives are as published."""
        missing = sorted(set(table.columns) - set(frame.columns))
        if missing:
            raise DataError(
                f"{where}: expected the columns of {self.name}, missing {', '.join(missing[:5])}; "
                f"get it again: {self.origin}"
            )
        rate = float(self.positive(frame).mean())
        rows_differ = not online and len(frame) != table.rows
        if rows_differ or abs(rate - table.rate) > tolerance:
            raise DataError(
                f"{where}: expected {table.rows:,} rows with {table.rate:.2%} positive, found "
                f"{len(frame):,} rows with {rate:.2%}; get it again: {self.origin}"
            )


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
