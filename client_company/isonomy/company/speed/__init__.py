"""`isonomy bench …`: speed and size on this machine, as ratios within one run.

One module per command: `measure(announce, …)` gives its figures, `tables` shows them; `_relay` and
`_memory` are what several of them use. Only the commands enter here, and nothing imports it.
"""
