"""The daemon's end of the local socket (see bridge): who may call, and one thread per call.

A socket file that a dead process left behind is taken over; one that is in use is not: PATH.lock is
locked for as long as a daemon listens, so the two cannot be confused.

The caller is a node, or an operator's command. It gets results, and codes with their fixed lines;
texts of errors, which may name files and counts, go to the daemon's own user only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from isonomy.common.base.errors import ConfigError, IsonomyError, ProtocolError, StorageError
from isonomy.common.base.exit_codes import INTERNAL, code_of, help_for
from isonomy.common.node.bridge import (
    ALIVE_EVERY_S,
    VERSION,
    CallerRefused,
    Message,
    receive_frame,
    send_frame,
)

MAX_PATH_BYTES = 107  # sockaddr_un
MAX_CALLERS = 8
FIRST_FRAME_TIMEOUT_S = 10.0
FULL_PAUSE_S = 0.2  # when no more files can be opened
_SO_PEERGROUPS = 59  # Linux; the socket module has no name for it

Handler = Callable[[Message], Message]


class SocketInUse(ConfigError):  # noqa: N818  (reads as the event it is)
    """Another process listens on the socket already."""


@dataclass(frozen=True)
class Callers:
    """Who may call: the user of this process, and the members of the group."""

    group: str | None = None

    @property
    def gid(self) -> int | None:
        if self.group is None:
            return None
        try:
            return int(self.group) if self.group.isdigit() else grp.getgrnam(self.group).gr_gid
        except KeyError:
            raise ConfigError(f"there is no group {self.group!r} on this machine") from None

    def check(self, sock: socket.socket) -> None:
        """Raise CallerRefused unless the kernel says that the caller is one of them."""
        uid, gid = _peer_ids(sock)
        if uid == os.geteuid():
            return
        if self.gid is not None and self.gid in (gid, *_peer_groups(sock)):
            return
        raise CallerRefused(
            f"user {uid} called on the local socket and is not allowed to; add the Flower node's "
            "user to the socket's group"
        )


def _has_sent(sock: socket.socket) -> bool:
    """Whether a caller sends something, before it hangs up or the time for it is over."""
    sock.settimeout(FIRST_FRAME_TIMEOUT_S)
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except OSError:
        return False


def _peer_ids(sock: socket.socket) -> tuple[int, int]:
    """Return the caller's user and group, as the kernel knows them."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, gid = struct.unpack("3i", raw)
    return uid, gid


def _peer_groups(sock: socket.socket) -> Iterable[int]:
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 1024)  # the most Python takes
    except OSError:  # in more than 256 groups: then only the first one counts
        return ()
    return struct.unpack(f"{len(raw) // 4}I", raw)


_call = threading.local()  # of a thread that serves a call: `hangup`, set when the caller left


def caller_is_gone() -> bool:
    """Say whether the caller of this thread has hung up: a handler that only waits can stop."""
    hangup: threading.Event | None = getattr(_call, "hangup", None)
    return hangup is not None and hangup.is_set()


class BridgeServer:
    """Listens for the Flower node and runs `handler` for each request, in a thread of its own."""

    def __init__(
        self,
        path: Path,
        handler: Handler,
        *,
        callers: Callers | None = None,
        on_error: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self.path = Path(path)
        self._handler, self._callers = handler, callers or Callers()
        self._on_error = on_error
        self._slots = threading.BoundedSemaphore(MAX_CALLERS)
        self._lock_file: TextIO | None = None
        self._sock: socket.socket | None = None
        self._threads: set[threading.Thread] = set()

    def start(self) -> None:
        """Bind and listen; takes over a socket file that a dead process left behind."""
        if len(os.fsencode(self.path)) > MAX_PATH_BYTES:
            raise ConfigError(
                f"the socket path {self.path} is longer than {MAX_PATH_BYTES} bytes, the most that "
                "Linux takes; use a shorter folder"
            )
        try:
            self._lock()
            self._remove_stale()
            self._sock = sock = self._bind()
        except OSError as error:
            self.stop()
            raise StorageError(f"cannot make the socket {self.path}: {error.strerror}") from None
        except IsonomyError:
            self.stop()
            raise
        threading.Thread(target=self._accept, args=(sock,), name="bridge", daemon=True).start()

    def _bind(self) -> socket.socket:
        gid = self._callers.gid
        with contextlib.ExitStack() as on_failure:
            sock = on_failure.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            # Before the name exists, so that nobody can connect in between; the group comes next.
            os.fchmod(sock.fileno(), 0o600)
            sock.bind(str(self.path))
            on_failure.callback(self.path.unlink)
            self._open_to(gid)
            sock.listen(MAX_CALLERS)
            on_failure.pop_all()
        return sock

    def _open_to(self, gid: int | None) -> None:
        """Set group and mode of the socket itself, not of whatever has its name by now.

        In a folder that the group may write to, somebody can put a link to one of our files there.
        """
        fd = os.open(self.path, os.O_PATH | os.O_NOFOLLOW)
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                raise ConfigError(f"{self.path} was replaced while it was made; start again")
            itself = Path(f"/proc/self/fd/{fd}")
            if gid is not None:
                os.chown(itself, -1, gid)
            itself.chmod(0o660)
        finally:
            os.close(fd)

    def stop(self) -> None:
        """Close and remove the socket. Stopping twice is harmless."""
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
            self._sock.close()
            self._sock = None
            self.path.unlink(missing_ok=True)
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None

    def finish(self, timeout_s: float = 5.0) -> None:
        """Stop, after the replies that are ready have been sent."""
        self.stop()
        deadline = time.monotonic() + timeout_s
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> BridgeServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _lock(self) -> None:
        """Lock PATH.lock. Under the lock the socket file may be removed: nobody listens on it."""
        # For the owner only: whoever can open the file can lock it and so block the daemon.
        lock = self.path.with_name(self.path.name + ".lock")
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
        self._lock_file = os.fdopen(os.open(lock, flags, 0o600), "w")
        os.fchmod(self._lock_file.fileno(), 0o600)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock_file.close()
            self._lock_file = None
            raise SocketInUse(
                f"another process listens on {self.path} already (`fuser {self.path}` names it); "
                "stop it, or give this one another socket"
            ) from None

    def _remove_stale(self) -> None:
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise ConfigError(f"{self.path} exists and is no socket; it is left as it is")
        self.path.unlink()

    def _accept(self, sock: socket.socket) -> None:
        while True:
            try:
                caller, _ = sock.accept()
            except OSError as error:
                if error.errno == errno.ECONNABORTED:
                    continue
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    time.sleep(FULL_PAUSE_S)  # the caller still waits in the queue
                    continue
                return  # stopped
            if not self._slots.acquire(blocking=False):
                caller.close()
                continue
            thread = threading.Thread(target=self._serve, args=(caller,), daemon=True)
            self._threads.add(thread)
            thread.start()

    def _serve(self, caller: socket.socket) -> None:
        try:
            with caller:
                reply = self._answer(caller)
                with contextlib.suppress(OSError):  # the caller may be gone; the work is done
                    send_frame(caller, reply)
        finally:
            self._slots.release()
            self._threads.discard(threading.current_thread())

    def _answer(self, caller: socket.socket) -> Message:
        has_sent = _has_sent(caller)  # else it only looks whether somebody listens
        try:
            # Before the check of the caller: a close with unread bytes would lose the reply.
            request = receive_frame(caller, within_s=FIRST_FRAME_TIMEOUT_S)
            caller.settimeout(FIRST_FRAME_TIMEOUT_S)
            self._callers.check(caller)
            if request.get("version") != VERSION:
                raise ProtocolError(f"the bridge speaks version {VERSION}; update both ends")
            with self._alive(caller):
                return {"type": "done", "result": self._handler(request)}
        except IsonomyError as error:
            if has_sent:
                self._on_error(error)
            text = str(error) if _peer_ids(caller)[0] == os.geteuid() else help_for(code_of(error))
            return {"type": "failed", "code": code_of(error), "text": text}
        except Exception as error:
            self._on_error(error)
            return {"type": "failed", "code": INTERNAL, "text": help_for(INTERNAL)}

    @contextlib.contextmanager
    def _alive(self, caller: socket.socket) -> Iterator[None]:
        done, hangup = threading.Event(), threading.Event()

        def beat() -> None:
            try:
                while not done.wait(ALIVE_EVERY_S):
                    send_frame(caller, {"type": "alive"})
            except OSError:
                hangup.set()

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        _call.hangup = hangup
        try:
            yield
        finally:
            _call.hangup = None
            done.set()
            thread.join()  # so that no sign of life gets into the middle of the reply
