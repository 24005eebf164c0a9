"""Bars and waits: quiet without a terminal, one at a time with one."""

from __future__ import annotations

import time

import pytest

from isonomy.common.base import progress
from isonomy.common.base.progress import Stages, Wait, progress_bar, waiting


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LOOK_S", 0.01)
    monkeypatch.setattr(progress, "SETTLED_S", 0.05)


def test_a_bar_is_quiet_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as bar:
        task = bar.add_task("working", total=3)
        bar.advance(task)
    with Stages() as stages:
        stages.show("reading", 1, 2)
        stages.show("writing", 2, None)
    assert capsys.readouterr() == ("", "")


def test_a_bar_has_rate_and_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with Stages() as stages:
        for done in range(0, 1001, 250):
            stages.show("reading [the] file", done, 1000)
            time.sleep(0.12)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "reading [the] file" in shown.err, "a name is no markup"
    assert "/s" in shown.err
    assert "left" in shown.err


def test_one_bar_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar() as first, progress_bar() as second:
        assert not first.disable
        assert second.disable
    with progress_bar() as third:
        assert not third.disable


@pytest.mark.usefixtures("quick")
def test_a_reason_is_said_once_and_again_when_it_changes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now: list[Wait | None] = [Wait("Waiting for ann", 0.0, "3 messages")]
    with waiting(lambda: now[0]):
        time.sleep(0.2)
        now[0] = Wait("Waiting for ann", 0.0, "4 messages")
        time.sleep(0.2)
        now[0] = None
        time.sleep(0.2)
        now[0] = Wait("Waiting for bob [sic]", 3600.0)
        time.sleep(0.2)
    assert capsys.readouterr() == (
        "",
        "Waiting for ann, since 00:00:00 UTC\nWaiting for bob [sic], since 01:00:00 UTC\n",
    )


@pytest.mark.usefixtures("quick")
def test_what_is_over_soon_is_not_said(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting(lambda: Wait("Waiting for ann", 0.0)):
        time.sleep(0.02)
    assert capsys.readouterr() == ("", "")
