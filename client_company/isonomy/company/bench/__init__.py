"""`isonomy bench …`: speed and size on this machine, as ratios within one run.

One module per command, each with its own table of what it measures. Only the commands enter here,
and nothing imports it.
"""
