"""Few-shot collaboration: both parties hold tasks and meta-train one model (docs/few-shot.md).

The one part of `common` that may need torch: whoever meta-trains needs it, on either side. What
carries the numbers (`settings`, `sides`, and the exchange above them) does not.
"""
