"""One private sum of gradients: how a chunk's gradients become rows that the oracle is asked about.

`primal.private_sum` is the face. It takes the model's coordinates, noisy weights of people
(`filled`) or the chunk's span, whichever has the least noise. Clipping happens here, before any
row leaves for the oracle; noise and price are the oracle's (common.sums).
"""
