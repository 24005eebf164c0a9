"""The rounds of a few-shot run between one company and one regulator, without torch.

Public face: `sides` (what a learner must offer), `session.train` (the company's loop),
`serving.serve_rounds` with `desk.RoundDesk` (the regulator's loop, and where a round is paid for
before it leaves), `state` (what a company stores). The plan is in common/agreements. Private:
`_messages` and `_rounds`, the bytes and the rules of one round. The command lines of both parties
and their daemons enter here; the relay adds the ciphertexts by itself.
"""
