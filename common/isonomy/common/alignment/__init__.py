"""Which people do both sides know? Private set intersection, before a plan is made.

Used by the company's `align` and the regulator's daemon. No attribute is looked at and no budget is
spent here. Public modules:

    alignment   the agreement, and one side's arithmetic without a network
    session     both sides' exchange over a session
    store       approved alignments and the common people, on disk
"""
