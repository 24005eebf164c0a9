"""The regulator's privacy ledger: what every person's budget was spent on, and every answer.

An append-only file of hash-chained records. Only the regulator's side writes to it; anybody who
holds a copy can verify it. It imports nothing but `base`. Public modules:

    ledger      `Ledger`, the open file; `read_ledger` and `verify_ledger`, without its lock
    records     the types of records, and their lines
    entries     the records as a story, for people
    reading     how far a long one is read, for whoever waits
    state       `LedgerState`, the rules: where a budget is checked
"""
