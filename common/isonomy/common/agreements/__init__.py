"""What owners agree to before their machines talk, and what each of them has approved.

Everybody may enter: plans are named in every message, approved on both sides and shown to the
server in part. Public modules:

    agreement       what all agreements share, and the part that the server is told
    plan            the run plan
    about           what it is about, in words
    few_shot_plan   the plan of a few-shot run, with few_shot_settings
    notions         names of the fairness notions that a plan can name
    approvals       approved agreements on disk
"""
