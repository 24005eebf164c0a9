"""Three machines on one: each with a network, users, /etc, /srv and /root of its own.

A machine is a network namespace and a mount namespace, kept alive by a process that sleeps. Company
and regulator have a cable to the server each, and none to each other. systemd does not run in them:
`Machine.boot` reads the units that were installed and starts what they say, as the users they name.
"""

from __future__ import annotations

import configparser
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

HOST = "server.example.org"
ADDRESSES = {"company": "10.77.1", "regulator": "10.77.2"}
PROGRAMS = Path(sys.executable).parent
NEEDED = ("ip", "nsenter", "unshare", "setpriv", "useradd")


class Machine:
    """One machine; its files are seen from here below `root`."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.space = name, f"isonomy-{os.getpid()}-{name}"
        self._folder, self.services = folder, dict[str, subprocess.Popen[bytes]]()
        shutil.copytree("/etc", folder / "etc", symlinks=True, ignore_dangling_symlinks=True)
        _run("ip", "netns", "add", self.space)
        python = Path(sys.base_prefix)
        script = f"""set -e
            mount --bind {folder}/etc /etc
            mount -t tmpfs -o mode=755 tmpfs /srv
            mount -t tmpfs -o mode=755 tmpfs /media && mkdir /media/python /media/root
            mount --bind {python} /media/python
            mount -t tmpfs -o mode=755 tmpfs /root
            case {python} in /root/*) mkdir -p {python}; mount --bind /media/python {python};; esac
            mkdir -m 777 /srv/desk; echo ready; exec sleep 100000"""
        inside = ("ip", "netns", "exec", self.space, "unshare", "--mount", "--propagation")
        self._keeper = subprocess.Popen(
            [*inside, "private", "sh", "-c", script], stdout=subprocess.PIPE
        )
        assert self._keeper.stdout is not None
        with self._keeper.stdout as first:
            assert first.readline() == b"ready\n"
        _run("ip", "-n", self.space, "link", "set", "lo", "up")

    @property
    def desk(self) -> Path:
        """The folder in which its people work, as seen from here."""
        return Path(f"/proc/{self._keeper.pid}/root/srv/desk")

    def _command(self, command: Sequence[str], user: str) -> list[str]:
        enter = ["nsenter", f"--target={self._keeper.pid}", "--mount", "--net", "--wdns=/srv/desk"]
        become = ["setpriv", "--reuid", user, "--regid", user, "--init-groups"]
        return [*enter, *(become if user != "root" else ()), *command]

    def run(self, text: str, *, user: str = "root", code: int = 0) -> str:
        """Type a command and wait; returns what it printed."""
        whole = _words(text)
        environment = {**os.environ, "TERM": "dumb", "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            self._command(whole, user),
            capture_output=True,
            text=True,
            env=environment,
            timeout=180,
            check=False,
        )
        assert done.returncode == code, f"{text}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def start(self, text: str, *, user: str, log: str) -> subprocess.Popen[bytes]:
        """Start a program in the background."""
        command = _words(text)
        with (self._folder / f"{log}.log").open("ab") as file:
            return subprocess.Popen(
                self._command(command, user),
                stdout=file,
                stderr=file,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def boot(self) -> None:
        """Start what the installed units say, as systemd would."""
        for path in sorted((self._folder / "etc/systemd/system").glob("isonomy-*.service")):
            unit = configparser.RawConfigParser(strict=False)
            unit.optionxform = str  # type: ignore[assignment, method-assign]
            unit.read_string(path.read_text())
            service = unit["Service"]
            command, user = service["ExecStart"], service["User"]
            self.services[path.stem] = self.start(command, user=user, log=path.stem)

    def crash(self) -> None:
        """Pull the plug: every service is gone at once."""
        for process in self.services.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.services.clear()

    def end(self) -> None:
        self.crash()
        self._keeper.kill()
        self._keeper.wait()
        _run("ip", "netns", "del", self.space)


class Machines:
    """Server, company and regulator, with two cables."""

    def __init__(self, folder: Path) -> None:
        names = ("server", "company", "regulator")
        self.all = {name: Machine(name, folder / name) for name in names}
        self.server, self.company, self.regulator = self.all.values()
        for name, net in ADDRESSES.items():
            cable = f"{name[:3]}{os.getpid()}"
            _run("ip", "link", "add", cable, "type", "veth", "peer", "name", f"{cable}s")
            for machine, end, host in ((name, cable, 2), ("server", f"{cable}s", 1)):
                space = self.all[machine].space
                _run("ip", "link", "set", end, "netns", space)
                _run("ip", "-n", space, "addr", "add", f"{net}.{host}/24", "dev", end)
                _run("ip", "-n", space, "link", "set", end, "up")
            with (folder / name / "etc/hosts").open("a") as hosts:
                hosts.write(f"{net}.1 {HOST}\n")

    def cable(self, name: str, state: str) -> None:
        """Plug a party's cable in ("up") or out ("down")."""
        _run("ip", "-n", self.all[name].space, "link", "set", f"{name[:3]}{os.getpid()}", state)

    def hand_over(self, giver: Machine, taker: Machine, *names: str) -> None:
        """Carry files from one desk to another."""
        for name in names:
            shutil.copy(giver.desk / name, taker.desk / Path(name).name)
            (taker.desk / Path(name).name).chmod(0o644)


@contextmanager
def machines(folder: Path) -> Iterator[Machines]:
    """Three machines, taken down at the end; skips where they cannot be made."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"three machines need root and {', '.join(NEEDED)}; missing: {missing}")
    if subprocess.run(["ip", "netns", "add", "isonomy-try"], check=False).returncode:
        pytest.skip("this machine does not let us make network namespaces")
    _run("ip", "netns", "del", "isonomy-try")
    federation = Machines(folder)
    try:
        yield federation
    finally:
        for machine in federation.all.values():
            machine.end()


def until(ready: object, what: str, seconds: float = 60) -> None:
    """Wait for something to become true."""
    assert callable(ready)
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, f"waited too long: {what}"
        time.sleep(0.1)


def _words(text: str) -> list[str]:
    """The words of a command; its program is ours where we have one of that name."""
    program, *rest = text.split()
    return [str(PROGRAMS / program) if (PROGRAMS / program).exists() else program, *rest]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
