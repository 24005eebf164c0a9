"""The regulator's attributes, and the ledger and key that go with them.

Here a CSV file stands for the vault: an id column and one column per declared attribute; an empty
cell is a missing value. Values are read when a session begins and leave only as encrypted columns.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from isonomy.common.accounting import units_for
from isonomy.common.cohort import AttributeTable, Cohort, normalise_id
from isonomy.common.errors import ConfigError, DataError
from isonomy.common.ledger import Ledger
from isonomy.common.plan import Plan
from isonomy.regulator.config import RegulatorConfig

MEMBER_KEY_BYTES = 32


def make_member_key(config: RegulatorConfig) -> None:
    """Make the key under which the ledger knows people; without it the ledger names nobody.

    Lose it and nobody's spent budget can be found again: back it up with the ledger.
    """
    path = _member_key_path(config)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(os.urandom(MEMBER_KEY_BYTES))
        file.flush()
        os.fsync(file.fileno())


def member_key(config: RegulatorConfig) -> bytes:
    """Read the key of the ledger's people."""
    path = _member_key_path(config)
    try:
        mode, raw = path.stat().st_mode, path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}. `isonomy-regulator keys` makes it once; if it "
            "was lost, restore it from the backup, because the ledger cannot be read without it"
        ) from None
    if mode & 0o077 or len(raw) != MEMBER_KEY_BYTES:
        raise ConfigError(f"{path} must be {MEMBER_KEY_BYTES} bytes that only its owner may read")
    return raw


def open_ledger(config: RegulatorConfig) -> Ledger:
    """Open the ledger; make it on the first use."""
    path, delta = config.ledger.path, float(config.ledger.delta)
    if not path.exists():
        cap = units_for(float(config.ledger.epsilon), delta)
        return Ledger.create(path, cap_units=cap, delta=delta)
    return Ledger.open(path)


def load_table(config: RegulatorConfig, plan: Plan, cohort: Cohort) -> AttributeTable:
    """Read the attributes that the plan asks for, of the plan's people, in the plan's order."""
    for name, labels in plan.groups.items():
        declared = config.groups.get(name)
        if declared != tuple(labels):
            raise ConfigError(
                f"the plan asks for {name!r} with groups {', '.join(labels)}; this regulator "
                f"declares {', '.join(declared) if declared else 'no such attribute'}"
            )
    rows = _read_csv(config.attributes, config.id_column, tuple(plan.groups))
    unknown = sum(person not in rows for person in cohort.ids)
    if unknown:
        # A number, never a name: this text may reach the other side.
        raise DataError(
            f"{unknown} of the plan's {len(cohort)} people are not enrolled here; align the "
            "records again and make a new plan"
        )
    values = {name: [rows[person][name] or None for person in cohort.ids] for name in plan.groups}
    return AttributeTable(cohort, values, plan.groups)


def _read_csv(path: Path, id_column: str, names: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = {id_column, *names} - set(reader.fieldnames or ())
            if missing:
                raise DataError(f"{path} has no column {', '.join(sorted(missing))}")
            rows: dict[str, Mapping[str, str]] = {}
            for row in reader:
                person = normalise_id(row[id_column])
                if person in rows:
                    raise DataError(f"{path}: line {reader.line_num} repeats an id")
                rows[person] = {name: row[name] or "" for name in names}
            return rows
    except OSError as error:
        raise ConfigError(f"cannot read the attributes {path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        raise DataError(f"{path} is not a CSV file in UTF-8") from None


def _member_key_path(config: RegulatorConfig) -> Path:
    return config.keys_folder / "member.key"
