"""How an officer declares groups, and how a file spells them.

NAME=LABEL,LABEL…    an attribute and its groups            VALUE=GROUP    a file's own spelling
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from isonomy.common.base.errors import ConfigError
from isonomy.common.people.cohort import with_not_stated, written_as
from isonomy.regulator.vault.tables import Row


def parse_groups(texts: Iterable[str], complete: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """["sex=female,male"] to {"sex": ("female", "male", "not stated")}.

    Nothing is added to attributes in `complete`, nor to a group that takes people without a value.
    """
    groups: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, labels = text.partition("=")
        if not equals or not name or name in groups:
            raise ConfigError(f"--groups {text!r} is not NAME=LABEL,LABEL, or repeats a name")
        names = tuple(label.strip() for label in labels.split(","))
        groups[name] = names if name in complete else with_not_stated(names)
    strangers = set(complete) - set(groups)
    if strangers:
        raise ConfigError(f"--complete names {sorted(strangers)}, which no --groups declares")
    return groups


def translations(
    texts: Iterable[str], groups: Mapping[str, Sequence[str]]
) -> list[dict[str | None, str]]:
    """["f=female"] to a dictionary for each attribute, for those that have this group."""
    tables: list[dict[str | None, str]] = [{} for _ in groups]
    for text in texts:
        value, equals, label = (part.strip() for part in text.partition("="))
        spelled = [{*labels, *map(written_as, labels)} for labels in groups.values()]
        places = [place for place, labels in enumerate(spelled) if label in labels]
        if not equals or not value or not places:
            raise ConfigError(f"--map {text!r} is not VALUE=GROUP with a declared group")
        for place in places:
            if value in spelled[place] or value in tables[place]:
                raise ConfigError(f"--map {text!r}: {value!r} is a group itself, or mapped twice")
            tables[place][value] = label
    return tables


def translated(rows: Iterator[Row], tables: Sequence[dict[str | None, str]]) -> Iterator[Row]:
    """Yield the rows with each value as the groups spell it."""
    for row in rows:
        pairs = zip(row.values, tables, strict=True)
        values = tuple(table.get(value, value) for value, table in pairs)
        yield Row(row.where, row.person, values)
