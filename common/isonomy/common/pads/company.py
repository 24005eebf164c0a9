"""The company's side of pads: its keys, its masked rows, and the mask that comes off again.

KeyRequest → / ← KeyHeader, KeyPart …      once per plan and group column, before it is asked about
SumHeader, Query, SumPart … →              rows under pads; in open queries the mask comes last
← Answer

A request is not stored part by part: query, rows and nonce are (openings), and with the keys they
give the same bytes again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, count, takewhile
from threading import Thread
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import (
    AttemptLost,
    IsonomyError,
    ProtocolError,
    VerificationError,
)
from isonomy.common.crypto.blinding import SEED_BYTES, Seeds
from isonomy.common.crypto.params import centre
from isonomy.common.pads.draw import RowDraw, most_drawn
from isonomy.common.pads.key_store import KeyColumn, KeyStore, keys_hash, place_of
from isonomy.common.pads.message import PadMessage, sides_of
from isonomy.common.pads.opening import shown_rows
from isonomy.common.pads.stream import CELL_BYTES, Words, part_slices, sum_modulus
from isonomy.common.pads.transfer import KeySender
from isonomy.common.privacy.queries import Query
from isonomy.common.sums.company_half import CompanyHalf, RegulatorPort, hashing
from isonomy.common.sums.openings import NONCE_BYTES, Opening, StoredRequest
from isonomy.common.sums.question import Prepared
from isonomy.common.sums.sealed_opening import Shown
from isonomy.common.wire.messages import (
    ATTEMPT_BYTES,
    KeyHeader,
    KeyPart,
    KeyRequest,
    OpeningDemand,
    SumHeader,
    decode,
    encode,
    frame_hash,
    frames_hash,
)

KEPT_BYTES = 1 << 26  # of a request's parts in memory; larger ones are computed twice
_NO_SEEDS = Seeds(bytes(SEED_BYTES), bytes(SEED_BYTES))  # pads follow from keys and nonce


class PadRows:
    """The carrier of a company that is alone in its plan (sums.company_half.CompanyCarrier).

    `tagged`: the plan names an auditor, so each person's pads are bound by tags. `millionths`: of
    the people of a query, whose rows its owner agreed to open.
    """

    name: Literal["pads"] = "pads"

    def __init__(
        self,
        port: RegulatorPort,
        half: CompanyHalf,
        store: KeyStore,
        *,
        tagged: bool = False,
        millionths: int = 0,
    ) -> None:
        self._port, self._half, self._store, self._tagged = port, half, store, tagged
        self._millionths = millionths
        self._renewed = False  # keys were dropped, and nothing was answered with new ones yet
        self._early: Thread | None = None  # transfers keys before the first question
        # Parts and mask of the newest request, by its commitment.
        self._newest: tuple[bytes, list[bytes], Words] = (b"", [], np.zeros((0, 0), np.uint64))

    def begin(self) -> None:
        """Transfer the keys of a plan's only attribute: every question will need them.

        What goes wrong shows when the first question needs them and does not find them.
        """
        attributes = tuple(self._half.terms.groups)
        if len(attributes) == 1 and self._early is None:
            self._early = Thread(target=self._transfer_early, args=(attributes,), daemon=True)
            self._early.start()

    def _transfer_early(self, attributes: tuple[str, ...]) -> None:
        with suppress(IsonomyError):
            self._keys(attributes)

    def wait(self) -> None:
        if self._early is not None:
            self._early.join()

    def attempt(self, prepared: Prepared, query_frame: bytes) -> StoredRequest:
        """Commit to the rows, hide them, and put on disk what they follow from."""
        opening = Opening(query_frame, prepared.rows, _NO_SEEDS, os.urandom(NONCE_BYTES))
        columns = self.keys(prepared.query)
        message = self._new(prepared, opening.commitment(), columns)
        hashes, parts = list[bytes](), list[bytes]()
        query, shapes = prepared.query, prepared.shapes
        cells = shapes.indicators * shapes.layout.people * query.columns
        small = cells * CELL_BYTES <= KEPT_BYTES
        for frame in message.frames():
            hashes.append(frame_hash(frame))
            parts += [frame] if small else []
        self._newest = message.commitment, parts, message.mask
        header = SumHeader(
            query_id=query.query_id,
            attempt=os.urandom(ATTEMPT_BYTES),
            query_hash=frame_hash(query_frame),
            columns_hash=keys_hash(columns),
            commitment=message.commitment,
            parts_hash=frames_hash(hashes, hashed=True),
            parts=len(hashes),
        )
        request = StoredRequest(opening, header, (encode(header),))
        self._half.openings.save(query.query_id, request)
        return request

    def frames(self, prepared: Prepared, request: StoredRequest) -> Iterable[bytes]:
        """The whole request, byte for byte as it was first sent."""
        if request.answer is not None:
            return request.frames  # its header names it: the same answer comes again
        commitment, newest, _ = self._newest
        parts: Iterable[bytes] = newest
        if commitment != request.header.commitment or not newest:
            parts = self._message(prepared, request, AttemptLost).frames()
        return chain(request.frames, [request.opening.query_frame], parts)

    def unmask(
        self, prepared: Prepared, request: StoredRequest, values: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """(sums, m) released integers; VerificationError if no honest answer can give them.

        Keys that differ from ours make every sum uniform modulo 2^32 or t, and that shows unless
        all of them fall into the honest range by chance. It finds mistakes. What keeps a regulator
        from the other keys is the check in the transfer.
        """
        query, shapes = prepared.query, prepared.shapes
        if query.kind == "blind":
            commitment, _, mask = self._newest
            if commitment != request.header.commitment:
                mask = self._message(prepared, request, VerificationError).blind_mask()
            modulus = sum_modulus(shapes)
            values = centre((values - mask.view(np.int64)) & (modulus - 1), modulus)
        bound = shapes.layout.people * query.params.row_bound + shapes.tail
        if (np.abs(values) > bound).any():
            raise VerificationError(
                "the answer is larger than any rows and noise can make it: the regulator used "
                "other keys than were transferred. Stop, and compare with the regulator."
            )
        if request.answer is None:
            self._renewed = False
        return values

    def renew(self) -> bool:
        """Drop keys that the regulator does not have; False if it just got them."""
        if self._renewed:
            return False
        self._renewed = True
        self._store.drop()
        return True

    def _message(
        self, prepared: Prepared, request: StoredRequest, error: type[IsonomyError]
    ) -> PadMessage:
        """The message of a stored request; the error if its keys were replaced since."""
        columns = self._keys_of(prepared.query, request, error)
        return self._new(prepared, request.header.commitment, columns)

    def _new(self, prepared: Prepared, commitment: bytes, columns: list[KeyColumn]) -> PadMessage:
        query, shapes = prepared.query, prepared.shapes
        slices = part_slices(shapes.layout.people, query.columns, tagged=self._tagged)
        sides = sides_of(columns, prepared.people, slice(None))
        place = (query, shapes, prepared.rows, commitment, sides, slices)
        return PadMessage(*place, tagged=self._tagged)

    def _keys_of(
        self, query: Query, request: StoredRequest, error: type[IsonomyError]
    ) -> list[KeyColumn]:
        columns = self.keys(query)
        if keys_hash(columns) != request.header.columns_hash:
            raise error(
                f"the keys of query {query.query_id!r} were replaced since it was asked; "
                "restore the openings from a backup, or begin a new plan"
            )
        return columns

    def show(self, query: Query, request: StoredRequest, demand: OpeningDemand) -> Shown:
        """The rows and row keys of the people drawn, and of nobody else."""
        if not demand.seed:
            raise ProtocolError("the regulator demands a whole request, and this plan opens rows")
        number = query.people(self._half.terms.people)
        drawn = RowDraw(demand.seed, demand.millionths).people(number)
        if len(drawn) > most_drawn(number, self._millionths):
            raise ProtocolError(
                f"the regulator demands the rows of {len(drawn)} of {number} people, more than the "
                "plan's rate can draw. Nothing was opened. Stop, and compare with the regulator."
            )
        columns, half = self._keys_of(query, request, VerificationError), self._half
        return shown_rows(request, half.shapes(query), half.terms.people, columns, demand)

    def keys(self, query: Query) -> list[KeyColumn]:
        """The keys of every released group, transferred now if they are not here yet."""
        return self._keys(query.attributes)

    def _keys(self, attributes: tuple[str, ...]) -> list[KeyColumn]:
        columns = list[KeyColumn]()
        for attribute in attributes:
            groups = len(self._half.terms.labels(attribute)) - 1
            stored = [self._store.find(self._place(attribute, group)) for group in range(groups)]
            here = list(takewhile(lambda column: column is not None, stored))
            if len(here) < groups:
                here += self._transfer(attribute, len(here), groups)
            columns += [column for column in here if column is not None]
        return columns

    def _place(self, attribute: str, group: int) -> bytes:
        terms = self._half.terms
        return place_of(terms.plan, terms.cohort.root, attribute, group)

    def _transfer(self, attribute: str, first: int, groups: int) -> Iterator[KeyColumn]:
        """KeyRequest out, KeyHeader and KeyPart … back; each group is stored when it is complete.

        A transfer that broke off goes on, with fresh points, at the first group that is missing.
        """
        terms, sender = self._half.terms, KeySender(self._place(attribute, first))
        request = encode(
            KeyRequest(*(terms.plan, terms.cohort.root), attribute, first, sender.points)
        )
        hashes = [frame_hash(request)]
        # No query's id: a transfer belongs to the plan.
        stream = hashing(self._port.columns(f"{terms.id_prefix}keys", request), hashes)
        header = decode(next(stream, b""), KeyHeader)
        if header.request_hash != hashes[0]:
            raise ProtocolError("these keys answer another request for keys")
        sender.begin(header.point)
        bodies = _bodies(stream)
        for group in range(first, groups):
            place = self._place(attribute, group)
            keys = np.stack(sender.keys(place, bodies, terms.people))
            column = KeyColumn(frames_hash(hashes, hashed=True), keys)
            self._store.save(place, column)
            yield column
        if next(stream, None) is not None:
            raise ProtocolError("more parts came after the last one of the key transfer")


def _bodies(frames: Iterator[bytes]) -> Iterator[bytes]:
    for index in count():
        part = decode(next(frames, b""), KeyPart)
        if part.index != index:
            raise ProtocolError(f"expected part {index} of the keys, got part {part.index}")
        yield part.body
