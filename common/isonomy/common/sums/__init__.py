"""The blind group sum: a question, the channel that carries it, and the regulator's rules.

Strategies enter through `oracle.GroupOracle` and know nothing else. One question takes three steps:
`question.prepare` (pure), `channel.exchange`, `question.assemble` (pure). Public modules:

    oracle            the interface of strategies; `FilteredOracle`
    question          what is asked, as integers, and what is answered, as values
    channel           what a channel is; `Capabilities`, `Needs`, `check_needs`
    local             the channel of rehearsals; `LocalOracle.rehearse`
    company_half      the company's half of the encrypted exchange; the channel of one company
    regulator_half    the regulator's half
    noise_and_budget  the regulator's rules for one plan: budgets are checked, noise is added
    accounts          the company's books; the individual filter
    openings          what the company keeps of each query; sealed_opening: for the auditor
    pool_masks        what binds the parts of several companies; joint_opening: all their parts
"""
