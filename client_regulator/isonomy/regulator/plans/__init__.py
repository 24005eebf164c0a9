"""Plans on the regulator's side: where their files lie, and every rule that they have to meet.

The rules are pure: they read policy, ledger and vault, and change nothing. Who approves, rejects or
answers (serving, the commands) asks them first. Public: `approval` and `plan_files`.
"""
