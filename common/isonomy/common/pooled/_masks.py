"""Several companies, each with its own people: what they and the regulator agree on.

    people     disjoint; the joint cohort is the companies' cohorts one after the other (people.py)
    key        one per query, the regulator's; each company gets columns of its own people only
    blocks     one size for all, so that the same coefficient holds everybody's sum
    masks      company j adds the mask that follows from K_q and j (sums/pool_masks.py); K is known
               to the companies only, so each takes the sum of all masks off the answer
    totals     each company's public totals travel under such a mask too; the regulator adds them

K comes from X25519 between the first two companies' pinned keys; with more than two, both send it
to the others over their sealed links, who compare: one company that could hand out another key
would alone be able to read the answers. What the companies learn of each other: the totals of all
together; with two companies each one therefore learns the other's. The regulator sees masked
numbers, the relay ciphertexts.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from numpy.typing import NDArray

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import ProtocolError
from isonomy.common.keys.party import PartyKeys
from isonomy.common.pooled.people import company_index
from isonomy.common.session.connection import Session
from isonomy.common.session.sealed_links import Parcel
from isonomy.common.sums.pool_masks import KEY_BYTES, QueryMasks


class MaskKey:
    """K, from which the masks of every query follow."""

    def __init__(self, key: bytes, companies: int) -> None:
        if len(key) != KEY_BYTES:
            raise ProtocolError("the companies' shared key has another size")
        self._key, self._companies = key, companies

    def masks(self, query_id: str, attempt: bytes) -> QueryMasks:
        """The masks of one attempt at one query."""
        place = hash_bytes("isonomy/joint-query-key/v1", query_id.encode(), attempt)
        return QueryMasks(hmac.digest(self._key, place, "sha256"), self._companies)


def agree_mask_key(session: Session) -> MaskKey:
    """K, from the pinned keys, or from the first two companies, which must agree."""
    plan, keys = session.plan, session.keys
    names = [card.name for card in plan.companies]
    place = company_index(plan, keys.name)
    if place > 1:
        frames = [session.receive(name) for name in names[:2]]
        if any(frame.purpose != "joint" for frame in frames):
            raise ProtocolError(f"expected the companies' shared key from {names[0]}, {names[1]}")
        if not hmac.compare_digest(frames[0].payload, frames[1].payload):
            raise ProtocolError(
                f"{names[0]} and {names[1]} sent different keys for the companies' masks; nothing "
                "was asked. One of them does not run what was agreed"
            )
        return MaskKey(frames[0].payload, len(names))
    key = pair_key(keys, plan, 1 - place)
    for other in names[2:]:
        # To every incarnation: a company that restarts needs it again.
        session.greet(other, Parcel(other, "joint", "", 0, 0, True, key))
    return MaskKey(key, len(names))


def pair_key(keys: PartyKeys, plan: Plan, other: int) -> bytes:
    """What only these two companies can compute. The same after a restart, so stored answers can
    be unmasked again.
    """
    public = X25519PublicKey.from_public_bytes(plan.companies[other].sealing_key)
    secret = keys.sealing.exchange(public)
    return hmac.digest(secret, hash_bytes("isonomy/joint-key/v1", plan.hash), "sha256")


def add_masked(vectors: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Sum modulo 2^64; all of one length."""
    if len({vector.size for vector in vectors}) != 1:
        raise ProtocolError("the companies' totals have different lengths")
    total = np.zeros_like(vectors[0])
    for vector in vectors:
        total += vector
    return total
