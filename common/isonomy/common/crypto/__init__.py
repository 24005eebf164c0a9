"""The encryption of group sums, and the group for record alignment. No keys on disk, no network.

`params` names the parameter sets, lays people and columns out, and checks and adds ciphertexts
without a key. `he` makes keys, columns, sums and decryptions, `blinding` expands the company's
randomness. `he_vectors` encrypts whole vectors (few-shot). `ristretto` is the group of the key
transfer, `curve25519` has the points of alignments. Imported by `sums`, `pads`, `pooled`,
`alignment`, `few_shot` and the relay.
"""
