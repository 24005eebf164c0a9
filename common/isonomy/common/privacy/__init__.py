"""Differential privacy: what a query costs, and the noise that pays for it.

Only numbers: no people, no files, no network. Public modules:

    queries        what a query is, and its sensitivity
    declarations   what a query is for, in a form that the regulator checks
    accounting     μ² to ε and back; units: the integers that the ledger adds up
    noise          exact samplers; all randomness comes from the operating system
    quantise       rows as integers, clipped exactly
    filters        individual budgets
    dual, dual_keeper   the multipliers λ of PF-LD, the same on both sides
    query_log      events for other accountants
"""
