"""What crosses the network: checked types, and total parsers for every byte that a peer may send.

`messages` has the frames of a query, `_opening_messages` those of an inspection, `envelopes` what
carries them through the relay. A parser returns a checked message or raises ProtocolError.
"""
