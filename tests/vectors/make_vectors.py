"""Writes the golden files again. Run it only when the wire format is meant to change."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from isonomy.common.crypto.blinding import Seeds, expand
from isonomy.common.crypto.params import DEFAULT_PARAMETERS as P
from isonomy.common.crypto.params import Seeded
from isonomy.common.people.cohort import Cohort
from isonomy.common.privacy.queries import Query, pack_positions
from isonomy.common.sums.openings import Opening
from isonomy.common.wire.messages import (
    Answer,
    Column,
    ColumnsHeader,
    Message,
    OpeningDemand,
    OpeningHeader,
    OpeningPart,
    Refusal,
    SumHeader,
    SumPart,
    encode,
)

HERE = Path(__file__).parent
H = bytes(range(32))


def frames() -> dict[str, Message]:
    column = Seeded(b"body", b"seed")
    weights, some = (0.1, -2.0), pack_positions((0, 7))
    return {
        "query_groups": Query(
            "id-é", H, "why", "open", "groups", ("s", "s*r"), 3, "laplace", 5, 1.5
        ),
        "query_weighted": Query(
            "q", H, "", "blind", "weighted", ("a",), 1, "gaussian", 9000, 0.1, weights, some
        ),
        "query_triangular": Query(
            "q", H, "", "blind", "groups", ("a",), 2, "gaussian", 9000, 0.1, triangular=True
        ),
        "columns_header": ColumnsHeader("q", H[:16], H, 1024, 3, 2, column),
        "column": Column(1, 2, column),
        "sum_header": SumHeader("q", H[:16], H, H, H, H, 1),
        "sum_part": SumPart(3, b"ciphertext"),
        "answer": Answer("q", H, H, np.array([1, -2, 2**40]), 5, 6, H, H + H),
        "refusal": Refusal("q", "BudgetExceeded", "too much"),
        "opening_demand": OpeningDemand("q", H, H, H, H + H),
        "opening_header": OpeningHeader("q", H, 5_000_000, 2, H, H + H),
        "opening_part": OpeningPart(1, b"box"),
    }


def digests() -> dict[str, str]:
    """What must never change silently: expansion, commitment, cohort root."""
    blinding = expand(P, Seeds.derive(b"vector"), 7)
    arrays = [blinding.mask, blinding.garbage, blinding.u, blinding.c0, blinding.c1]
    rows = np.arange(-6, 6, dtype=np.int32).reshape(4, 3)
    opening = Opening(b"query", rows, Seeds.derive(b"vector"), H)
    return {
        "blinding": hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest(),
        "commitment": opening.commitment().hex(),
        "cohort_root": Cohort.of(["Zoë", "李", "7"]).root.hex(),
    }


def vectors() -> dict[str, dict[str, str]]:
    return {
        "frames": {name: encode(message).hex() for name, message in frames().items()},
        "digests": digests(),
    }


if __name__ == "__main__":
    (HERE / "sums-v1.json").write_text(json.dumps(vectors(), indent=1, sort_keys=True) + "\n")
