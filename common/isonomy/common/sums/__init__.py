"""The blind group sum: a question, the channel that carries it, and the regulator's rules.

Strategies enter through `oracle.GroupOracle` and know nothing else. One question takes three steps:
`_question.prepare` (pure), `channel.exchange`, `_question.assemble` (pure). Public modules:

    oracle          the interface of strategies; `FilteredOracle`
    channel         what a channel is; `Capabilities`, `Needs`, `check_needs`
    local           the channel of rehearsals; `LocalOracle.rehearse`
    encrypted       the channel of one company; company_half has its steps
    accounts        the company's books; the individual filter
    custodian       the regulator's rules for one plan: what may be asked, at what price
    regulator_half  the regulator's side of the encrypted exchange
    openings        what the company keeps of each query; sealed_opening: for the auditor
"""
