"""The local socket between Flower node and daemon: who may call, what may be said, what is left."""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from isonomy.common.base.canonical import canonical_json
from isonomy.common.base.errors import (
    BudgetExceeded,
    ConfigError,
    IsonomyError,
    ProtocolError,
    TransportError,
)
from isonomy.common.base.exit_codes import INTERNAL, code_of, help_for
from isonomy.common.node import bridge, bridge_server
from isonomy.common.node.bridge import (
    MAX_FRAME_BYTES,
    VERSION,
    DaemonFailed,
    Message,
    call,
    receive_frame,
    send_frame,
)
from isonomy.common.node.bridge_server import (
    MAX_CALLERS,
    BridgeServer,
    CallerRefused,
    Callers,
    SocketInUse,
    caller_is_gone,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "daemon.sock"


def echo(request: Message) -> Message:
    return {"got": request["ticket"]}


def raising(error: Exception) -> Callable[[Message], Message]:
    def handler(_: Message) -> Message:
        raise error

    return handler


def test_a_request_gets_its_result(path: Path) -> None:
    with BridgeServer(path, echo):
        assert call(path, {"type": "session", "ticket": "t"}) == {"got": "t"}
    assert not path.exists()


def test_the_socket_is_for_owner_and_group_only(path: Path) -> None:
    with BridgeServer(path, echo):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_who_only_looks_whether_somebody_listens_is_no_error(path: Path) -> None:
    errors = list[Exception]()
    with BridgeServer(path, echo, on_error=errors.append):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
        with pytest.raises(DaemonFailed):
            call(path, {"type": "session"})  # without what the handler looks for
    assert [type(error) for error in errors] == [KeyError]


def test_signs_of_life_keep_a_long_session_open(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_server, "ALIVE_EVERY_S", 0.1)
    monkeypatch.setattr(bridge, "SILENCE_S", 0.3)
    release = threading.Event()

    def slow(_: Message) -> Message:
        release.wait(0.6)
        return {}

    with BridgeServer(path, slow):
        assert call(path, {"type": "session"}) == {}


def test_a_silent_daemon_is_given_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_server, "ALIVE_EVERY_S", 60)
    monkeypatch.setattr(bridge, "SILENCE_S", 0.2)
    release = threading.Event()

    def stuck(_: Message) -> Message:
        release.wait(5)
        return {}

    with BridgeServer(path, stuck):
        with pytest.raises(TransportError, match="silent"):
            call(path, {"type": "session"})
        release.set()


def test_typed_errors_travel_with_their_code(path: Path) -> None:
    with (
        BridgeServer(path, raising(BudgetExceeded("spent"))),
        pytest.raises(DaemonFailed, match="spent") as caught,
    ):
        call(path, {"type": "session"})
    assert caught.value.code == code_of(BudgetExceeded("")) == 50


def test_the_text_of_an_unexpected_fault_stays_inside(path: Path) -> None:
    seen: list[Exception] = []
    with (
        BridgeServer(path, raising(KeyError("secret-7319")), on_error=seen.append),
        pytest.raises(DaemonFailed) as caught,
    ):
        call(path, {"type": "session"})
    assert caught.value.code == INTERNAL
    assert "secret-7319" not in str(caught.value)
    assert "secret-7319" in repr(seen[0])  # the daemon's own log gets it


def test_a_stale_socket_file_is_taken_over(path: Path) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()  # as a killed daemon leaves it: the file is there, nobody listens
    with BridgeServer(path, echo):
        assert call(path, {"type": "session", "ticket": 1}) == {"got": 1}


def test_a_socket_in_use_is_left_alone(path: Path) -> None:
    with BridgeServer(path, echo):
        second = BridgeServer(path, raising(ProtocolError("the wrong one")))
        with pytest.raises(SocketInUse):
            second.start()
        assert call(path, {"type": "session", "ticket": 2}) == {"got": 2}


def test_a_file_that_is_no_socket_is_never_removed(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(ConfigError, match="no socket"):
        BridgeServer(path, echo).start()
    assert path.read_text() == "precious"


def test_a_path_too_long_for_linux_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="longer than"):
        BridgeServer(tmp_path / ("x" * 120), echo).start()


def test_no_daemon_is_a_transport_error_that_says_what_to_start(path: Path) -> None:
    with pytest.raises(TransportError, match="isonomy-regulator serve"):
        call(path, {"type": "session"})


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack(">I", MAX_FRAME_BYTES + 1),
        struct.pack(">I", 2**32 - 1) + b"x" * 100,
        struct.pack(">I", 5) + b"{}   ",
        struct.pack(">I", 2) + b"[]",
        struct.pack(">I", 12) + b'{"type":1.5}',
        struct.pack(">I", 14) + b'{"type":"a", }',
        struct.pack(">I", 12) + b'{"type":"x"}',  # no version
        struct.pack(">I", 20) + b'{"ty',
        b"",
    ],
)
def test_garbage_is_refused_and_the_next_caller_is_served(path: Path, raw: bytes) -> None:
    seen: list[Exception] = []
    with BridgeServer(path, echo, on_error=seen.append):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            sock.sendall(raw)
            sock.shutdown(socket.SHUT_WR)
            reply = receive_frame(sock)
        assert reply["type"] == "failed"
        assert call(path, {"type": "session", "ticket": 3}) == {"got": 3}
    assert all(isinstance(error, IsonomyError) for error in seen)


def test_a_foreign_user_is_refused_by_the_kernels_word(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The process cannot be two users at once: the daemon believes itself to be another one.
    monkeypatch.setattr(bridge_server.os, "geteuid", lambda: os.getuid() + 4711)
    with BridgeServer(path, echo), pytest.raises(DaemonFailed) as caught:
        call(path, {"type": "session", "ticket": 1})
    assert caught.value.code == code_of(CallerRefused(""))


def test_group_members_may_call(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me, gid = os.getuid(), os.getgid()
    monkeypatch.setattr(bridge_server.os, "geteuid", lambda: me + 4711)
    with BridgeServer(path, echo, callers=Callers(group=str(gid))):
        assert call(path, {"type": "session", "ticket": 1}) == {"got": 1}
        assert path.stat().st_gid == gid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize(("groups", "allowed"), [([4712], True), ([4713], False), ([], False)])
def test_a_real_other_user_gets_in_by_the_shared_group_only(
    groups: list[int], allowed: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "daemon.sock"
        with BridgeServer(path, echo, callers=Callers(group="4712")):
            path.chmod(0o666)  # past the file's mode, so that the kernel's word alone decides
            canonical_json({})  # what it loads may lie where user 4711 cannot read
            child = os.fork()
            if child == 0:  # a process of user 4711
                code = 99
                try:
                    os.setgroups(groups)
                    os.setgid(4711)
                    os.setuid(4711)
                    call(path, {"type": "session", "ticket": 1})
                    code = 0
                except DaemonFailed as error:
                    code = error.code
                finally:
                    os._exit(code)
            _, status = os.waitpid(child, 0)
    refused = code_of(CallerRefused(""))
    assert os.waitstatus_to_exitcode(status) == (0 if allowed else refused)


def test_an_unknown_group_is_named(path: Path) -> None:
    with pytest.raises(ConfigError, match="no-such-group-here"):
        BridgeServer(path, echo, callers=Callers(group="no-such-group-here")).start()


def test_the_text_of_an_error_stays_with_the_daemons_own_user(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ConfigError("4711 people of /srv/secret are not enrolled")
    with BridgeServer(path, raising(error)), pytest.raises(DaemonFailed, match="4711 people"):
        call(path, {"type": "session"})
    me = os.getuid()
    monkeypatch.setattr(bridge_server.os, "geteuid", lambda: me + 4711)
    with (
        BridgeServer(path, raising(error), callers=Callers(group=str(os.getgid()))),
        pytest.raises(DaemonFailed) as caught,
    ):
        call(path, {"type": "session"})
    assert caught.value.code == code_of(error)
    assert str(caught.value) == help_for(code_of(error))


def test_callers_who_hung_up_leave_their_places(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_server, "ALIVE_EVERY_S", 0.05)
    monkeypatch.setattr(bridge, "SILENCE_S", 5)
    begun = threading.Semaphore(0)

    def patient(request: Message) -> Message:
        begun.release()
        while request["ticket"] == "leave" and not caller_is_gone():
            time.sleep(0.01)
        return {}

    with BridgeServer(path, patient):
        for _ in range(MAX_CALLERS):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(path))
                send_frame(sock, {"type": "session", "ticket": "leave", "version": VERSION})
                assert begun.acquire(timeout=5)
        time.sleep(0.5)
        assert call(path, {"type": "session", "ticket": "stay"}) == {}


def test_a_first_frame_in_drops_has_one_deadline(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_server, "FIRST_FRAME_TIMEOUT_S", 0.4)
    with BridgeServer(path, echo), socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        sock.sendall(struct.pack(">I", 1000))
        begun, answered = time.monotonic(), False
        while not answered and time.monotonic() - begun < 5:
            sock.send(b"x")  # each drop within the time-out, all together not
            answered = bool(select.select([sock], [], [], 0.1)[0])
        assert receive_frame(sock)["type"] == "failed"
        assert 0.3 < time.monotonic() - begun < 2.0


def test_the_lock_file_is_for_the_owner_only(path: Path) -> None:
    lock = path.with_name(path.name + ".lock")
    lock.touch(0o644)  # as an older version left it
    with BridgeServer(path, echo):
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600


def test_no_spinning_when_no_file_can_be_opened(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_server, "FULL_PAUSE_S", 0.05)
    tries = 0

    class Full:
        def accept(self) -> None:
            nonlocal tries
            tries += 1
            raise OSError(errno.EMFILE if tries < 4 else errno.EBADF, "full")

    begun = time.monotonic()
    BridgeServer(path, echo)._accept(Full())
    assert tries == 4
    assert time.monotonic() - begun >= 0.15


def test_a_link_in_the_sockets_place_opens_no_file_of_ours(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group that may call must not get at a key by racing for the socket's name."""
    key = tmp_path / "identity.key"
    key.touch(mode=0o600)

    class Raced(socket.socket):
        def bind(self, address: object) -> None:
            super().bind(address)  # type: ignore[arg-type]
            path.unlink()
            path.symlink_to(key)

    monkeypatch.setattr(bridge_server.socket, "socket", Raced)
    with pytest.raises(ConfigError, match="was replaced"):
        BridgeServer(path, dict).start()
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.exists()
