"""Decisions by a rule that needs the attribute: the company has none, so the regulator applies it.

For DP-postprocessing (Jagielski et al. 2019). These decisions depend on attributes and **no budget
covers that**: a rule whose chances are 0 in one group and 1 in another reveals the attribute. So it
is forbidden unless the policy says `apply_rules = true`, is shown to the officer, and is noted in
the ledger before anything is written.

A person's coin is a keyed hash of their id, the same one in every run and under every rule. So
nobody can average the coins away, and a second run gives the same decisions.
"""

from __future__ import annotations

import csv
import hmac
import io
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isonomy.common.agreements.decision_rule import DecisionRule
from isonomy.common.agreements.plan import MILLION
from isonomy.common.base.errors import ConfigError, DataError, PolicyRefused
from isonomy.common.base.private_files import write_private
from isonomy.common.people.cohort import Cohort
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.vault.attributes import rows_of
from isonomy.regulator.vault.tables import Problems, read_rows
from isonomy.regulator.vault.vault import VaultTable

_DOMAIN = b"isonomy/rule-coin/v1\0"
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that spreadsheets calculate


@dataclass(frozen=True)
class BaseDecisions:
    """People, and what the company's base model decided about them."""

    people: Cohort
    base: NDArray[np.int64]


def check_allowed(config: RegulatorConfig) -> None:
    """Raise PolicyRefused unless the policy allows rules at all."""
    if not config.policy.apply_rules:
        raise PolicyRefused(
            "the regulator's policy does not allow decisions by attribute: they reveal the "
            "attribute outside any budget (policy.apply_rules in regulator.toml)"
        )


def read_base_decisions(path: Path) -> BaseDecisions:
    """Read a table with the columns id and decision (0 or 1), each person once."""
    problems = Problems(path, "nothing was decided")
    rows = list(read_rows(path, "id", ["decision"], problems))
    for row in rows:
        if not row.person or row.values[0] not in ("0", "1"):
            problems.add(row.where, "an id is needed, and a decision of 0 or 1")
        elif row.person.startswith(_FORMULA):  # the file with the result is opened by people
            problems.add(row.where, "a spreadsheet would take this id for a formula")
    problems.check()
    if not rows:
        raise DataError(f"{path} holds no decisions")
    base = np.array([int(row.values[0] or 0) for row in rows], dtype=np.int64)
    return BaseDecisions(Cohort.of([row.person for row in rows]), base)


def apply_rule(
    rule: DecisionRule, decisions: BaseDecisions, vault: VaultTable, key: bytes
) -> NDArray[np.int64]:
    """Return the final decisions. People without a value count to the last group, as always."""
    declared = vault.groups.get(rule.attribute)
    if declared != rule.groups:
        raise ConfigError(
            f"the rule is for {rule.attribute!r} with groups {', '.join(rule.groups)}; here it "
            f"has {', '.join(declared) if declared else 'no such attribute'}"
        )
    rows = rows_of(vault, decisions.people)
    codes = np.minimum(vault.codes[rule.attribute][rows].astype(np.int64), len(rule.groups) - 1)
    return rule.apply(decisions.base, codes, coins(decisions.people.keys, key))


def coins(ids: Sequence[str], key: bytes) -> NDArray[np.int64]:
    """Return (people,) draws from 0 to 999,999. Their bias, 2^-44, is below any count of people."""
    draws = [hmac.digest(key, _DOMAIN + person.encode(), sha256) for person in ids]
    return np.array([int.from_bytes(raw[:8], "big") % MILLION for raw in draws], dtype=np.int64)


def write_decisions(path: Path, ids: Sequence[str], decisions: NDArray[np.int64]) -> None:
    """Write a CSV file that only its owner may read, because it reveals attributes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "decision"])
    writer.writerows(zip(ids, decisions.tolist(), strict=True))
    write_private(path, text.getvalue().encode())
