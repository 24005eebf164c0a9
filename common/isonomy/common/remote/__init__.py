"""The blind group sum between machines: exchanges of `sums` over a `session`.

`exchanges` has the company's port and channel, the wrapper that asks again after a restart, and the
regulator's loop. It adds no rule of privacy: those are in sums/noise_and_budget.py.
"""
