"""The encryption of group sums, and the group for record alignment. No keys on disk, no network.

`params` names the parameter sets, `he` makes keys, columns, sums and decryptions, `ciphertexts`
checks and adds their bytes without a key, `blinding` expands the company's randomness, `packing`
lays people and columns out. `he_vectors` encrypts whole vectors (few-shot), `ristretto` is the
group of the alignment. Imported by `sums`, `pooled`, `alignment`, `few_shot` and the relay.
"""
