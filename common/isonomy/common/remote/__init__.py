"""The blind group sum between machines: exchanges of `sums` over a `session`.

`remote` has the company's port and channel, the wrapper that asks again after a restart, and the
regulator's loop. It adds no rule of privacy: those are the custodian's (sums).
"""
