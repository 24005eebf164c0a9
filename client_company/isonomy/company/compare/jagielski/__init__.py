"""The two algorithms of Jagielski et al. (ICML 2019), with noise wherever the attribute is used.

`postprocess.PostprocessedClassifier` and `oracle_learner.OracleLearner` are the public face;
`rehearse` hands both to a rehearsal.
"""
