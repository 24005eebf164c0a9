"""Audits and the signed report: from noised counts to rates, intervals, tables and files.

Every number in a report follows from the ledger, and anybody can recompute it: the room needs no
encryption, no network and no role. The company's audits, the regulator's reports and the verifier
use the same functions. Public modules:

    audit, audit_cells      an audit's counts and tables, and its query
    audit_unknowns          the release of how many people have no value
    report, from_ledger     a report from a plan and the ledger
    few_shot                the report of a few-shot run
    schema, sign, verify    its files, signatures and checks; command: `isonomy-verify`

audit_rates, audit_intervals and tables are the arithmetic behind them.
"""
