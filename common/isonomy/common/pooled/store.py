"""What a joint answer was given to, on the regulator's disk: one small file per query.

The ledger keeps the hash; a company that asks again has only its own part of what was hashed. For
inspections the file also holds every company's header (with its commitment), its masked totals, the
digests of its ciphertexts, and its signatures over header and digests: these travelled unsealed,
each signed in its place in the link's order, and the header binds the totals. So anybody who has
the plan can check who sent what, and nobody can deny it. `reply` holds the hash of the ciphertexts'
sum, which was decrypted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.canonical import canonical_json, hash_bytes, parse_canonical
from isonomy.common.base.errors import IsonomyError, StorageError, VerificationError
from isonomy.common.keys.identity import verify_signature
from isonomy.common.keys.party import Card
from isonomy.common.pooled.joint import JointReply, JointTotals, add_masked, joint_digests_hash
from isonomy.common.session.links import CLEAR_DOMAIN, Parcel
from isonomy.common.wire.envelopes import Data, Envelope, payload_digest
from isonomy.common.wire.messages import SumHeader, decode, frame_hash, frames_hash

_SCHEMA = 3
_WITHOUT_TOTALS = 2  # files of before: headers bound no totals, and the sum of them is all there is
_MAX_BYTES = 1 << 24  # seven companies: 7 MB of digests and signatures, 7 MB of totals
_HEADER_PLACE = 1  # in the exchange: the totals are frame 0, the header 1, the ciphertexts follow


@dataclass(frozen=True)
class Signed:
    """How one company signed its header and its ciphertexts, in this order."""

    link: bytes
    exchange: int
    sequences: tuple[int, ...]
    signatures: tuple[bytes, ...]

    @classmethod
    def of(cls, frames: Sequence[Parcel]) -> Signed:
        """The signatures of frames as they came, header first."""
        return cls(
            frames[0].link,
            frames[0].exchange,
            tuple(frame.sequence for frame in frames),
            tuple(frame.signature for frame in frames),
        )

    def check(
        self, query_id: str, sender: Card, recipient: str, plan: bytes, digests: Sequence[bytes]
    ) -> None:
        """VerificationError unless the sender signed exactly these digests, in these places."""
        if not len(self.sequences) == len(self.signatures) == len(digests):
            raise VerificationError(f"not everything that {sender.name} sent is signed")
        for index, digest in enumerate(digests):
            place = Data(
                self.exchange, _HEADER_PLACE + index, index == len(digests) - 1, 0, 1, payload=b""
            )
            envelope = Envelope(
                sender.name,
                recipient,
                plan,
                place,
                sequence=self.sequences[index],
                link=self.link,
                query_id=query_id,
                purpose="sum",
            )
            signed = envelope.header() + digest
            verify_signature(sender.signing_key, CLEAR_DOMAIN, signed, self.signatures[index])


@dataclass(frozen=True)
class JointEvidence:
    """Everything that binds a joint answer to what each company sent, in the plan's order."""

    reply: JointReply
    headers: tuple[bytes, ...]
    totals: tuple[bytes, ...]  # the frames of masked totals; empty in old files
    digests: tuple[tuple[bytes, ...], ...]
    signed: tuple[Signed, ...]

    def check_signatures(self, query_id: str, plan: Plan) -> None:
        """VerificationError unless every company of the plan signed what is kept of it here."""
        kept = (plan.companies, self.headers, self.digests, self.signed)
        if len({len(each) for each in kept}) != 1:
            raise VerificationError("the evidence is not about the companies of this plan")
        for card, header, own, signed in zip(*kept, strict=True):
            digests = (payload_digest(header), *own)
            signed.check(query_id, card, plan.regulator.name, plan.hash, digests)

    def check(self, query_id: str) -> None:
        """VerificationError unless reply, headers and digests belong together."""
        if tuple(map(frame_hash, self.headers)) != self.reply.header_hashes:
            raise VerificationError("the headers are not those of the joint reply")
        self._check_totals(query_id)
        for place, frame in enumerate(self.headers):
            header, own, signed = decode(frame, SumHeader), self.digests[place], self.signed[place]
            bound = (header.query_id, header.parts, header.parts_hash)
            if bound != (query_id, len(own), self._parts_hash(place)):
                raise VerificationError("a header does not bind the totals and digests beside it")
            if len(signed.signatures) != 1 + len(own):
                raise VerificationError("a header and its digests have a signature each")

    def _parts_hash(self, place: int) -> bytes:
        own = self.digests[place]
        if not self.totals:
            return frames_hash(own, hashed=True)
        return joint_digests_hash(self.totals[place], own)

    def _check_totals(self, query_id: str) -> None:
        """Each for this query; together what the reply says."""
        if len({len(self.headers), len(self.digests), len(self.signed)}) != 1:
            raise VerificationError("the evidence is not about the same companies throughout")
        if not self.totals:
            return
        found = [JointTotals.parse(frame) for frame in self.totals]
        if len(found) != len(self.headers) or any(own.query_id != query_id for own in found):
            raise VerificationError("the totals are not those of the headers' companies")
        if not np.array_equal(add_masked([own.masked for own in found]), self.reply.masked_total):
            raise VerificationError("the totals do not add up to those of the joint reply")


class JointStore:
    """One folder per plan."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def save(self, query_id: str, evidence: JointEvidence) -> None:
        """On disk when this returns. A later attempt at the same query replaces it."""
        content = {
            "schema": _SCHEMA,
            "query_id": query_id,
            "reply": evidence.reply.dump().hex(),
            "headers": [header.hex() for header in evidence.headers],
            "totals": [totals.hex() for totals in evidence.totals],
            "digests": [[digest.hex() for digest in own] for own in evidence.digests],
            "signed": [
                {
                    "link": own.link.hex(),
                    "exchange": str(own.exchange),  # the company's choice, of 64 bits
                    "sequences": list(own.sequences),
                    "signatures": [signature.hex() for signature in own.signatures],
                }
                for own in evidence.signed
            ],
        }
        path = self._path(query_id)
        partial = path.with_suffix(".partial")
        try:
            fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(canonical_json(content))
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise StorageError(
                f"could not store a joint request ({error.strerror}); nothing was answered"
            ) from None

    def load(self, query_id: str) -> JointEvidence | None:
        """What goes with a recorded answer. VerificationError if it is not what `save` wrote."""
        try:
            data = self._path(query_id).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"could not read a joint request ({error.strerror})") from None
        try:
            evidence = _read(parse_canonical(data, max_bytes=_MAX_BYTES), query_id)
            evidence.check(query_id)
        except (IsonomyError, KeyError, TypeError, ValueError):
            raise VerificationError(
                f"the stored joint request of {query_id!r} was changed on disk; restore it from "
                "the backup"
            ) from None
        return evidence

    def _path(self, query_id: str) -> Path:
        return (
            self._folder
            / f"{hash_bytes('isonomy/joint-file/v1', query_id.encode()).hex()[:32]}.json"
        )


def _read(found: object, query_id: str) -> JointEvidence:
    """KeyError, TypeError or ValueError for any other form than `save` writes."""
    if not isinstance(found, dict) or found["query_id"] != query_id:
        raise ValueError("another query")
    if found["schema"] == _WITHOUT_TOTALS and "totals" not in found:
        found = {**found, "totals": []}
    elif found["schema"] != _SCHEMA or not found["totals"]:
        raise ValueError("another schema")
    return JointEvidence(
        JointReply.parse(bytes.fromhex(found["reply"])),
        tuple(bytes.fromhex(header) for header in found["headers"]),
        tuple(bytes.fromhex(totals) for totals in found["totals"]),
        tuple(tuple(bytes.fromhex(digest) for digest in own) for own in found["digests"]),
        tuple(
            Signed(
                bytes.fromhex(own["link"]),
                int(own["exchange"]),
                tuple(map(int, own["sequences"])),
                tuple(bytes.fromhex(signature) for signature in own["signatures"]),
            )
            for own in found["signed"]
        ),
    )
