"""The default way to a fair model: train any classifier, then tilt its decisions (docs/tilt.md).

Everybody enters by `estimator.FairClassifier`; `save` writes and reads its model folder. The
strategy itself is in `tilt`, what it is fed with in `inputs`, the ONNX form in `onnx_export`. The
room knows an oracle and nothing of sessions, and needs torch only in `torch_adapter`.
"""
