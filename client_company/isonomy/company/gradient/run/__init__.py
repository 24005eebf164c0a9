"""What a training run is: the protocol that a strategy fulfils, and everything that it is given.

Public modules: `strategy` (the protocol, `Run`, chunks and records of rounds), `notions` (fairness
notions, and how to write your own), `schedule` (how the budget is shared), `bounds` (the papers'
choice of clipping bounds), `paper_epsilon` (other accountants' ε), `history`, `chunks`.
"""
