"""The share of people without a value, released by the regulator itself (audit_unknowns)."""

from __future__ import annotations

import numpy as np

from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.base.errors import ConfigError
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.people.cohort import Cohort
from isonomy.common.report.audit_unknowns import release_unknowns
from isonomy.regulator.vault.attributes import rows_of
from isonomy.regulator.vault.vault import VaultTable


def release_all(
    ledger: Ledger, vault: VaultTable, plan: Plan, cohort: Cohort, root: bytes, millionths: int
) -> None:
    """Release, for every attribute of the plan, how many of its people have no value.

    `millionths` of the plan's budget go to each attribute. Missing and unknown count together.
    """
    if not 1 <= millionths <= MILLION:
        raise ConfigError("the share of the budget for unknowns lies between 0 and 1")
    rows = rows_of(vault, cohort)
    for name in plan.groups:
        codes = vault.codes[name][rows]
        missing = int(np.count_nonzero(codes >= len(vault.groups[name])))
        release_unknowns(ledger, plan, root, name, missing, millionths / MILLION)
