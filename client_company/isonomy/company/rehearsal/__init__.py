"""Rehearsals: strategies on data where both sides are known, before a real budget is spent.

`simulate.simulate` runs and measures, `report` shows the result, `strategies` lists what can be
rehearsed and makes the oracle, `measures` says how unfair decisions are. The commands `simulate`
and `benchmark` enter here; the demonstration uses the data sets and measures. Nothing in this room
takes part in a session: it sees true attributes.
"""
