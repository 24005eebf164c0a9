"""The regulator at work: the daemon that answers, and the officer's commands that reach it.

Only this room changes the ledger. The commands and `upkeep` enter through `officer.ask`,
`approving`, `aligning`, `status` and `witness`; `cli` starts `daemon.Daemon`. The rest is private
to the daemon.
"""
