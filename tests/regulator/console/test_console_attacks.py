"""More attacks on the console: on every route, by bursts, slow bodies, odd files and faults."""

from __future__ import annotations

import contextlib
import errno
import io
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from console_kit import Browser, handed_over
from regulator_kit import Regulator
from starlette.routing import Route

from isonomy.regulator.config.faults import VaultLocked
from isonomy.regulator.console import forms, live, serve, today
from isonomy.regulator.console.access import IDLE_S, MAX_WRONG, Session
from isonomy.regulator.console.call import COOKIE
from isonomy.regulator.plans.inbox import waiting_plans

READING = {"/end", "/ledger/verify", "/unlock"}  # change nothing that lasts
OPEN = {"/login", "/static/{name}"}  # for those who are not in


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(Regulator.create(tmp_path)) as browser:
        yield browser


def routes(browser: Browser, method: str) -> list[str]:
    """Every address that takes this method, with something in its places."""
    paths = [
        route.path
        for route in serve.console_app(browser.console)._app.routes  # type: ignore[attr-defined]
        if isinstance(route, Route) and method in (route.methods or ())
    ]
    assert len(paths) > 15
    return [re.sub(r"{\w+}", "0" * 64, path) for path in paths if path not in OPEN]


def send(browser: Browser, path: str, fields: dict[str, str]) -> int:
    done = browser.client.post(path, data=fields, headers={"Origin": browser.origin})
    return done.status_code


def session(browser: Browser) -> Session:
    session = browser.access.session(browser.client.cookies[COOKIE])
    assert session is not None
    return session


def files_of(home: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}


class TestEveryRoute:
    def test_strangers_get_nothing(self, browser: Browser) -> None:
        stranger = browser.new_client()
        for path in routes(browser, "GET"):
            assert stranger.get(path).status_code == 401, path
        for path in routes(browser, "POST"):
            done = stranger.post(path, data={}, headers={"Origin": browser.origin})
            assert done.status_code == 401, path

    def test_a_locked_screen_shows_and_does_nothing(self, browser: Browser) -> None:
        fields = {"csrf": browser.csrf, "passphrase": browser.passphrase}
        browser.clock.now += IDLE_S + 1
        for path in routes(browser, "GET"):
            done = browser.get(path)
            assert done.status_code in (401, 423), path
            assert "<nav" not in done.text, path
        for path in set(routes(browser, "POST")) - {"/unlock"}:
            assert send(browser, path, fields) == 423, path

    def test_acts_need_the_sessions_token(self, browser: Browser) -> None:
        for path in routes(browser, "POST"):
            assert send(browser, path, {"passphrase": browser.passphrase}) == 403, path

    def test_acts_are_no_links(self, browser: Browser) -> None:
        pages = set(routes(browser, "GET"))
        for path in set(routes(browser, "POST")) - pages:
            assert browser.get(f"{path}?csrf={browser.csrf}").status_code == 404, path

    def test_acts_on_records_need_the_passphrase(self, browser: Browser) -> None:
        """All but those that only take a file in, look at it, or end the session."""
        quiet = READING | {"/inbox", "/people", "/people/match", "/people/discard"}
        csrf, before = browser.csrf, files_of(browser.regulator.home)
        for path in set(routes(browser, "POST")) - quiet:
            for typed in ("", "wrong"):
                fields = {"csrf": csrf, "passphrase": typed, "sure": "yes", "what": "everybody"}
                assert send(browser, path, fields) in (303, 409, 422), path
            browser.access.unlock(session(browser))  # five more guesses
        assert files_of(browser.regulator.home) == before

    def test_a_read_only_console_changes_nothing(self, tmp_path: Path) -> None:
        with Browser(Regulator.create(tmp_path), read_only=True) as browser:
            for path in set(routes(browser, "POST")) - READING:
                assert browser.post(path).status_code == 403, path
            assert browser.post("/end", proof=False).status_code == 303
            assert browser.get("/").status_code == 401


class TestGuessing:
    def test_a_burst_of_guesses_is_counted_too(
        self, browser: Browser, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tried: list[str] = []

        def prove(*words: object) -> None:
            tried.append(str(words[2]))
            time.sleep(0.05)  # as a slow hash
            raise VaultLocked("no")

        monkeypatch.setattr(browser.console.officers, "prove", prove)
        csrf, codes = browser.csrf, list[int]()
        cookie = browser.client.cookies[COOKIE]

        def guess(number: int) -> None:
            fields = {"csrf": csrf, "passphrase": f"guess {number}"}
            with browser.new_client() as client:
                client.cookies.set(COOKIE, cookie, domain="127.0.0.1")
                done = client.post("/upkeep/clock", data=fields, headers={"Origin": browser.origin})
                codes.append(done.status_code)

        threads = [threading.Thread(target=guess, args=(number,)) for number in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(tried) == MAX_WRONG
        assert codes.count(422) == MAX_WRONG - 1

    def test_a_locked_screen_counts_them_too(self, browser: Browser) -> None:
        csrf = browser.csrf
        browser.clock.now += IDLE_S + 1
        for _ in range(MAX_WRONG - 1):
            assert send(browser, "/unlock", {"csrf": csrf, "passphrase": "wrong"}) == 422
        assert send(browser, "/unlock", {"csrf": csrf, "passphrase": "wrong"}) == 401
        assert send(browser, "/unlock", {"csrf": csrf, "passphrase": browser.passphrase}) == 401

    def test_a_strange_unlock_is_refused(self, browser: Browser) -> None:
        csrf = browser.csrf
        browser.clock.now += IDLE_S + 1
        fields = {"csrf": csrf, "passphrase": browser.passphrase, "officer": "Mallory"}
        assert send(browser, "/unlock", fields) == 422
        assert (
            browser.client.post(
                "/unlock", content=b"x", headers={"Origin": browser.origin}
            ).status_code
            == 400
        )
        done = browser.client.post(
            "/unlock", data=fields, files=[("f", ("x", b"x"))], headers={"Origin": browser.origin}
        )
        assert done.status_code == 400
        assert browser.get("/").status_code == 423


class TestSlowRequests:
    def test_a_form_that_ends_after_its_session_is_not_taken(self, browser: Browser) -> None:
        plan = browser.regulator.plan_file()
        request = browser.client.build_request(
            "POST",
            "/inbox",
            data={"csrf": browser.csrf},
            files=handed_over(plan),
            headers={"Origin": browser.origin},
        )
        body = request.read()
        head = "POST /inbox HTTP/1.1\r\n" + "".join(
            f"{name.decode()}: {value.decode()}\r\n" for name, value in request.headers.raw
        )
        with socket.create_connection(("127.0.0.1", browser.port)) as slow:
            slow.sendall(head.encode() + b"\r\n" + body[:-40])
            time.sleep(0.3)
            browser.post("/end", proof=False)
            slow.sendall(body[-40:])
            assert slow.recv(100).startswith(b"HTTP/1.1 401")
        assert not waiting_plans(browser.regulator.config)
        assert not list((browser.regulator.home / "console" / "uploads").glob("*"))

    def test_an_upload_that_is_broken_off_leaves_nothing(
        self, browser: Browser, capfd: pytest.CaptureFixture[str]
    ) -> None:
        head = (
            f"POST /people HTTP/1.1\r\nHost: {browser.host}\r\nOrigin: {browser.origin}\r\n"
            f"Cookie: {COOKIE}={browser.client.cookies[COOKIE]}\r\nContent-Length: 100000\r\n"
            "Content-Type: multipart/form-data; boundary=b\r\n\r\n"
            '--b\r\nContent-Disposition: form-data; name="file"; filename="p.csv"\r\n\r\n'
        )
        uploads = browser.regulator.home / "console" / "uploads"
        with socket.create_connection(("127.0.0.1", browser.port)) as slow:
            slow.sendall(head.encode() + b"id,sex\n" + b"x" * 5000)
            until(lambda: list(uploads.glob("*")))
        until(lambda: not list(uploads.glob("*")))
        assert "Traceback" not in "".join(capfd.readouterr())

    def test_events_end_with_their_session(self, browser: Browser) -> None:
        with browser.client.stream("GET", "/live/" + "0" * 64 + "/events", timeout=20) as stream:
            lines = stream.iter_lines()
            assert next(lines) == "event: change"
            other = browser.new_client()
            other.cookies.set(COOKIE, browser.client.cookies[COOKIE], domain="127.0.0.1")
            csrf = re.search(r'name="csrf" value="([^"]+)"', other.get("/").text)
            assert csrf is not None
            other.post("/end", data={"csrf": csrf[1]}, headers={"Origin": browser.origin})
            assert "event: locked" in list(lines)  # and then the stream is over


class TestFaults:
    """What nobody expected: a word for the officer, and no trace in a log."""

    @pytest.mark.parametrize(
        ("room", "name", "path"),
        [
            (today, "waiting", "/"),
            (live, "_state", "/live/" + "0" * 64 + "/events"),
            (serve, "static_file", "/static/console.js"),
        ],
    )
    def test_they_are_not_told(
        self,
        room: Any,
        name: str,
        path: str,
        browser: Browser,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        def fail(*_: object) -> None:
            raise ValueError("person p17 is female")

        monkeypatch.setattr(room, name, fail)
        with contextlib.suppress(httpx.RemoteProtocolError):  # a stream that is cut
            assert "p17" not in browser.get(path).text
        said = "".join(capfd.readouterr())
        assert "p17" not in said
        assert "Traceback" not in said

    def test_a_full_disk_is_named(self, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(path: Path) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(forms, "new_file", full)
        files = [("file", ("people.csv", b"id,sex\n"))]
        done = browser.post("/people", {"delimiter": ","}, proof=False, files=files)
        assert done.status_code == 507
        assert "disk is full" in done.text


def parquet(**columns: list[Any]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


ODD = {
    "empty.csv": b"",
    "head.csv": b"id,sex\n",
    "nul.csv": b"id,sex\n\x00\x00,female\n",
    "utf16.csv": "id,sex\nc1,female\n".encode("utf-16"),
    "latin.csv": "id,sex\nM\xfcller,female\n".encode("latin-1"),
    "one-line.csv": b"id,sex," + b"x" * 3_000_000,
    "one-field.csv": b'id,sex\nc1,"' + b"y" * 3_000_000,
    "columns.csv": ",".join(f"c{number}" for number in range(20_000)).encode() + b"\n",
    "twice.csv": b"id,id,sex,sex\n1,2,female,male\n",
    "ragged.csv": b"id,sex\nc1\nc2,female,more\n",
    "quotes.csv": b'id,"sex\nc1,"f"emale"\n',
    "markup.csv": b"id,sex,<script>alert(1)</script>\nc1,<img src=x onerror=alert(1)>,x\n",
    "spellings.csv": b"id,sex\n" + b"".join(b"c%d,s%d\n" % (n, n) for n in range(5000)),
    "short.parquet": parquet(id=["a"], sex=["female"])[:-5],
    "numbers.parquet": parquet(id=[1, 2], sex=[0.5, 1.5]),
    "nested.parquet": parquet(id=[["a"]], sex=[{"x": 1}]),
    "nothing.parquet": parquet(id=[None], sex=[None]),
    "not.parquet": b"PAR1" + b"x" * 100,
    "\u202egpj.csv": b"id,sex\nc1,female\n",
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_file_is_shown_or_refused(
    name: str, browser: Browser, capfd: pytest.CaptureFixture[str]
) -> None:
    """Never a fault, never its place on the disk, never a page without end."""
    files = [("file", (name, ODD[name]))]
    done = browser.post("/people", {"delimiter": ","}, proof=False, files=files)
    pages = [done] if done.status_code != 303 else [browser.get("/people/file")]
    fields = {"id": "id", "attribute": "sex", "cohort": "odd", "mode": "update"}
    pages += [browser.post(f"/people/{act}", fields) for act in ("match", "check", "enroll")]
    for page in pages:
        assert page.status_code in (200, 303, 409, 422), page.text
        assert len(page.text) < 400_000
        assert str(browser.regulator.home) not in page.text
        assert "<script>alert" not in page.text
        assert "<img" not in page.text
        assert "\u202e" not in page.text
    assert "Traceback" not in "".join(capfd.readouterr())


def test_no_id_or_size_stands_in_an_address_or_a_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    regulator = Regulator.create(tmp_path, people=0)
    rows = "".join(
        f"secret-{number},{'female' if number % 3 else 'male'}\n" for number in range(37)
    )
    with Browser(regulator) as browser:
        files = [("file", ("people.csv", b"id,sex\n" + rows.encode()))]
        answers = [browser.post("/people", {"delimiter": ","}, proof=False, files=files)]
        fields = {"id": "id", "attribute": "sex", "cohort": "north", "mode": "new"}
        answers += [browser.post(f"/people/{act}", fields) for act in ("check", "enroll")]
        again = [("file", ("people.csv", b"id,sex\n" + rows.encode()))]
        answers.append(browser.post("/people", {"delimiter": ","}, proof=False, files=again))
        answers.append(browser.post("/people/check", fields))  # all are there already
        answers += [browser.get(path) for path in ("/", "/people", "/people/file", "/ledger")]
        places = [answer.headers.get("location", "") for answer in answers]
        links = re.findall(r'(?:href|action)="([^"]*)"', "".join(a.text for a in answers))
    assert any("37 people would be added" in answer.text for answer in answers)
    assert not [answer for answer in answers if "secret-" in answer.text]
    assert not [
        place for place in (*places, *links) if re.search(r"secret|37|\b12\b|\b25\b", place)
    ]
    said = "".join(capfd.readouterr())
    assert "secret-" not in said
    assert "female" not in said


def until(ready: Any, within_s: float = 10.0) -> None:
    end = time.monotonic() + within_s
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.02)
