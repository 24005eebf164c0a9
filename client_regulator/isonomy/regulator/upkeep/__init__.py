"""A home over the years: made, backed up, restored, rotated, examined, and people forgotten.

The commands enter here, one module per command: `home`, `backup`, `restore`, `rotation`,
`certificate_rotation`, `forget` and `doctor`. The others (`backup_list`, `carry_over`, `remains`)
are theirs. Whatever needs the ledger goes through serving/officer.
"""
