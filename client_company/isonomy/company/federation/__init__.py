"""Taking part in a federation: the company's home folder, plans, sessions and audits.

A script enters by `joining.join`, `auditing.audit` and `align.align_records`, the commands also by
`home` and `planning`. This is the company's lowest room: it imports no other of its rooms, so
that every strategy can use what it returns.
"""
