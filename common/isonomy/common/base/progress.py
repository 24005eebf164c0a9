"""Progress of everything that takes more than five seconds: one bar, and one line for waiting.

At a terminal both are on stderr and gone when the work is done. Elsewhere (a service, a notebook, a
pipe) the bar is quiet; whoever waits prints a line when the reason has stood for a while, and again
only when it changes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

LOOK_S = 0.5
SETTLED_S = 3.0  # a reason that goes sooner is not worth a line


class _AmountColumn(ProgressColumn):
    """How much of how many, and how many a second; nothing where nothing is counted."""

    def render(self, task: Task) -> Text:
        if task.total is None and not task.completed:
            return Text("")
        whole = f"/{int(task.total):,}" if task.total is not None else ""
        speed = task.speed or 0
        rate = f"  {speed:,.{0 if speed >= 10 else 2}f}/s" if speed else ""
        return Text(f"{int(task.completed):,}{whole}{rate}", style="progress.download")


class _Bar(Progress):
    """One bar at a time: who begins while another is shown stays quiet."""

    _one = threading.Lock()
    _has_place = False

    def start(self) -> None:
        """Show it, if the place is free."""
        if not self.disable:
            self._has_place = self._one.acquire(blocking=False)
            self.disable = not self._has_place
        super().start()

    def stop(self) -> None:
        """Hide it. Harmless when repeated."""
        super().stop()
        if self._has_place:
            self._has_place = False
            self._one.release()


def progress_bar(*, visible: bool = True) -> Progress:
    """What is done now, how much of how many, the rate, how long it took and still takes."""
    console = Console(stderr=True)
    return _Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        _AmountColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not (visible and console.is_terminal),
    )


class Stages:
    """A bar for work that tells its stage: it appears with the first word of it."""

    def __init__(self, *, visible: bool = True) -> None:
        self._bar = progress_bar(visible=visible)
        self._task: TaskID | None = None

    def show(self, stage: str, done: int = 0, total: int | None = None) -> None:
        """Show how far a stage is; another stage begins anew."""
        if self._task is None:
            self._task = self._bar.add_task(escape(stage), total=total)
            self._bar.start()
        task = self._bar.tasks[0]
        if task.description != escape(stage):
            self._bar.reset(self._task, total=total, description=escape(stage))
        self._bar.update(self._task, completed=done, total=total)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


@dataclass(frozen=True)
class Wait:
    """What is waited for, since when (Unix seconds), and what may change all the time."""

    text: str
    since: float
    detail: str = ""  # for a terminal only
    done: int = 0
    total: int | None = None


Look = Callable[[], Wait | None]


@contextmanager
def waiting(look: Look, *, visible: bool = True) -> Iterator[None]:
    """Show on stderr what `look` returns while the block runs; nothing while it is None."""
    stop = show_waits(look) if visible else (lambda: None)
    try:
        yield
    finally:
        stop()


def show_waits(look: Look) -> Callable[[], None]:
    """Show what `look` returns from now on; returns the function that ends it."""
    console, done = Console(stderr=True), threading.Event()
    show = _show_live if console.is_terminal else _show_lines
    thread = threading.Thread(target=show, args=(look, console, done), daemon=True)
    thread.start()

    def stop() -> None:
        done.set()
        thread.join()

    return stop


def _show_live(look: Look, console: Console, done: threading.Event) -> None:
    if done.wait(LOOK_S):
        return  # it was quick: nothing to show
    with progress_bar() as bar:
        task, text = bar.add_task("", total=None, visible=False), ""
        while not done.wait(LOOK_S):
            wait = look()
            if wait is None:
                bar.update(task, visible=False)
                continue
            if wait.text != text:
                text = wait.text
                bar.reset(task, total=wait.total)
                bar.tasks[0].start_time = bar.get_time() - max(0.0, time.time() - wait.since)
            words = escape(f"{wait.text}  {wait.detail}".rstrip())
            bar.update(task, description=words, completed=wait.done, total=wait.total, visible=True)


def _show_lines(look: Look, console: Console, done: threading.Event) -> None:
    shown, seen, seen_at = "", "", time.monotonic()
    while not done.wait(LOOK_S):
        wait = look()
        text = wait.text if wait is not None else ""
        if text != seen:
            seen, seen_at = text, time.monotonic()
        if wait is not None and text != shown and time.monotonic() - seen_at >= SETTLED_S:
            shown = text
            moment = datetime.fromtimestamp(wait.since, UTC).strftime("%H:%M:%S UTC")
            line = f"{text}, since {moment}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
