"""The learners of a few-shot run: networks, tasks, private gradients, evaluation. Needs torch.

Public face: `learners` (one for each party), `tasks` and `pool_file` (samples), `models` (the
networks and their fingerprint), `memory` (both sides in one process) and `evaluate`. Where privacy
is decided: `private` clips, charges and adds noise, `private_round` says which sums a round takes,
and `fair` has the constraint. Imported by who meta-trains: the company's few-shot rooms, and the
regulator's daemon once a few-shot plan is approved.
"""
