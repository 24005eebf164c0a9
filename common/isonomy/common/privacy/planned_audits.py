"""Audits that a plan keeps its budget for: how many, what each may cost, and what is kept.

With a cap of C units, N audits of a units each and k of them answered, every person's spending
s stays within

    s ≤ C − (N − k)·a

A question that is no audit is refused beyond that, and an audit may cost at most a. So the audits
that are still to come always fit, with the same noise each.

Guarantees (tests/common/privacy/test_planned_audits.py)
  planned_audits_always_fit   after any questions that were answered, N − k audits of a units fit
  no_audit_more               audit N + 1 is refused, also if budget is left
"""

from __future__ import annotations

from dataclasses import dataclass

from isonomy.common.base.errors import BudgetExceeded, ConfigError

AUDIT_SHARE = 0.05  # of a plan, for an audit beside a training
MOST_BESIDE_TRAINING = 10  # so that half of the plan is left for it
MOST = 400  # weekly, for almost eight years


@dataclass(frozen=True)
class PlannedAudits:
    """N audits of `units` each. None planned: N = 0, and nothing is kept."""

    number: int = 0
    units: int = 0

    @classmethod
    def of(cls, number: int, cap_units: int, strategy: str) -> PlannedAudits:
        """A twentieth of the plan each; equal parts of all of it where nothing is trained."""
        if not number:
            return cls()
        most = MOST if strategy == "audit" else MOST_BESIDE_TRAINING
        if not 0 < number <= most:
            raise ConfigError(
                f"a plan keeps its budget for 1 to {MOST_BESIDE_TRAINING} audits beside a "
                f"training, or 1 to {MOST} where nothing is trained (strategy audit); got {number}"
            )
        part = cap_units // number if strategy == "audit" else int(AUDIT_SHARE * cap_units)
        return cls(number, part)

    def share(self, cap_units: int) -> float:
        """What one audit takes of the plan."""
        return self.units / cap_units if self.number else AUDIT_SHARE

    def kept(self, answered: int) -> int:
        """Units that are kept for the audits still to come."""
        return max(self.number - answered, 0) * self.units

    def kept_beside(self, units: int, answered: int, *, audit: bool) -> int:
        """Units that must be left after a question of this price; BudgetExceeded for an audit that
        the plan does not have, or that costs more than the plan says.
        """
        if not self.number or not audit:
            return self.kept(answered)
        if answered >= self.number:
            raise BudgetExceeded(
                f"all {self.number} audits of this plan are done; have a new plan approved. "
                "Nothing was spent."
            )
        if units > self.units:
            raise BudgetExceeded(
                "this audit costs more than the plan keeps for each of its "
                f"{self.number}; leave its share out to take just that. Nothing was spent."
            )
        return self.kept(answered + 1)


NO_AUDITS = PlannedAudits()
