"""The regulator's side of pads: it transfers keys, and takes sums out of masked rows.

    columns(KeyRequest)                →  KeyHeader, KeyPart …   stored before the last part leaves
    read(SumHeader, Query, SumPart …)  →  exact or masked sums   noise, ledger and answer follow

Nothing is decrypted, so no crafted message is an attack on a key: whatever cells come, they are the
pads of *some* rows, and out comes the masked sum of those rows. What is refused is refused because
of public things: number, order, size and hash of the parts, and the hash of the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import AttemptLost, BudgetExceeded, ProtocolError
from isonomy.common.pads.draw import RowDraw, drawn_slices
from isonomy.common.pads.key_store import KeyColumn, KeyStore, keys_hash, place_of
from isonomy.common.pads.message import cells_hash, message_pads, part_hash
from isonomy.common.pads.stream import TAG_BYTES, Pads, Words, part_slices, sum_modulus
from isonomy.common.pads.transfer import KeyReceiver, Keys
from isonomy.common.privacy.queries import Query, Shapes
from isonomy.common.sums.noise_and_budget import Authorised, Custodian
from isonomy.common.sums.regulator_half import (
    CheckQuery,
    Read,
    RowsRead,
    readable_sums,
    request_parts,
)
from isonomy.common.wire.messages import (
    KeyHeader,
    KeyPart,
    KeyRequest,
    Refusal,
    SumHeader,
    decode,
    encode,
    frame_hash,
    frames_hash,
)

Sample = Callable[[str, int], RowDraw]
"""The rows to inspect of a query about so many people."""


class PadCarrier:
    """The regulator's carrier of one plan (sums.regulator_half.RegulatorCarrier).

    `sample`: who draws the rows to inspect, if the plan names an auditor.
    """

    def __init__(self, custodian: Custodian, store: KeyStore, sample: Sample | None = None) -> None:
        self._custodian, self._store, self._sample = custodian, store, sample

    def columns(self, frame: bytes, check: CheckQuery) -> Iterator[bytes]:
        """The frames of a key transfer, as they are read."""
        request = decode(frame, KeyRequest)
        if (request.plan, request.cohort) != self._custodian.terms:
            raise ProtocolError("keys are asked for under another plan, or for other people")
        self._custodian.check_open()
        members = self._custodian.members(request.attribute)[request.first :]
        if not members:
            raise ProtocolError(f"{request.attribute!r} has no released group {request.first}")
        receiver = KeyReceiver(self._place(request.attribute, request.first), request.points)
        return self._transfer(request, frame_hash(frame), members, receiver)

    def _place(self, attribute: str, group: int) -> bytes:
        return place_of(*self._custodian.terms, attribute, group)

    def _transfer(
        self,
        request: KeyRequest,
        request_hash: bytes,
        members_of: list[NDArray[np.bool_]],
        receiver: KeyReceiver,
    ) -> Iterator[bytes]:
        """Header and parts, group by group."""
        frame, index = encode(KeyHeader(request_hash, receiver.point)), count()
        hashes = [request_hash, frame_hash(frame)]
        for group, members in enumerate(members_of, request.first):
            place = self._place(request.attribute, group)
            keys = np.empty((1, len(members), 2), np.uint64)
            for body in receiver.bodies(place, members, keys[0]):
                yield frame
                frame = encode(KeyPart(next(index), body))
                hashes.append(frame_hash(frame))
            # Before the group's last part leaves: who has it may ask at once, also after a power
            # cut here.
            column = KeyColumn(frames_hash(hashes, hashed=True), keys, members)
            try:
                self._save(place, column)
            except BudgetExceeded as error:
                yield encode(Refusal.of("", error))
                return
        yield frame

    def _save(self, place: bytes, column: KeyColumn) -> None:
        """Store keys unless the plan was closed while the parts travelled.

        Closing writes the ledger, then deletes the files: what was saved after that is seen here.
        """
        try:
            self._custodian.check_open()
            self._store.save(place, column)
            self._custodian.check_open()
        except BudgetExceeded:
            self._store.drop()
            raise

    def read(self, header: SumHeader, frames: Iterator[bytes], check: CheckQuery) -> Read:
        """The query of a complete request, and its sums: exact ones if it is open, else masked."""
        query_frame = next(frames, b"")
        query = decode(query_frame, Query)
        if (header.query_id, header.query_hash) != (query.query_id, frame_hash(query_frame)):
            raise ProtocolError("the request answers another query than the one it names")
        authorised = self._custodian.authorise(query)
        check(query, authorised.shapes)
        columns = self._columns(query, authorised)
        if columns is None or keys_hash(columns) != header.columns_hash:
            raise AttemptLost("the keys of this request are not here; transfer them again")
        sample = None
        if self._sample is not None:
            draw = self._sample(query.query_id, authorised.shapes.layout.people)
            sample = _Drawn(draw, query, authorised.shapes)
        sums = self._sums(header, authorised, columns, frames, sample)
        modulus = sum_modulus(authorised.shapes)
        return Read(authorised, sums, modulus, None if sample is None else sample.rows())

    def _columns(self, query: Query, authorised: Authorised) -> list[KeyColumn] | None:
        """The keys of every released group, or None if one is missing."""
        columns = []
        for attribute, groups in zip(query.attributes, authorised.shapes.group_counts, strict=True):
            for group in range(groups - 1):
                column = self._store.find(self._place(attribute, group))
                if column is None:
                    return None
                columns.append(column)
        return columns

    def _sums(
        self,
        header: SumHeader,
        authorised: Authorised,
        columns: list[KeyColumn],
        frames: Iterator[bytes],
        sample: _Drawn | None,
    ) -> NDArray[np.int64]:
        """(sums, m): each part is added up and dropped as it arrives."""
        query, shapes = authorised.query, authorised.shapes
        people = slice(None) if query.positions is None else query.position_array(0)
        tagged = sample is not None
        slices = part_slices(shapes.layout.people, query.columns, tagged=tagged)
        is_open = query.kind == "open"
        pads = message_pads(query, shapes, header.commitment, tagged=tagged)
        tag_bytes = TAG_BYTES * tagged
        sizes = [pads.body_bytes(some) + (some.stop - some.start) * tag_bytes for some in slices]
        mask_size = 8 * shapes.sums * query.columns
        sizes = sizes * len(columns) + [mask_size] * is_open
        parts = request_parts(header, frames, sizes)
        sums = np.zeros((shapes.sums, query.columns), np.uint64)
        for number, column in enumerate(columns):
            keys, members = column.zeros[people], column.members
            inside = np.zeros(0, np.bool_) if members is None else members[people]
            place = 0 if query.shape == "weighted" else number
            for index, some in enumerate(slices):
                row_keys, body = pads.row_keys(keys[some]), next(parts)
                if sample is not None:
                    body = sample.take(pads, index, body, row_keys, inside[some])
                sums[place] += pads.gather(row_keys, inside[some], body, some.start)
        if is_open:
            sums -= _mask(next(parts), sums.shape)
        for _ in parts:  # there is none; at its end the hash over all of them is compared
            pass
        modulus = sum_modulus(shapes)
        residues = (sums & np.uint64(modulus - 1)).view(np.int64)
        return readable_sums(authorised, residues, modulus)


class _Drawn:
    """What is kept of a request for its inspection: a hash of the cells of the people drawn.

    Every person's tag of the side that the regulator has is compared, drawn or not. It is the only
    thing here that depends on attributes, and only for a company that lies about its pads.
    """

    def __init__(self, draw: RowDraw, query: Query, shapes: Shapes) -> None:
        people = shapes.layout.people
        self._draw, self._people = draw, draw.people(people)
        self._starts = [some.start for some in part_slices(people, query.columns, tagged=True)]
        self._slices = drawn_slices(self._people, people, query.columns)
        self._hashes, self._holds = list[bytes](), True

    def take(
        self,
        pads: Pads,
        index: int,
        body: bytes | memoryview,
        row_keys: Keys,
        members: NDArray[np.bool_],
    ) -> memoryview:
        """Look at the part of slice `index`; its cells come back, without the tags."""
        tags = pads.tags(row_keys)
        planes, sent = pads.planes(body, len(tags), tagged=True)
        self._holds &= bool((np.where(members[:, None], sent[1], sent[0]) == tags).all())
        drawn = self._people[self._slices[index]] - self._starts[index]
        pieces = (plane[drawn].tobytes() for plane in (*planes, sent[0], sent[1]))
        self._hashes.append(part_hash(pieces))
        return memoryview(body)[: len(body) - len(tags) * TAG_BYTES]

    def rows(self) -> RowsRead:
        """What the inspector needs, when all parts were taken."""
        digest, draw = cells_hash(self._hashes), self._draw
        return RowsRead(draw.seed, draw.millionths, digest, len(self._people), self._holds)


def _mask(body: bytes | memoryview, shape: tuple[int, ...]) -> Words:
    """(sums, m) the mask of an open query."""
    if len(body) != 8 * shape[0] * shape[1]:
        raise ProtocolError("the mask of an open query has one 64-bit number per sum and column")
    return np.frombuffer(body, "<u8").astype(np.uint64).reshape(shape)
