"""What the tilt is fed with, all of it from the company's own data, so that it costs no privacy.

`checks` refuses bad input before anything is spent; `columns` turns a table into numbers and is
public as `ColumnCoder`; `features` is φ, `proxy` the posterior that it allows, `people` folds rows
into persons, `base` fits the base model. Only the estimator and `tilt` enter here.
"""
