"""A results folder: results.csv, results.parquet, tables.md, figures/*.svg, index.html.

All of them are made from results.jsonl and can be made again at any time (`--figures-only`). The
table is enough to go on from: a folder that holds nothing else gets its results.jsonl back from it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import write_whole
from isonomy.common.figures.figure import page
from isonomy.company.compare.benchmark._figures import draw
from isonomy.company.compare.benchmark._published import curves
from isonomy.company.compare.benchmark._summary import means, records_of, tidy
from isonomy.company.compare.benchmark._tables import markdown
from isonomy.company.compare.benchmark.store import FILE

TABLE = "results.csv"


def write(
    records: Iterable[Mapping[str, Any]],
    out: Path,
    *,
    data_dir: Path | None = None,
    steps: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Everything that can be drawn from these results; each file replaced as a whole."""
    frame = tidy(records)
    results, published = means(frame), curves(data_dir)
    figures = draw(results, published, steps)
    parquet = io.BytesIO()
    frame.to_parquet(parquet, index=False)
    contents: dict[str, bytes] = {
        TABLE: frame.to_csv(index=False).encode(),
        "results.parquet": parquet.getvalue(),
        "tables.md": markdown(results, published).encode(),
        **{f"figures/{name}.svg": figure.svg().encode() for name, figure in figures.items()},
        "index.html": page("isonomy benchmark", list(figures.values()), heading=True).encode(),
    }
    (out / "figures").mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_whole(out / name, content)
    return [out / name for name in contents]


def restore(out: Path) -> None:
    """Finished cells from the table, where a folder has the table and no results.jsonl."""
    path = out / TABLE
    if (out / FILE).exists() or not path.is_file():
        return
    try:
        records = records_of(pd.read_csv(path, keep_default_na=False, na_values=[""]))
    except (KeyError, ValueError, AttributeError):
        raise ConfigError(f"{path} is not a table of `isonomy benchmark`; take it away") from None
    # Whole or not at all: after a part of it nothing would say that the rest is missing.
    lines = (json.dumps(record, ensure_ascii=False, allow_nan=False) for record in records)
    write_whole(out / FILE, "".join(f"{line}\n" for line in lines).encode())


def read_steps(path: Path) -> dict[str, Any]:
    """What `isonomy bench step --json` printed."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = content["rows"]
        for row in rows:
            if not all(row[f"{kind}_ms"] > 0 for kind in ("plain", "f_ld", "opacus", "pf_ld")):
                raise ValueError
            int(row["layers"]), int(row["batch"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{path} is not the output of `isonomy bench step --json`; run that again"
        ) from None
    return dict(content)
