"""Several companies, each with its own people, ask as one.

`channel` is the company's side, `half` and `serving` the regulator's; `_masks` has what they share,
`_requests` what arrives through the relay, `store` what the regulator keeps of an answer. The relay
adds ciphertexts (server.relay); this room decides what may be added and decrypted.
"""
