"""Fair scores: one rule for every cut-off, on the releases of tilt.

`levels` says which values a score takes and what each costs; `base` fits the company's model out of
fold; `regressor` is the estimator; `report` says what was done.
"""
