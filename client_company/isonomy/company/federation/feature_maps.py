"""A feature map from a data dictionary: a table of columns, ranges and levels (CSV).

    name,low,high,typical,spread,levels
    income,0,200000,35000,20000,
    purpose,,,,,car|house|other

Everything in it is public: the lenders agree on it before anything is asked. No lender's table is
read to make it.
"""

from __future__ import annotations

import csv
from pathlib import Path

from isonomy.common.agreements.feature_map import PublicFeatures
from isonomy.common.base.canonical import canonical_json, hash_bytes
from isonomy.common.base.documents import read_bounded
from isonomy.common.base.errors import DataError

FIELDS = ("name", "low", "high", "typical", "spread", "levels")
MAX_BYTES = 1 << 18


def read_description(path: Path, seed: int | None = None) -> PublicFeatures:
    """The map that a description makes; `seed` draws its random features, None: its own hash."""
    try:
        lines = read_bounded(path, MAX_BYTES).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8; save the description as CSV") from None
    rows = list(csv.DictReader(lines))
    names = list(rows[0]) if rows else []
    if "name" not in names or set(names) - set(FIELDS):
        raise DataError(f"{path} needs a first line with {', '.join(FIELDS)} (name is required)")
    columns = []
    for row in rows:
        if None in row or None in row.values():
            raise DataError(
                f"{path}: the line of {row.get('name')!r} has too many or too few fields"
            )
        fields = {name: text.strip() for name, text in row.items() if text.strip()}
        levels = fields.pop("levels", "")
        named = [level.strip() for level in levels.split("|")] if levels else []
        columns.append({**fields, **({"levels": named} if named else {})})
    if seed is None:
        digest = hash_bytes("isonomy/feature-map-seed/v1", canonical_json(columns))
        seed = int.from_bytes(digest[:4])
    return PublicFeatures.of({"columns": columns, "seed": seed})
