"""A home over the years: made, backed up, restored, rotated, examined, and people forgotten.

The commands enter here, one module per command: `home`, `backup`, `restore`, `rotation`, `forget`
and `doctor`. `_carry_over` and `_remains` are private to them. Whatever needs the ledger goes
through serving/officer.
"""
