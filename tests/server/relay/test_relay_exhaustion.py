"""A relay without descriptors, without disk, full of strangers: brief trouble does no lasting harm.

The relay is a process of its own. Its limits are changed from outside (prlimit), or its disk is a
real small one that is filled up. In the middle of a session the network breaks as well, so that
both parties have to come back while the relay is in trouble. Then this session goes on, and new
ones work, in the same process.
"""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from session_kit import CuttableProxy, Federation, serving

from isonomy.common.base.errors import ConfigError
from isonomy.common.keys.certificates import key_fingerprint
from isonomy.common.keys.identity import Identity
from isonomy.common.ledger.ledger import verify_ledger
from isonomy.common.remote.exchanges import remote_oracle
from isonomy.common.session.tickets import SessionRole, Ticket, sign_token
from isonomy.common.sums.openings import FolderOpenings
from isonomy.server.relay.connections import (
    HANDSHAKE_S,
    MAX_CONNECTIONS,
    MAX_STRANGERS_OF_ONE,
    Strangers,
    peer_of,
    reserve_descriptors,
)

PROGRAM = """
import sys
from pathlib import Path
from isonomy.common.agreements.agreement import PlanPublic
from isonomy.server.config import ServerConfig
from isonomy.server.relay.stand_alone import serve
home = Path(sys.argv[1])
plan = PlanPublic.from_json((home / "plan").read_bytes())
serve(ServerConfig.load(home / "server.toml"), plan, home / "tickets")
"""
TROUBLE_S = 1.5

Trouble = Callable[["RelayProcess"], AbstractContextManager[None]]


class RelayProcess:
    """`isonomy-server relay` under our control."""

    def __init__(self, federation: Federation) -> None:
        self.federation, self.home = federation, federation.folder / "server"
        text = (
            'name = "relay.test"\n[relay]\nport = 0\nhost = "127.0.0.1"\nadvertise = "127.0.0.1"\n'
        )
        (self.home / "server.toml").write_text(text)
        (self.home / "plan").write_bytes(federation.plan.public().to_json())
        self.log = self.home / "relay.log"
        command = [sys.executable, "-c", PROGRAM, str(self.home)]
        with self.log.open("w") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self.port = int(self.wait_for("ready")["port"])
        self.proxy = CuttableProxy(f"127.0.0.1:{self.port}")

    def wait_for(self, event: str) -> dict[str, str]:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self._process.poll() is None:
            for line in self.log.read_text().splitlines():
                with suppress(ValueError):
                    if json.loads(line)["event"] == event:
                        return json.loads(line)
            time.sleep(0.05)
        raise AssertionError(f"{event!r} is not in:\n{self.log.read_text()[-3000:]}")

    def ticket(self, role: SessionRole, address: str = "") -> Ticket:
        """A ticket that this relay takes, to be reached through the proxy."""
        plan, expires = self.federation.plan, int(time.time()) + 600
        key = key_fingerprint(self.federation.tls("server").read()[1])
        token = sign_token(
            Identity.load(self.home / "token.key"),
            plan_hash=plan.hash,
            role=role,
            party=role,
            relay_key=key,
            expires=expires,
        )
        address = address or self.proxy.address
        return Ticket(address, plan.relay_name, token, plan.hash, role, role, expires)

    def limit(self, kind: int, value: int) -> None:
        hard = resource.prlimit(self._process.pid, kind)[1]
        resource.prlimit(self._process.pid, kind, (value, hard))

    @property
    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))

    def stop(self) -> None:
        self.proxy.close()
        self._process.terminate()
        assert self._process.wait(20) == 0, self.log.read_text()[-3000:]


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RelayProcess]:
    process = RelayProcess(Federation.create(tmp_path))
    yield process
    process.stop()


# --- Descriptors and disk -------------------------------------------------------------------------


@contextmanager
def no_descriptors(relay: RelayProcess) -> Iterator[None]:
    relay.limit(resource.RLIMIT_NOFILE, relay.descriptors)
    yield
    relay.limit(resource.RLIMIT_NOFILE, resource.prlimit(0, resource.RLIMIT_NOFILE)[1])


@contextmanager
def no_disk(relay: RelayProcess) -> Iterator[None]:
    """Every write fails, whoever runs this; `full_disk` is the same with a real small disk."""
    relay.limit(resource.RLIMIT_FSIZE, 0)
    yield
    relay.limit(resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)


@contextmanager
def full_disk(relay: RelayProcess) -> Iterator[None]:
    stone = relay.home / "state" / "stone"
    with suppress(OSError), stone.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(512))
    yield
    stone.unlink()


def session_in_trouble(relay: RelayProcess, trouble: Trouble, rounds: int) -> None:
    federation = relay.federation
    sequences: list[int] = []
    openings = FolderOpenings(federation.folder / "company" / "openings")
    with (
        serving(federation, relay.ticket("regulator")),
        federation.session(relay.ticket("company")) as session,
    ):
        oracle = remote_oracle(session, federation.cohort, openings=openings)
        ask = lambda: sequences.append(oracle.counts(share=0.01).receipt.sequence)  # noqa: E731
        ask()
        for number in range(rounds):
            with trouble(relay):
                asking = threading.Thread(target=ask)
                asking.start()
                time.sleep(0.01 * number)
                relay.proxy.cut()
                relay.proxy.heal()
                time.sleep(TROUBLE_S)
            asking.join(30)
            assert not asking.is_alive(), relay.log.read_text()[-3000:]
            deadline = time.monotonic() + 20
            while session.reconnects <= number:
                assert time.monotonic() < deadline, relay.log.read_text()[-3000:]
                time.sleep(0.02)
    with (  # and a new session, with new tickets
        serving(federation, relay.ticket("regulator")),
        federation.session(relay.ticket("company")) as session,
    ):
        oracle = remote_oracle(session, federation.cohort, openings=openings)
        for sequence in sequences[:]:  # the same answers
            ask()
            assert sequences.pop() == sequence
        ask()
        assert session.reconnects == 0
    ledger = verify_ledger(federation.folder / "regulator" / "ledger.jsonl")
    assert ledger.debits == len(set(sequences)) == rounds + 2


@pytest.mark.parametrize("trouble", [no_descriptors, no_disk], ids=["descriptors", "disk"])
def test_trouble_in_a_session_passes(relay: RelayProcess, trouble: Trouble) -> None:
    session_in_trouble(relay, trouble, rounds=1)


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [no_descriptors, no_disk], ids=["descriptors", "disk"])
def test_trouble_passes_whenever_it_comes(relay: RelayProcess, trouble: Trouble) -> None:
    session_in_trouble(relay, trouble, rounds=12)


@pytest.mark.slow
def test_a_real_disk_that_is_full(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path)
    state = tmp_path / "server" / "state"
    state.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(state)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small disk")
    try:
        process = RelayProcess(federation)
        session_in_trouble(process, full_disk, rounds=12)
        process.stop()
    finally:
        subprocess.run(["umount", str(state)], check=True)


# --- Strangers -----------------------------------------------------------------------------------


def connect(port: int, source: str, count: int) -> list[socket.socket]:
    return [
        socket.create_connection(("127.0.0.1", port), 5, source_address=(source, 0))
        for _ in range(count)
    ]


def hung_up(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize("source", ["127.0.0.2", "127.0.0.1"], ids=["elsewhere", "same-address"])
def test_1100_idle_connections(relay: RelayProcess, source: str) -> None:
    """The session goes on, new parties get in, and few of the strangers are left."""
    federation, direct = relay.federation, f"127.0.0.1:{relay.port}"
    reserve_descriptors()  # of this process: it has the other ends
    openings = FolderOpenings(federation.folder / "company" / "openings")
    strangers: list[socket.socket] = []

    def session_of_two_answers() -> None:
        with federation.session(relay.ticket("company", direct)) as session:
            oracle = remote_oracle(session, federation.cohort, openings=openings)
            first = oracle.counts(share=0.01)
            if not strangers:
                before = relay.descriptors
                strangers.extend(map(stack.enter_context, connect(relay.port, source, 1100)))
                assert relay.descriptors < before + MAX_CONNECTIONS + 8
            assert oracle.counts(share=0.01).receipt.sequence > first.receipt.sequence
            assert session.reconnects == 0

    with ExitStack() as stack:
        with serving(federation, relay.ticket("regulator", direct)) as regulator:
            session_of_two_answers()
            assert regulator.reconnects == 0
        with serving(federation, relay.ticket("regulator", direct)):
            begun = time.monotonic()
            session_of_two_answers()
            assert time.monotonic() - begun < 8
        deadline = time.monotonic() + 5
        while sum(not hung_up(one) for one in strangers) > MAX_STRANGERS_OF_ONE:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_strangers_are_known_by_their_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest of too many go; those with a stream and other addresses stay; all go in time."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
        port = listener.getsockname()[1]
        strangers = Strangers(port)

        def arrive(source: str, count: int) -> list[socket.socket]:
            for near in (arrivals := connect(port, source, count)):
                stack.enter_context(near)
                stack.enter_context(listener.accept()[0])
            return arrivals

        party, old = arrive("127.0.0.2", 1), arrive("127.0.0.2", 3)
        other = arrive("127.0.0.3", 3)
        attended = {party[0].getsockname()}
        assert strangers.hang_up(attended, 0.0) == 0
        new = arrive("127.0.0.2", MAX_STRANGERS_OF_ONE)
        assert strangers.hang_up(attended, 1.0) == 3
        assert all(map(hung_up, old))
        assert not any(map(hung_up, party + new + other))
        strangers.hang_up(attended, HANDSHAKE_S + 0.5)
        assert all(map(hung_up, other))
        assert not any(map(hung_up, party + new))


def test_names_of_peers() -> None:
    assert peer_of("ipv4:127.0.0.1:80") == ("127.0.0.1", 80)
    assert peer_of("ipv6:%5B::1%5D:80") == ("::1", 80)
    assert peer_of("ipv6:[::ffff:10.0.0.1]:80") == ("10.0.0.1", 80)
    assert peer_of("unix:") == ("", 0)


def test_too_few_descriptors_are_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (300, 300))
    with pytest.raises(ConfigError, match=r"may open 300 files and needs \d+; raise the limit"):
        reserve_descriptors()
