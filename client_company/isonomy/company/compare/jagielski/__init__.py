"""The two algorithms of Jagielski et al. (ICML 2019), with noise wherever the attribute is used.

`postprocess` and `oracle_learner` each have a `train` for a rehearsal; `game` has the auditor of
the second, which the reductions use too.
"""
