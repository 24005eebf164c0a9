"""Runs a party's Flower node as a child process, and says why it ended.

Flower ends with code 1 whatever happened, and prints its own number. Number 305 means "this key is
not registered", but also, up to a minute after a crash, "a node with this key is still connected".
So a refused node tries again for a while before it gives up.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import FrameType

from isonomy.common.base.errors import ConfigError, ProtocolError, TransportError

RETRY_S = 75.0
PAUSE_S = 5.0
_PR_SET_PDEATHSIG = 1
_REFUSED = 305
_EXIT = re.compile(rb"Exit Code: (\d+)")


class NodeRefused(ProtocolError):  # noqa: N818  (reads as the event it is)
    """The server does not let this party's Flower node in."""


class NodeFailed(TransportError):  # noqa: N818
    """The Flower node ended by itself; its output says why."""


def run_node(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run the node until SIGTERM or SIGINT; NodeRefused or NodeFailed if it ends by itself."""
    runner = _Runner()
    deadline = time.monotonic() + RETRY_S
    while not runner.stopped:
        code = runner.run(command, environment)
        if runner.stopped or code == 0:
            return
        if code != _REFUSED:
            raise NodeFailed(f"the Flower node ended (its code {code}); the lines above say why")
        if time.monotonic() > deadline:
            raise NodeRefused(
                "the server refuses this node. Is its key registered (`isonomy-server register "
                "NAME=node.key.pub`), and is no other node running with the same key?"
            )
        sys.stderr.write(f"refused; trying again in {PAUSE_S:.0f} s (see NodeRefused, code 32)\n")
        runner.sleep(PAUSE_S)


class _Runner:
    """One child at a time; our signals become its signals."""

    def __init__(self) -> None:
        self.stopped = False
        self._child: subprocess.Popen[bytes] | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run to the end, output passed through; returns Flower's own code, or the process's."""
        try:
            child = subprocess.Popen(
                list(command),
                env=dict(environment),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent,
            )
        except OSError as error:
            raise ConfigError(f"cannot start {command[0]}: {error.strerror}") from None
        self._child = child
        codes: list[int] = []
        reader = threading.Thread(target=_pass_on, args=(child, codes), daemon=True)
        reader.start()
        child.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # helpers that Flower left behind
        reader.join(5.0)
        return codes[-1] if codes else child.returncode

    def sleep(self, seconds: float) -> None:
        """Sleep, or return early on a signal."""
        deadline = time.monotonic() + seconds
        while not self.stopped and time.monotonic() < deadline:
            time.sleep(0.1)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopped = True
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(signal.SIGTERM)


def _pass_on(child: subprocess.Popen[bytes], codes: list[int]) -> None:
    """Copy the child's output to ours, and note the codes that Flower prints."""
    for line in child.stdout or ():
        sys.stderr.buffer.write(line)
        sys.stderr.flush()
        if match := _EXIT.search(line):
            codes.append(int(match[1]))


def _die_with_parent() -> None:
    """Ask the kernel to end the child when we are killed: no node is left behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
