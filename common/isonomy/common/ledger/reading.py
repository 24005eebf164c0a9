"""How far a long ledger is read: a replay takes about a millisecond per record.

Whoever has a person waiting opens a `ledger_bar`; replays in the same thread then show in it. Those
of others are not watched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

EVERY_RECORDS = 500

_watcher: ContextVar[Callable[[int, int], None] | None] = ContextVar("watcher", default=None)


def note_replayed(record: int, done_bytes: int, path: Path) -> None:
    """Tell who watches this thread's replay, now and then, how far it is in the file."""
    if record % EVERY_RECORDS == 0 and (watch := _watcher.get()) is not None:
        watch(done_bytes, path.stat().st_size)


@contextmanager
def ledger_bar() -> Iterator[None]:
    """Show a bar, at a terminal, for every long ledger that the block reads."""
    from isonomy.common.base.progress import Stages  # here: daemons need no bars

    with Stages() as stages:
        token = _watcher.set(
            lambda done, whole: stages.show("Reading the ledger (kB)", done // 1000, whole // 1000)
        )
        try:
            yield
        finally:
            _watcher.reset(token)
