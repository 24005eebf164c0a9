"""Connections of strangers: few from one address, and none for long.

gRPC caps all connections before TLS begins, but counts no addresses and waits for idle ones. So the
relay looks at this process's sockets a few times a second and hangs up on those without a stream:
at once where one address has more than its share (the oldest first, so that an honest party behind
the same address still gets in), and after HANDSHAKE_S in any case. A proxy in front would count
more exactly, and would pass every byte of every session once more.
"""

from __future__ import annotations

import os
import resource
import socket
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from isonomy.common.base.errors import ConfigError

MAX_CONNECTIONS = 256  # of one relay, with those that are about to be hung up on
MAX_STRANGERS_OF_ONE = 16  # connections of one address without a stream
HANDSHAKE_S = 10.0  # for TLS and the first message of a stream
RESERVED_DESCRIPTORS = 256  # for files, other ports and libraries
DESCRIPTORS = Path("/proc/self/fd")
_MAPPED = "::ffff:"  # how a socket for both families shows an IPv4 address

Peer = tuple[str, int]  # address and port


def reserve_descriptors() -> None:
    """Raise this process's limit of open files to what it may have; ConfigError if too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    needed = len(list(DESCRIPTORS.iterdir())) + MAX_CONNECTIONS + RESERVED_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"this process may open {hard} files and needs {needed}; raise the limit (ulimit -Hn, "
            "LimitNOFILE= or --ulimit nofile=) and start again"
        )


def peer_of(text: str) -> Peer:
    """Return address and port of what gRPC calls a peer: ipv4:1.2.3.4:5 or ipv6:%5B::1%5D:5."""
    host, _, port = unquote(text).partition(":")[2].rpartition(":")
    return host.strip("[]").removeprefix(_MAPPED), int(port) if port.isdigit() else 0


class Strangers:
    """The connections to one port of this process that carry no stream."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._since: dict[Peer, float] = {}

    def hang_up(self, attended: Collection[Peer], now: float) -> int:
        """Shut those that are too many or too old. Returns how many."""
        peers = [peer for peer, _ in self._connections() if peer not in attended]
        self._since = {peer: self._since.get(peer, now) for peer in peers}
        late = {peer for peer, since in self._since.items() if now - since > HANDSHAKE_S}
        by_address: dict[str, list[Peer]] = defaultdict(list)
        for peer in sorted(peers, key=self._since.__getitem__, reverse=True):
            by_address[peer[0]].append(peer)
        late.update(*(many[MAX_STRANGERS_OF_ONE:] for many in by_address.values()))
        for peer, connection in self._connections() if late else ():
            if peer in late:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # gRPC sees the end and closes it
        return len(late)

    def _connections(self) -> Iterator[tuple[Peer, socket.socket]]:
        """Yield duplicates: gRPC may close a descriptor, and reuse its number, at any moment."""
        for path in DESCRIPTORS.iterdir():
            with suppress(OSError):  # not connected, closed meanwhile, or no descriptor is left
                if not path.is_socket():  # a duplicate of a file would hold the file's lock
                    continue
                descriptor = os.dup(int(path.name))
                try:
                    connection = socket.socket(fileno=descriptor)
                except OSError:  # its number was reused for a file just now
                    os.close(descriptor)
                    continue
                with connection:
                    here, there = connection.getsockname(), connection.getpeername()
                    if isinstance(here, tuple) and here[1] == self._port:
                        yield (there[0].removeprefix(_MAPPED), there[1]), connection
