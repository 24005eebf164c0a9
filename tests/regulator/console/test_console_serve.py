"""Starting the console: where it listens, and that a home has one."""

from __future__ import annotations

import signal
import socket
import threading
from pathlib import Path

import pytest
from regulator_kit import Regulator

from isonomy.common.base.errors import ConfigError, PortInUse
from isonomy.common.node.bridge_server import BridgeServer, SocketInUse
from isonomy.company.demo.processes import Processes
from isonomy.regulator.console import serve


def start(regulator: Regulator, **settings: object) -> None:
    said: list[str] = []
    serve.serve_console(regulator.config, announce=said.append, **settings)  # type: ignore[arg-type]


def test_outside_of_a_container_it_is_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "_CONTAINER_MARKS", (tmp_path / "none",))
    with pytest.raises(ConfigError, match="is for containers"):
        start(Regulator.create(tmp_path), in_container=True)


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    regulator = Regulator.create(tmp_path)
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(PortInUse, match="--port"),
    ):
        start(regulator, port=other.getsockname()[1])


def test_a_home_has_one_console(tmp_path: Path) -> None:
    regulator = Regulator.create(tmp_path)
    folder = regulator.config.console_folder
    (folder / "uploads").mkdir(parents=True)
    (folder / "uploads" / "of-the-first").touch()
    with BridgeServer(folder / "console.sock", lambda request: {}), pytest.raises(SocketInUse):
        start(regulator, port=0)
    assert (folder / "uploads" / "of-the-first").exists()  # the second touched nothing


def test_without_a_console_there_is_no_address(tmp_path: Path) -> None:
    done = Regulator.create(tmp_path).run("console", "--address")
    assert done.code != 0
    assert not done.stdout


def test_uploads_of_a_crash_are_destroyed_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    regulator = Regulator.create(tmp_path)
    left = regulator.config.console_folder / "uploads" / "left"
    left.parent.mkdir(parents=True)
    left.write_text("c1,female")
    served = threading.Event()
    monkeypatch.setattr(serve.uvicorn.Server, "run", lambda server, sockets: served.set())
    start(regulator, port=0)
    assert served.is_set()
    assert not left.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_however_it_ends_nothing_is_left(number: signal.Signals, tmp_path: Path) -> None:
    regulator = Regulator.create(tmp_path)
    with Processes(tmp_path / "logs") as processes:
        command = ["isonomy-regulator", "console", "--home", str(regulator.home), "--port", "0"]
        console = processes.start("console", command)
        processes.until(lambda: console.says("/login?token="), "the console", 60)
        folder = regulator.config.console_folder
        (folder / "uploads").mkdir(exist_ok=True)
        (folder / "uploads" / "of-people").write_text("c1,female")
        console.process.send_signal(number)
        code = console.process.wait(30)
        processes._running.remove(console)
    assert code == (130 if number == signal.SIGINT else 0)
    assert [path.name for path in folder.rglob("*")] == ["console.sock.lock"]
