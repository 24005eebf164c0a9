"""The people that a plan is about: `cohort` has the agreed ids in order, and their attributes.

`id_summary` says what a list of ids looks like, without showing any of them.

Every room may know a `Cohort`. An `AttributeTable` exists on the regulator's side only (and in
rehearsals, which play both sides).
"""
