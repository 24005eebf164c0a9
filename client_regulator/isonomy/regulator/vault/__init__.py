"""People and attributes at rest: encrypted files, the secret that opens them, and what is in them.

`vault` holds people, `task_pools` few-shot samples, both in `sealed_file`s; `unlock` asks for the
secret; `enrolment` and `tables` bring people in; `attributes` hands a plan's columns out;
`member_key` is the key of the ledger's hashes. Attributes leave this room only through
`attributes.load_table` and `VaultTable`, to what answers queries or to the officer's eyes.
"""
