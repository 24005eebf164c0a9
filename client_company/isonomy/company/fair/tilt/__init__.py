"""The strategy tilt: buy a few noised sums, learn a proxy from them, tilt the decision.

Read `strategy` first: it is the whole algorithm on one page. `releases` asks the regulator, and is
the only module here that spends privacy; `_audits`, `analysis` and `search` work on what it bought;
`rule` and `model` decide; `report` says what was done. Only the estimator enters here,
and whoever reads its report.
"""
