"""Catching a company that cheats: its request is opened to the auditor and recomputed.

The regulator's daemon, the auditor's command and nobody else enter here. Public modules:

    desk        when to inspect, and what may be answered meanwhile
    audit       the auditor's checks of one opening
    _inspection  the recomputation itself
    _filter      the sum of everybody's losses, for plans with an individual filter
    verdict     the signed outcome, and the regulator's folder of openings and verdicts
"""
