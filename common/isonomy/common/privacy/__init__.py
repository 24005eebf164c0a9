"""Differential privacy: what a query costs, and the noise that pays for it.

Only numbers: no people, no files, no network. Public modules:

    queries        what a query is, and its sensitivity
    declarations   what a query is for, in a form that the regulator checks
    accounting     μ² to ε and back, in the integers that the ledger adds up
    noise          exact samplers; sums/noise_and_budget.py adds what they draw to an answer
    quantise       rows as integers, clipped exactly
    filters        individual budgets
    task_counts    what a few-shot model is measured by, and how far a sample moves it
    dual           the multipliers λ of PF-LD, the same on both sides
"""
