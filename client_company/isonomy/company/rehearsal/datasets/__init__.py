"""Data to rehearse on: benchmark sets by folder or online name, a generator, your own file.

The product ships none of the data. `load("adult", data_dir)` reads a folder of gzipped CSV files;
without a folder the same set is fetched by its online name.
"""

from __future__ import annotations

from pathlib import Path

from isonomy.common.base.errors import DataError
from isonomy.common.people.cohort import INTERSECTION
from isonomy.company.rehearsal.datasets._dataset import Dataset
from isonomy.company.rehearsal.datasets._sets import SOURCES
from isonomy.company.rehearsal.datasets.file import from_file, is_file_name
from isonomy.company.rehearsal.datasets.lending import lending

# Set → its attributes, the usual one first.
_ATTRIBUTES = {name: tuple(source.groups) for name, source in SOURCES.items()}
_ATTRIBUTES["lending"] = ("sex", "origin")
NAMES: tuple[str, ...] = tuple(_ATTRIBUTES)


def attribute_names(name: str) -> tuple[str, ...]:
    """Attributes of a set, the usual one first."""
    if name not in _ATTRIBUTES:
        raise DataError(
            f"unknown data set {name!r}; there are {', '.join(NAMES)}, or the path of a .csv, "
            ".csv.gz or .parquet file"
        )
    return _ATTRIBUTES[name]


def load(
    name: str,
    data_dir: Path | str | None = None,
    attribute: str | None = None,
    *,
    target: str | None = None,
    positive: str | None = None,
    id_column: str | None = None,
) -> Dataset:
    """A data set by name, or a table by path.

    `attribute` is one of the set's, or an intersection ("sex*race"). What it names belongs to the
    regulator and is no feature; a set's other attributes then stay features, as in the papers.
    Without it, all of the set's attributes belong to the regulator. `target`, `positive` and
    `id_column` are for files only.
    """
    if is_file_name(name):
        return from_file(
            Path(name), target=target, attribute=attribute, positive=positive, id_column=id_column
        )
    attributes = attribute_names(name)
    if target is not None or positive is not None or id_column is not None:
        raise DataError(f"target, positive label and id column belong to files; {name} has its own")
    hidden = attributes if attribute is None else tuple(attribute.split(INTERSECTION))
    if set(hidden) - set(attributes) or len(set(hidden)) != len(hidden):
        crossed = (
            f" and intersections such as {INTERSECTION.join(attributes)!r}"
            if attributes[1:]
            else ""
        )
        raise DataError(
            f"{name} has no attribute {attribute!r}; it has {', '.join(attributes)}{crossed}"
        )
    if name == "lending":
        return lending()
    return SOURCES[name].load(name, None if data_dir is None else Path(data_dir), hidden)


__all__ = ["NAMES", "Dataset", "attribute_names", "from_file", "lending", "load"]
