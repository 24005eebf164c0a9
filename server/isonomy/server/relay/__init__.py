"""The relay: the meeting point of a plan's parties while a run lasts. It holds no key to the data.

`relay.RelayServer` is the gRPC server, `_state` the rules it applies (pure), `_store` its
checkpoint. `_sums` and `_rounds` add ciphertexts of several companies and of few-shot rounds.
`stand_alone` runs a relay without Flower, for measurements.
"""
