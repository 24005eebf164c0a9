"""The two algorithms of Jagielski et al. (ICML 2019), with noise wherever the attribute is used.

`_postprocess.PostprocessedClassifier` and `_oracle_learner.OracleLearner` are the public face;
`rehearse` hands both to a rehearsal.
"""
