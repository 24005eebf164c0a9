"""Whose people are whose: the joint cohort is the companies' cohorts one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import ConfigError, ProtocolError
from isonomy.common.privacy.queries import Query, pack_positions


def slices_of(sizes: Iterable[int]) -> list[slice]:
    """Where cohorts of these sizes lie, one after the other."""
    stops = np.cumsum(list(sizes)).tolist()
    return [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]


def share_slices(plan: Plan) -> list[slice]:
    """Where each company's people lie in the joint cohort."""
    return slices_of(share.people for share in plan.shares)


def company_index(plan: Plan, name: str) -> int:
    """The company's place in the plan."""
    names = [card.name for card in plan.companies]
    if name not in names:
        raise ConfigError(f"{name!r} is no company of this plan")
    return names.index(name)


def joint_query(queries: Sequence[Query], shares: Sequence[slice]) -> tuple[Query, list[slice]]:
    """One query about everybody whom the companies' queries are about, in the plan's order.

    Returns it with each company's part of the people asked about. ProtocolError if the companies
    ask different things.
    """
    if len({replace(query, positions=None) for query in queries}) != 1:
        raise ProtocolError(
            "the companies ask different things under one query id; their scripts must ask the "
            "same questions in the same order"
        )
    positions = [
        query.position_array(share.stop - share.start) + share.start
        for query, share in zip(queries, shares, strict=True)
    ]
    whole = all(query.positions is None for query in queries)
    everybody = None if whole else pack_positions(np.concatenate(positions))
    parts = slices_of(each.size for each in positions)
    return replace(queries[0], positions=everybody), parts
