"""Few-shot collaboration: both parties hold tasks and meta-train one model (docs/few-shot.md).

Two rooms. `rounds` carries vectors of integers between the parties and never looks at them; the
server and a regulator without torch import it. `learning` makes those vectors, and is the one place
in `common` that may import torch (ADR 9). Learning imports rounds, never the other way round; what
rounds knows of a learner is the protocol in `rounds/sides.py`.
"""
