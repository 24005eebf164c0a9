"""Decisions from a file: a CSV with the columns id, decision and perhaps label."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import ConfigError, DataError


@dataclass(frozen=True)
class Decisions:
    """Whose, what was decided, and what was true if that is known. All as text."""

    ids: list[str]
    decisions: NDArray[np.str_]
    labels: NDArray[np.str_] | None


def read_decisions(path: Path) -> Decisions:
    """Read the file; DataError names the line that cannot be used."""
    ids, decided, labels = list[str](), list[str](), list[str]()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = set(reader.fieldnames or ())
            if not {"id", "decision"} <= columns:
                raise DataError(f"{path} needs the columns id and decision (and label, if known)")
            for row in reader:
                values = [row["id"], row["decision"], row.get("label", "-")]
                if not all(value is not None and value.strip() for value in values):
                    raise DataError(f"{path}, line {reader.line_num}: an empty cell")
                ids.append(row["id"])
                decided.append(row["decision"].strip())
                labels.append((row.get("label") or "").strip())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        raise DataError(f"{path} is not a CSV file in UTF-8") from None
    if not ids:
        raise DataError(f"{path} holds no decisions")
    truth = np.array(labels) if "label" in columns else None
    return Decisions(ids, np.array(decided), truth)
