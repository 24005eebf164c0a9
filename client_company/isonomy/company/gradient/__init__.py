"""Gradient strategies for torch models: F-LD, PF-LD, DP-FERMI and DP-SGDA on the blind group sum.

| you look for | room |
|---|---|
| what a strategy must do; notions, and how to write your own; the papers' ε | `run` |
| per-person gradients, never materialised; one private sum of them | `per_sample`, `sums` |
| PF-LD and its twin without privacy, F-LD | `pf_ld` |
| DP-FERMI and DP-SGDA | `fermi` |
| whole records protected, and by which releases | `record` |
| the training loop and its checkpoints | `training` |
| scikit-learn's interface, plots | `sdk` |
"""
