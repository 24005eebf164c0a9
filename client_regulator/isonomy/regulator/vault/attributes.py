"""What answers a plan: its attributes, of its people, in its order, out of the vault."""

from __future__ import annotations

import numpy as np

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.people.cohort import AttributeTable, Cohort, no_place, takes_missing
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.vault.vault import UNKNOWN, VaultTable


def load_table(
    config: RegulatorConfig, vault: VaultTable, plan: Plan, cohort: Cohort
) -> AttributeTable:
    """Return the plan's attributes of its people; ConfigError unless groups are as declared."""
    check_declared(config, vault)
    for name, labels in plan.groups.items():
        declared = vault.groups.get(name)
        if declared != tuple(labels):
            raise ConfigError(
                f"the plan asks for {name!r} with groups {', '.join(labels)}; this regulator "
                f"declares {', '.join(declared) if declared else 'no such attribute'}"
            )
    rows = rows_of(vault, cohort)
    values: dict[str, list[str | None]] = {}
    for name in plan.groups:
        meanings: list[str | None] = [*vault.groups[name], None]
        # MISSING and UNKNOWN are larger than any group's number, so both become the last: None.
        codes = np.minimum(vault.codes[name][rows], len(meanings) - 1)
        values[name] = [meanings[code] for code in codes.tolist()]
    return AttributeTable(cohort, values, plan.groups)


def rows_of(vault: VaultTable, cohort: Cohort) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return (people,) the cohort's rows in the vault; DataError if somebody is not enrolled."""
    rows = vault.find(cohort.ids)
    unknown = int((rows < 0).sum())
    if unknown:
        # A number, never a name: this text may reach the other side.
        raise DataError(
            f"{unknown} of {len(cohort)} people are not enrolled here, so nothing was done; align "
            "the records again"
        )
    return rows


def check_declared(config: RegulatorConfig, vault: VaultTable) -> None:
    """Raise ConfigError if [groups] in regulator.toml contradicts the vault, or it itself.

    The whole vault is looked at: a refusal that depended on a plan's people would tell about them.
    """
    for name, labels in vault.groups.items():
        if not takes_missing(labels) and (vault.codes[name] >= UNKNOWN).any():
            raise ConfigError(f"{name!r}: {no_place(labels)}; then enroll with --update")
        if name in config.groups and config.groups[name] != labels:
            raise ConfigError(
                f"regulator.toml declares other groups for {name!r} than those that people were "
                f"enrolled under ({', '.join(labels)}); put these back, or enroll anew"
            )
