"""The table of targets: every parser of the product, its seeds and its format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fuzz_engine import Target
from fuzz_targets_common import common_targets
from fuzz_targets_roles import role_targets


def all_targets(scratch: Path) -> Iterator[Target]:
    """Yield every target; their files lie in `scratch`."""
    yield from common_targets(scratch)
    yield from role_targets(scratch)
