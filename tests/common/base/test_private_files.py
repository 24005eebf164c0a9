"""Who may read what is written, and what becomes of links that somebody put in a writer's way."""

from __future__ import annotations

import ast
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from isonomy.common.base.errors import IsonomyError
from isonomy.common.base.logs import RotatingFile
from isonomy.common.base.private_files import (
    create_private,
    new_file,
    open_file,
    private_folder,
    write_private,
    write_whole,
)
from isonomy.common.ledger.ledger import Ledger

ROOT = Path(__file__).parents[3]
# What a run's own folder holds (demonstration, measurements), and the kernel's files.
ELSEWHERE = ("company/demo/", "company/speed/")


@pytest.fixture(autouse=True)
def ordinary_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def log_line(path: Path) -> None:
    RotatingFile(path)


def open_ledger(path: Path) -> None:
    Ledger.open(path).close()


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_private(path, b"new"),
        lambda path: write_whole(path, b"new"),
        lambda path: create_private(path, b"new"),
        lambda path: new_file(path).close(),
        lambda path: os.close(open_file(path, os.O_WRONLY | os.O_CREAT)),
        log_line,
        open_ledger,
    ],
    ids=["private", "whole", "create", "new", "open", "log", "ledger"],
)
@pytest.mark.parametrize("suffix", ["", ".partial"])
def test_no_writer_follows_a_link(
    tmp_path: Path, write: Callable[[Path], None], suffix: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"old")
    path = tmp_path / "file"
    path.with_name(path.name + suffix).symlink_to(victim)
    with suppress(OSError, IsonomyError):
        write(path)
        assert not path.is_symlink(), "neither refused nor replaced"
    assert victim.read_bytes() == b"old"


def test_modes_do_not_depend_on_the_umask_or_on_leftovers(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.with_name("file.partial").touch(0o666)
    write_private(path, b"x")
    assert mode(path) == 0o600
    write_whole(path, b"x")
    assert mode(path) == 0o644
    with new_file(path):
        assert mode(path) == 0o600
    deep = private_folder(tmp_path / "a" / "b")
    assert (mode(deep), mode(deep.parent)) == (0o700, 0o700)
    deep.chmod(0o711)
    assert mode(private_folder(deep)) == 0o711  # its owner let others pass through
    home = private_folder(tmp_path / "srv" / "home", home=True)
    assert (mode(home), mode(home.parent)) == (0o700, 0o755)
    home.chmod(0o755)
    assert mode(private_folder(home, home=True)) == 0o700


def test_every_writer_goes_through_these_functions() -> None:
    """No module opens a file for writing by itself, or writes one in place."""
    writers = set[str]()
    for source in ("common", "server", "client_company", "client_regulator"):
        for path in (ROOT / source / "isonomy").rglob("*.py"):
            name = path.relative_to(ROOT / source / "isonomy").as_posix()
            if name != "common/base/private_files.py" and not name.startswith(ELSEWHERE):
                writers.update(f"{name}:{line}" for line in own_writes(path))
    assert not writers


def own_writes(path: Path) -> Iterator[int]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
            continue
        text, name = ast.unparse(node), getattr(node.func, "attr", getattr(node.func, "id", ""))
        opens = name == "open" and any(
            isinstance(each, ast.Constant) and str(each.value)[:1] in set("wax")
            for each in (*node.args[:2], *(keyword.value for keyword in node.keywords[:1]))
        )
        creates = text.startswith("os.open(") and ("O_CREAT" in text or "O_RDWR" in text)
        if name in ("write_text", "write_bytes", "save_file", "touch") or opens or creates:
            yield node.lineno
