"""Attacks on the console: each is refused before anything is shown or done."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from console_kit import Browser
from regulator_kit import Regulator

from isonomy.regulator.console import guard
from isonomy.regulator.console.access import ADDRESS_S, IDLE_S, LIFE_S, MAX_WRONG
from isonomy.regulator.console.call import COOKIE

PAGES = ("/", "/inbox", "/live", "/companies", "/ledger", "/reports", "/people", "/upkeep")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(Regulator.create(tmp_path)) as browser:
        yield browser


class TestAddresses:
    def test_nobody_is_in_without_one(self, browser: Browser) -> None:
        stranger = browser.new_client()
        for path in (*PAGES, "/ledger.csv", "/upkeep/card.json", "/live/" + "0" * 64 + "/events"):
            assert stranger.get(path).status_code == 401, path
        post = stranger.post("/upkeep/clock", headers={"Origin": browser.origin}, data={"csrf": ""})
        assert post.status_code == 401

    def test_one_works_once(self, browser: Browser) -> None:
        token = browser.access.new_token()
        first, second = browser.new_client(), browser.new_client()
        assert first.get(f"/login?token={token}").status_code == 200
        done = second.get(f"/login?token={token}")
        assert done.status_code == 401
        assert "used already" in done.text
        assert not done.cookies

    def test_one_is_good_for_five_minutes(self, browser: Browser) -> None:
        token = browser.access.new_token()
        browser.clock.now += ADDRESS_S + 1
        assert browser.new_client().get(f"/login?token={token}").status_code == 401

    def test_guesses_open_nothing(self, browser: Browser) -> None:
        for token in ("", "x", "A" * 43, "é", "../" * 10):
            done = browser.new_client().get("/login", params={"token": token})
            assert done.status_code == 401

    def test_a_session_that_the_browser_brings_is_not_adopted(self, browser: Browser) -> None:
        """Fixation: whoever planted a cookie does not know the one that the login sets."""
        victim = browser.new_client()
        victim.cookies.set(COOKIE, "planted", domain="127.0.0.1")
        done = victim.get(f"/login?token={browser.access.new_token()}")
        fresh = re.search(rf"{COOKIE}=([^;]+)", done.headers["set-cookie"])
        assert fresh is not None
        assert fresh[1] != "planted"
        attacker = browser.new_client()
        attacker.cookies.set(COOKIE, "planted", domain="127.0.0.1")
        assert attacker.get("/").status_code == 401

    def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(self, browser: Browser) -> None:
        done = browser.new_client().get(f"/login?token={browser.access.new_token()}")
        cookie = done.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert "domain" not in cookie  # it goes to this host name alone


class TestSessions:
    def test_an_idle_screen_locks_and_a_passphrase_opens_it(self, browser: Browser) -> None:
        csrf = browser.csrf
        browser.clock.now += IDLE_S + 1
        assert browser.get("/").status_code == 423
        assert browser.get("/today/lights").status_code == 401  # the page itself asks, in vain
        form = {"csrf": csrf, "passphrase": "wrong"}
        wrong = browser.client.post("/unlock", data=form, headers={"Origin": browser.origin})
        assert wrong.status_code == 422
        assert browser.get("/").status_code == 423
        form["passphrase"] = browser.passphrase
        done = browser.client.post("/unlock", data=form, headers={"Origin": browser.origin})
        assert done.status_code == 303
        assert browser.get("/").status_code == 200

    def test_what_a_page_asks_by_itself_keeps_no_screen_awake(self, browser: Browser) -> None:
        for _ in range(4):
            browser.clock.now += IDLE_S / 3
            browser.get("/today/lights")
        assert browser.get("/").status_code == 423

    def test_one_ends_after_a_day_of_work(self, browser: Browser) -> None:
        for _ in range(int(LIFE_S // 600) + 1):
            browser.clock.now += 600
            last = browser.get("/companies").status_code
        assert last == 401

    def test_end_ends_it(self, browser: Browser) -> None:
        assert browser.post("/end", proof=False).status_code == 303
        assert browser.get("/").status_code == 401

    def test_wrong_passphrases_end_it(self, browser: Browser) -> None:
        for left in range(MAX_WRONG - 1, 0, -1):
            done = browser.post("/upkeep/clock", {"passphrase": "wrong"})
            assert done.status_code == 422
            assert f"before this session ends: {left}." in done.text
        done = browser.post("/upkeep/clock", {"passphrase": "wrong"})
        assert done.status_code == 401
        assert "This session has ended" in done.text
        assert "isonomy-regulator console --address" in done.text
        assert browser.get("/").status_code == 401


class TestForeignPages:
    @pytest.mark.parametrize(
        "host",
        [
            *("evil.example:{port}", "127.0.0.1", "127.0.0.1:80", "localhost.evil:{port}"),
            *("[::1]:{port}", "127.0.0.1:{port}", "localhost:{port}", "isonomy.localhost:{port}"),
        ],
    )
    def test_a_foreign_name_for_this_machine_gets_nothing(
        self, browser: Browser, host: str
    ) -> None:
        """DNS rebinding; and names that other local services have, too."""
        done = browser.get("/", headers={"Host": host.format(port=browser.port)})
        assert done.status_code == 421
        assert "Today" not in done.text

    @pytest.mark.parametrize(
        "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:8480"]
    )
    def test_a_foreign_page_posts_nothing(self, browser: Browser, origin: str) -> None:
        done = browser.post("/end", proof=False, headers={"Origin": origin})
        assert done.status_code == 403
        assert browser.get("/").status_code == 200

    def test_a_post_says_where_it_comes_from(self, browser: Browser) -> None:
        data = {"csrf": browser.csrf}
        assert browser.client.post("/end", data=data).status_code == 403

    @pytest.mark.parametrize("path", ["/live/" + "0" * 64 + "/events", "/ledger.csv", "/"])
    def test_a_foreign_page_reads_nothing(self, browser: Browser, path: str) -> None:
        done = browser.get(path, headers={"Origin": "http://evil.example"})
        assert done.status_code == 403
        site = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
        assert browser.get(path, headers=site).status_code == 403

    def test_every_form_needs_the_sessions_own_token(self, browser: Browser) -> None:
        with Browser(browser.regulator) as other:
            tokens = ("", "guess", other.csrf)
        for token in tokens:
            done = browser.post("/end", {"csrf": token}, proof=False)
            assert done.status_code == 403, token
        assert browser.get("/").status_code == 200


class TestResponses:
    @pytest.mark.parametrize("path", [*PAGES, "/login", "/static/console.js", "/none"])
    def test_every_response_carries_the_policy(self, browser: Browser, path: str) -> None:
        headers = browser.get(path).headers
        assert headers["content-security-policy"] == guard.POLICY
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in guard.POLICY
        assert "unsafe" not in guard.POLICY

    @pytest.mark.parametrize("path", PAGES)
    def test_no_page_has_a_script_or_style_inside(self, browser: Browser, path: str) -> None:
        html = browser.get(path).text
        assert "<style" not in html
        assert not re.search(r"<script(?![^>]*\ssrc=)", html)
        assert not re.search(r"\son\w+=|\sstyle=|javascript:", html)

    @pytest.mark.parametrize(
        "path",
        [
            "/static/../texts.toml",
            "/static/%2e%2e/texts.toml",
            "/static/..%2ftexts.toml",
            "/reports/..%2f..%2fkeys/page",
            "/reports/../../keys/files/report.json",
            "/reports/%2e%2e/files/regulator.toml",
            "/inbox/..%2fkeys%2fcard",
            "/live/..%2f..%2fkeys",
            "/companies/..%2f",
        ],
    )
    def test_no_path_leads_elsewhere(self, browser: Browser, path: str) -> None:
        done = browser.get(path)
        assert done.status_code in (303, 404, 409)
        assert "BEGIN" not in done.text
        assert "signing" not in done.text


class TestSizes:
    def test_a_form_that_is_too_large_is_not_read(self, browser: Browser) -> None:
        fields = {"csrf": "x", "head": "0" * (guard.MAX_FORM_BYTES + 1)}
        done = browser.client.post(
            "/ledger/verify", data=fields, headers={"Origin": browser.origin}
        )
        assert done.status_code == 413

    def test_an_upload_that_lies_about_its_size_is_cut(
        self, browser: Browser, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(guard, "MAX_UPLOAD_BYTES", 5000)
        boundary = "b" * 20
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="f"; filename="p.csv"\r\n\r\n'

        def body() -> object:
            yield head.encode()
            for _ in range(10):
                yield b"x" * 1000

        headers = {
            "Origin": browser.origin,
            "Content-Type": f"multipart/form-data; boundary={boundary}",
        }
        done = browser.client.post("/people", content=body(), headers=headers)  # type: ignore[arg-type]
        assert done.status_code == 413
        assert not list((browser.regulator.home / "console" / "uploads").glob("*"))


def test_a_read_only_console_changes_nothing(tmp_path: Path) -> None:
    allowed = {"/end", "/ledger", "/reports/history"}
    acts = ("/upkeep/clock", "/people/forget", "/inbox", "/upkeep/identity", "/reports/new")
    with Browser(Regulator.create(tmp_path), read_only=True) as browser:
        for path in PAGES:
            html = browser.get(path).text
            assert "Read only" in html
            assert set(re.findall(r'action="([^"]+)"', html)) <= allowed
        for path in acts:
            assert browser.post(path).status_code == 403
