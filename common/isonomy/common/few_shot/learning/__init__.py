"""The learners of a few-shot run: networks, tasks, private gradients, evaluation. Needs torch.

Public face: `learners` (one for each party), `tasks` and `pool_file` (samples), `models` (the
networks and their fingerprint), `memory` (both sides in one process) and `evaluate`. Where privacy
is decided: `_private` clips, charges and adds noise, `_private_round` says which sums a round
takes, and `_fair` has the constraint. Imported by who meta-trains: the company's few-shot rooms,
and the regulator's daemon once a few-shot plan is approved.
"""
