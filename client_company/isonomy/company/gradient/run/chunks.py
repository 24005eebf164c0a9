"""Fixed chunks of people. Who shares a chunk is drawn once, without looking at anything private.

A person is asked about once per round because all of their rows are in one chunk: per-person
accounting needs no more than that. The order of the chunks is shuffled every round.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from isonomy.common.base.errors import ConfigError
from isonomy.company.gradient.run.strategy import Chunk

FULL_BATCH_CELLS = 40_000_000  # people × parameters up to which one chunk is best: 320 MB of rows
BIG_MODEL_CHUNK = 1024


def chunk_size_for(people: int, parameters: int) -> int:
    """Everybody at once where the rows fit (least noise per round), else 1,024 people.

    One sum over everybody is noised once; n/b chunks are noised n/b times.
    """
    return people if people * parameters <= FULL_BATCH_CELLS else min(people, BIG_MODEL_CHUNK)


def make_chunks(
    people: NDArray[np.int64], size: int, generator: torch.Generator
) -> tuple[Chunk, ...]:
    """Chunks of at most `size` people, as equal as they can be; every row is in exactly one."""
    if not (isinstance(size, int) and size >= 1):
        raise ConfigError(f"chunk_size must be at least 1, got {size!r}")
    persons, person = np.unique(people, return_inverse=True)
    number = -(-len(persons) // size)
    order = torch.randperm(len(persons), generator=generator).numpy()
    home = np.empty(len(persons), dtype=np.int64)
    home[order] = np.arange(len(persons)) * number // len(persons)
    chunk_of_row = home[person]
    chunks = []
    for index in range(number):
        rows = np.flatnonzero(chunk_of_row == index)
        rows = rows[np.argsort(people[rows], kind="stable")]  # by person, as queries want them
        chunks.append(Chunk(index, torch.from_numpy(rows), people[rows]))
    return tuple(chunks)
