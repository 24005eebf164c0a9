"""The endpoint of metrics: on loopback, for local names only, with a registry of its own."""

from __future__ import annotations

import http.client
import threading

import prometheus_client
import pytest

from isonomy.common.base.errors import PortInUse
from isonomy.common.base.metrics import Meters, served
from isonomy.common.node.node import free_port


def get(port: int, path: str, host: str = "") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_metrics_health_and_readiness() -> None:
    meters, ready, port = Meters(), threading.Event(), free_port()
    meters.counter("isonomy_test", "For a test.", "kind").labels("good").inc(3)
    with served(port, meters.registry, ready.is_set):
        assert get(port, "/health") == (200, "healthy\n")
        assert get(port, "/ready")[0] == 503
        ready.set()
        assert get(port, "/ready") == (200, "ready\n")
        code, text = get(port, "/metrics")
        assert code == 200
        assert 'isonomy_test_total{kind="good"} 3.0' in text
        assert "python_info" not in text, "the library's default registry is not ours"
        assert get(port, "/metrics?x")[0] == 404
        assert get(port, "/../etc/passwd")[0] == 404
    with pytest.raises(ConnectionRefusedError):
        get(port, "/health")
    assert "isonomy_test" not in prometheus_client.generate_latest().decode()


def test_only_local_names_are_answered() -> None:
    """A page in a browser can have its own name point to 127.0.0.1."""
    port = free_port()
    with served(port, Meters().registry, lambda: True):
        for name in (f"evil.example:{port}", "evil.example", "127.0.0.1.evil.example:1", ""):
            assert get(port, "/metrics", name or "x")[0] == 421
        assert get(port, "/metrics", f"localhost:{port}")[0] == 200


def test_no_port_is_no_listener_and_a_taken_one_is_named() -> None:
    with served(0, Meters().registry, lambda: True):
        pass
    port = free_port()
    first, second = (served(port, Meters().registry, lambda: True) for _ in range(2))
    with first, pytest.raises(PortInUse, match=str(port)), second:
        raise AssertionError("two endpoints on one port")
