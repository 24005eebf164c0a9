"""Several companies, each with its own people, ask as one.

`channel` is the company's side, `half` and `serving` the regulator's; `people` says whose people
are whose, `_masks` what the companies share, `_requests` what arrives through the relay, `store`
what the regulator keeps of an answer, `alone` what one company may ask by itself; `rehearsal` has
all of them in one process. The relay adds ciphertexts (server.relay); this room decides what may be
added and decrypted.
"""
