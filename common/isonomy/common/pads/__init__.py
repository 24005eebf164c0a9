"""The carrier by pads: keys are transferred once per plan, then every query is symmetric.

Everything above a channel and everything about noise, ledger, declarations, retries and answers is
that of `sums`; this room only says how the company's rows and the regulator's groups meet.

    transfer    one of two keys per person and group column, by oblivious transfer; no frames
    stream      pads from keys: the company hides rows, the regulator takes a group's sum out
    key_store   both sides' keys: `KeyStore(people, company=…, folder=…, sealing=…)`, `KeyColumn`
    draw        `RowDraw`: whose rows an inspection opens
    message     `PadMessage`: the parts of a request, for the company and for the auditor
    opening     what an auditor is shown: `shown_rows`, `show_request`
    company     `PadRows`, the carrier of `EncryptedChannel(…, carrier=partial(PadRows, store=…))`
    regulator   `PadCarrier`, the carrier of `RegulatorHalf(…, carrier=PadCarrier(…))`
    cost        `compare`: which carrier suits a plan, with the figures that say so

A request is SumHeader, Query, SumPart … in one exchange. Part p has the cells c_i of the people of
`stream.part_slices(people, columns)[p % slices]` for indicator p // slices, in the order of
`Authorised.indicators`, and both tags of each if the plan names an auditor; in open queries one
more part is the mask. With `pads = message_pads(query, shapes, commitment, …)`, the pads of these
people are `pads.words(pads.row_keys(keys))`. Why this is safe: docs/adr/0013, 0014.
Entered by `remote`, the regulator's serving and rehearsals.
"""
