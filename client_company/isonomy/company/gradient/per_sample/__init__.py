"""Per-person gradients of torch models: lengths, Gram matrices and sums, without a row per person.

Torch only: this room knows neither the oracle nor privacy. `ghost.ChunkGradients` is its face;
`tracing` records a forward pass, the private modules hold the arithmetic of single layers.
"""
