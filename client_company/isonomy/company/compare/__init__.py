"""Rivals' methods, and the benchmark that puts every method side by side (docs/benchmarks.md).

For comparison only: nothing here is a protocol of this product, and no session reaches it. The
commands `isonomy simulate --strategy …` and `isonomy benchmark` enter, by name through
`rehearsal.strategies` and by `benchmark`.
"""
