"""The regulator's settings: regulator.toml, the policy in it, and the errors of a home.

Everybody on the regulator's side may enter; nothing here reads the vault or the ledger. Public:
`config.RegulatorConfig`, `policy.Policy`, `officers`, `faults`; `policy_template` is for `init`.
"""
