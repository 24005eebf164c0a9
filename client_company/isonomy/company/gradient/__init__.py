"""Gradient strategies for torch models: F-LD, PF-LD and DP-FERMI on the blind group sum.

| you look for | module |
|---|---|
| what a strategy must do | `strategy` |
| the training loop, checkpoints, history, plots | `trainer`, `checkpoint`, `history`, `plots` |
| fairness notions, and how to write your own | `notions` |
| PF-LD and its non-private twin F-LD | `pf_ld`, `f_ld`, `schedule` |
| DP-FERMI and the min–max loop under it | `fermi`, `ermi`, `sgda` |
| per-person gradients, never materialised | `ghost`, `subspace` |
| whole records protected, and by which releases | `record_privacy`, `record_releases`, `record_*` |
| everybody's own budget; the papers' ε | `filters`, `paper_epsilon` |
| scikit-learn's interface around it all | `classifier` |
"""
