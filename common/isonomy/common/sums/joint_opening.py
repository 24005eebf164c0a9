"""The opening of a query that several companies asked: one sealed part of each, bound together.

    isonomy-joint-opening 1 | plan | query id | joint request | demand | part | part …

Every company seals its own part to the auditor and signs it; nobody else can read it, and no
company sees another one's. The joint request (PooledReply) names every part's header by its hash,
and its own hash is the one that was demanded, and that the ledger has.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from isonomy.common.base.errors import ConfigError, IsonomyError, ProtocolError
from isonomy.common.base.private_files import write_private
from isonomy.common.sums.openings import cut_chunks, join_chunks
from isonomy.common.sums.pool_masks import PooledReply
from isonomy.common.sums.sealed_opening import SealedOpening
from isonomy.common.wire.messages import MAX_OPENING_BYTES

MAGIC = b"isonomy-joint-opening 1"
_MAX_PARTS = 7


@dataclass(frozen=True, repr=False)
class JointOpening:
    """All companies' parts, in the plan's order."""

    plan: bytes
    query_id: str
    reply: PooledReply
    parts: tuple[SealedOpening, ...]
    demand: bytes = b""  # the regulator's signed demand

    @property
    def request_hash(self) -> bytes:
        return self.reply.request_hash()

    def save(self, path: Path) -> None:
        """All or nothing, for the owner's eyes only."""
        parts = [join_chunks([part.request_hash, part.signature, part.box]) for part in self.parts]
        named = [MAGIC, self.plan, self.query_id.encode(), self.reply.dump(), self.demand]
        write_private(path, join_chunks([*named, *parts]))

    @classmethod
    def load(cls, path: Path) -> JointOpening:
        """Total: whatever the file holds, an opening or a ConfigError."""
        try:
            if path.stat().st_size > _MAX_PARTS * MAX_OPENING_BYTES:
                raise ValueError("too large")
            magic, plan, query, reply, demand, *raw = cut_chunks(path.read_bytes())
            if magic != MAGIC:
                raise ValueError("another file")
            query_id, parts = query.decode(), []
            for each in raw:
                request_hash, signature, box = cut_chunks(each)
                parts.append(SealedOpening(plan, query_id, request_hash, box, signature, demand))
            return cls(plan, query_id, PooledReply.parse(reply), tuple(parts), demand)
        except OSError as error:
            raise ConfigError(f"cannot read the opening {path}: {error.strerror}") from None
        except (ValueError, struct.error, IsonomyError):
            raise ConfigError(f"{path} is not an opening, or it was cut off") from None

    def check_whole(self, companies: int) -> None:
        """ProtocolError unless there is one part of each company, all of this very request."""
        names = {(part.plan, part.query_id, part.request_hash) for part in self.parts}
        whole = {(self.plan, self.query_id, self.request_hash)}
        if len(self.parts) != companies or names != whole:
            raise ProtocolError("a joint opening has one part of each company, of one request")


def load_opening(path: Path) -> SealedOpening | JointOpening:
    """The opening in a file, of one company or of several."""
    try:
        with path.open("rb") as file:
            joint = MAGIC in file.read(8 + len(MAGIC))
    except OSError as error:
        raise ConfigError(f"cannot read the opening {path}: {error.strerror}") from None
    return JointOpening.load(path) if joint else SealedOpening.load(path)
