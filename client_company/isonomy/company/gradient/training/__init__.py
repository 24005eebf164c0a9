"""The training loop of all gradient strategies: input checks, rounds, checkpoints, early stopping.

`trainer.Trainer` is the face; `checks` finds bad input before any budget is spent.
"""
