"""The console of a home for tests: the whole application, asked as a browser asks it."""

from __future__ import annotations

import re
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from regulator_kit import Regulator

from isonomy.common.base.logs import logger
from isonomy.regulator.console.access import Access
from isonomy.regulator.console.call import Console
from isonomy.regulator.console.officers import Officers
from isonomy.regulator.console.serve import console_app, server_settings


class Clock:
    """Time that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Browser:
    """A console and a browser that is logged in."""

    regulator: Regulator
    keys: tuple[Path, ...] = ()
    read_only: bool = False
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        config = self.regulator.config
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.port = self._sock.getsockname()[1]
        self.host = f"isonomy-0123456789abcdef.localhost:{self.port}"
        self.origin = f"http://{self.host}"
        self.access = Access(self.clock)
        log = logger("console", least="critical")
        officers = Officers(config, self.keys)
        self.console = Console(config.home, self.host, self.access, officers, log, self.read_only)
        self._server = uvicorn.Server(server_settings(console_app(self.console)))
        self._thread = threading.Thread(target=self._server.run, args=([self._sock],), daemon=True)
        self._thread.start()
        self._clients: list[httpx.Client] = []
        self.client = self.new_client()
        self.login()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()
        while not self._server.started:
            time.sleep(0.01)
        self._server.should_exit = True
        self._thread.join(10)
        self._sock.close()

    def new_client(self) -> httpx.Client:
        """Another browser: without cookies."""
        client = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"Host": self.host},
            timeout=30,
            trust_env=False,
        )
        self._clients.append(client)
        return client

    def login(self) -> None:
        done = self.client.get(f"/login?token={self.access.new_token()}")
        assert done.status_code == 200, done.text

    @property
    def passphrase(self) -> str:
        """What proves the officer: here, the content of the unlock file."""
        unlock = self.regulator.config.unlock_file
        assert unlock is not None
        return unlock.read_text().strip()

    @property
    def csrf(self) -> str:
        found = re.search(r'name="csrf" value="([^"]+)"', self.get("/").text)
        assert found is not None
        return found[1]

    def get(self, path: str, **settings: Any) -> httpx.Response:
        return self.client.get(path, **settings)

    def post(
        self,
        path: str,
        fields: dict[str, Any] | None = None,
        *,
        proof: bool = True,
        headers: dict[str, str] | None = None,
        files: Any = None,
    ) -> httpx.Response:
        """Send a form as the page would: with its token, its origin, and the passphrase."""
        data = {"csrf": self.csrf, **({"passphrase": self.passphrase} if proof else {})}
        return self.client.post(
            path,
            data={**data, **(fields or {})},
            files=files,
            headers={"Origin": self.origin, **(headers or {})},
        )

    def follow(self, response: httpx.Response) -> str:
        """The page that a redirect leads to."""
        assert response.status_code == 303, response.text
        return self.get(response.headers["location"]).text


def handed_over(plan: Path) -> list[tuple[str, tuple[str, bytes]]]:
    """The three files of a plan, as a browser uploads them."""
    paths = [path for path in plan.parent.glob(f"{plan.stem}.*") if "public" not in path.name]
    return [("files", (path.name, path.read_bytes())) for path in sorted(paths)]
