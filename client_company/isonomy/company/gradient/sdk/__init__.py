"""What engineers import: the scikit-learn estimator, plots of a run, lengths of gradients.

`classifier.GradientFairClassifier` wraps a strategy and the trainer; `plots` draws a history;
`lengths` measures a model's gradients before a run. isonomy.company re-exports all of it.
"""
