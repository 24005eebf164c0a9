"""Decisions: which of them is the favourable one, and decisions from a file.

A file is a CSV with the columns id, decision and perhaps label; or id and score.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import ConfigError, DataError

_USUAL = ({0, 1, "0", "1"}, {-1, 1, "-1", "1"})  # False and True equal 0 and 1


def favourable(classes: Sequence[Any], pos_label: Any) -> Any:
    """The class that counts as selected: `pos_label`, or 1 where classes are 0/1, ±1 or booleans.

    Nobody can guess that "approve" is good and "deny" is not, so other classes need the name.
    """
    names = ", ".join(repr(each) for each in classes[:8])
    if pos_label is None:
        for usual in _USUAL:
            if set(classes) <= usual:
                return next((each for each in classes if str(each) in ("1", "1.0", "True")), 1)
        raise ConfigError(
            f"say which class is the favourable decision: pos_label=…, one of {names}. The "
            "default, 1 (True), is for 0/1, -1/1 and booleans only. Nothing was asked."
        )
    if np.ndim(pos_label) == 0:
        same = [each for each in classes if each == pos_label]
        if same or len(classes) == 1:  # decisions that select nobody hold one class only
            return same[0] if same else pos_label
    raise ConfigError(
        f"pos_label is {pos_label!r}, but the classes are {names}. Nothing was asked."
    )


@dataclass(frozen=True)
class Decisions:
    """Whose, what was decided, and what was true if that is known. All as text."""

    ids: list[str]
    decisions: NDArray[np.str_]
    labels: NDArray[np.str_] | None
    scored: bool = False  # the decisions are scores


def read_decisions(path: Path) -> Decisions:
    """Read the file; DataError names the line that cannot be used."""
    ids, decided, labels = list[str](), list[str](), list[str]()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = set(reader.fieldnames or ())
            column = "score" if "score" in columns else "decision"
            if not {"id", column} <= columns or {"score", "decision"} <= columns:
                raise DataError(
                    f"{path} needs the columns id and decision (and label, if known), or id and "
                    "score"
                )
            for row in reader:
                values = [row["id"], row[column], row.get("label", "-")]
                if not all(value is not None and value.strip() for value in values):
                    raise DataError(f"{path}, line {reader.line_num}: an empty cell")
                ids.append(row["id"])
                decided.append(row[column].strip())
                labels.append((row.get("label") or "").strip())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        raise DataError(f"{path} is not a CSV file in UTF-8") from None
    if not ids:
        raise DataError(f"{path} holds no decisions")
    scored = column == "score"
    truth = np.array(labels) if "label" in columns and not scored else None
    return Decisions(ids, np.array(decided), truth, scored)


def numbers(texts: NDArray[np.str_]) -> NDArray[np.float64]:
    """Scores as numbers; DataError if one is none."""
    try:
        return texts.astype(np.float64)
    except ValueError:
        raise DataError("a score is not a number") from None
