"""The names of the fairness notions: one list for plans, policies, strategies, audits and reports.

What a notion compares between groups is defined where it is computed: by events in the company's
strategies, by rates in a report (report/audit_cells.py).
"""

from __future__ import annotations

NOTIONS = (
    "demographic_parity",
    "equalized_odds",
    "equal_opportunity",
    "equal_fpr",
    "accuracy_parity",
)
# What scores can be trained for. An audit counts people above the median of all scores and at no
# other cut-off, so a report shows that one difference and gives no verdict about the tolerance.
SCORE_NOTIONS = ("score_parity",)
# Gradient strategies can train for these, but no audit counts what they compare. So a report could
# never show whether they were reached, and a plan that names one is refused.
REHEARSAL_NOTIONS = ("loss_parity",)
