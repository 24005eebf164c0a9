"""The regulator's privacy ledger: what every person's budget was spent on, and every answer.

An append-only file of hash-chained records. Only the regulator's side writes to it; anybody who
holds a copy can verify it. It imports nothing but `base`. Public modules:

    ledger      `Ledger`, the open file, and `verify_ledger`
    records     the types of records
    file        reading a file without its lock
    entries     the records as a story, for people
    state       `LedgerState`, the rules (private: lines, people, inspections)
"""
