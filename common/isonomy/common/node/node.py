"""Ports of this machine."""

from __future__ import annotations

import socket

from isonomy.common.base.errors import ConfigError, PortInUse


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that is free now."""
    with socket.socket() as sock:
        sock.bind((host, 0))
        return int(sock.getsockname()[1])


def check_port(host: str, port: int) -> None:
    """Raise PortInUse if nobody could listen there: better here than in a log of Flower's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except PermissionError:
            raise ConfigError(
                f"this user may not listen on {host}:{port}; ports below 1024 are root's. Choose "
                "another"
            ) from None
        except OSError as error:
            raise PortInUse(
                f"cannot listen on {host}:{port} ({error.strerror}); `ss -ltnp` shows who holds "
                "the port. Stop that process or choose another port"
            ) from None
