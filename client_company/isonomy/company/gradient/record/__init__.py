"""Whole records protected: what the company's own steps release about a record, and its accounting.

`privacy` has the settings and the plan of all noise, `releases` the mechanisms. The attributes'
guarantee is the ledger's and does not depend on this room.
"""
