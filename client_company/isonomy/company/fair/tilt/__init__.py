"""`tilt`: any model made fair to groups its owner never sees (see strategy.py)."""
