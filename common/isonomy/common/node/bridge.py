"""The local socket between a party's Flower node and its daemon: frames, and the node's end.

    ClientApp →  {"type": "session", "version": 1, …ticket…}
    daemon    →  {"type": "alive"} …                       while the session runs
    daemon    →  {"type": "done", "result": {…}}           or
                 {"type": "failed", "code": n, "text": …}

One request per connection. A frame is a 4-byte length and that many bytes of canonical JSON; the
length is checked before anything is read.

The node that calls speaks with the server, so it is trusted with nothing: it can hand over a ticket
and wait. It can neither read files nor name them, and the daemon
checks the ticket against plans that its owner approved. The socket has mode 0660 and a shared
group; besides, the daemon asks the kernel who is calling (SO_PEERCRED; bridge_server.py).
"""

from __future__ import annotations

import socket
import struct
import time
from pathlib import Path

from isonomy.common.base.canonical import canonical_json, parse_canonical
from isonomy.common.base.errors import ProtocolError, TransportError

VERSION = 1
MAX_FRAME_BYTES = 64 * 1024
ALIVE_EVERY_S = 5.0
SILENCE_S = 6 * ALIVE_EVERY_S

Message = dict[str, object]


class DaemonAbsent(TransportError):  # noqa: N818  (reads as the event it is)
    """Nobody listens on the local socket: the daemon is not up, or not up yet."""


class CallerRefused(ProtocolError):  # noqa: N818
    """The local socket is not open to this user: it is not in the socket's group."""


class DaemonFailed(TransportError):  # noqa: N818
    """The daemon answered that it could not do what was asked; `code` says why."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


# --- Frames --------------------------------------------------------------------------------------


def send_frame(sock: socket.socket, message: Message) -> None:
    """Send one message; ProtocolError if it is larger than the other end would read."""
    body = canonical_json(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a bridge message of {len(body)} bytes; at most {MAX_FRAME_BYTES}")
    sock.sendall(struct.pack(">I", len(body)) + body)


def receive_frame(sock: socket.socket, *, within_s: float | None = None) -> Message:
    """Read one message. Total: a message, a ProtocolError or a TransportError.

    `within_s` is for the whole frame; without it the socket's own time-out is for each piece.
    """
    deadline = None if within_s is None else time.monotonic() + within_s
    (size,) = struct.unpack(">I", _read(sock, 4, deadline))
    if size > MAX_FRAME_BYTES:
        raise ProtocolError(f"a bridge message of {size} bytes; at most {MAX_FRAME_BYTES}")
    message = parse_canonical(_read(sock, size, deadline), max_bytes=MAX_FRAME_BYTES)
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ProtocolError("a bridge message is an object with a type")
    return message


def _read(sock: socket.socket, size: int, deadline: float | None) -> bytes:
    chunks, missing = [], size
    while missing:
        try:
            if deadline is not None:
                sock.settimeout(max(deadline - time.monotonic(), 0.001))
            chunk = sock.recv(missing)
        except TimeoutError:
            raise TransportError("the other end of the local socket fell silent") from None
        except OSError as error:
            raise TransportError(f"the local socket broke ({error.strerror})") from None
        if not chunk:
            raise TransportError("the other end of the local socket hung up")
        chunks.append(chunk)
        missing -= len(chunk)
    return b"".join(chunks)


# --- The node's end ------------------------------------------------------------------------------


def call(path: Path, request: Message) -> Message:
    """Hand a request to the daemon and wait for its result, as long as it shows signs of life.

    DaemonFailed if the daemon says no, DaemonAbsent if it is not there, CallerRefused if this user
    may not open the socket, TransportError if it hangs up or falls silent.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(SILENCE_S)
        try:
            sock.connect(str(path))
            send_frame(sock, {**request, "version": VERSION})
        except PermissionError:
            raise CallerRefused(
                f"this user may not open {path}; add it to the socket's group, and let the group "
                "pass the folders above it"
            ) from None
        except OSError as error:
            raise DaemonAbsent(
                f"no daemon answers on {path} ({error.strerror or 'no answer'}); start it there "
                "(`isonomy-regulator serve`, or the company's script) and run again"
            ) from None
        while True:
            reply = receive_frame(sock)
            match reply:
                case {"type": "alive"}:
                    continue
                case {"type": "done", "result": dict(result)}:
                    return result
                case {"type": "failed", "code": int(code), "text": str(text)}:
                    raise DaemonFailed(code, text)
            raise ProtocolError("the daemon sent something that the bridge does not know")
