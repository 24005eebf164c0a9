"""What is installed: only files whose hashes are listed, with licences that are listed too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.metadata import requires
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
CONSTRAINTS = (ROOT / "constraints.txt").read_text()


@pytest.fixture(scope="module")
def selection() -> ModuleType:
    """The script .ci/requirements, as a module."""
    loader = SourceFileLoader("requirements", str(ROOT / ".ci" / "requirements"))
    module = ModuleType(loader.name)
    module.__file__ = loader.path
    loader.exec_module(module)
    return module


def test_every_package_has_hashes_and_no_address(selection: ModuleType) -> None:
    for name, text in selection.requirements("dev", cuda=True).items():
        assert re.match(
            r"[a-z0-9-]+==[\w.]+ \\\n( {4}--hash=sha256:[0-9a-f]{64}( \\)?\n)+", text
        ), name
    assert "://" not in CONSTRAINTS


def needed(package: str, extras: set[str], known: set[str]) -> Iterator[str]:
    """What a package needs here, by the metadata of what is installed."""
    for text in requires(package) or ():
        one = Requirement(text)
        inside = any(
            one.marker is None or one.marker.evaluate({"extra": extra}) for extra in extras | {""}
        )
        name = canonicalize_name(one.name)
        if inside and (name, *one.extras) not in known:
            known.add((name, *one.extras))
            yield name
            yield from needed(name, set(one.extras), known)


@pytest.mark.parametrize("role", ["server", "regulator", "company"])
def test_a_role_gets_what_it_needs_and_no_more(selection: ModuleType, role: str) -> None:
    expected = set(needed("isonomy", {role}, set())) | set(needed("hatchling", set(), set()))
    cuda = any(name.startswith("nvidia-") for name in expected)  # PyPI's build of torch is here
    listed = set(selection.requirements(role, cuda=cuda))
    assert listed >= (expected - {"isonomy"}) | {"hatchling"}
    heavy = {"server": {"torch", "tenseal"}, "regulator": {"torch"}, "company": set()}
    assert not listed & heavy[role]
    # uv resolves for any machine, the metadata for this one.
    assert len(listed - expected) <= 3, listed - expected


def test_the_page_of_licences_lists_what_is_pinned(selection: ModuleType) -> None:
    page = (ROOT / "docs" / "licences.md").read_text()
    rows = re.findall(r"^\| ([\w.-]+) \| ([\w.+]+) \|(?:.*\|)? (.+) \|$", page, re.MULTILINE)
    pinned = re.compile(r"([\w-]+)==(\S+)")
    expected = [pinned.match(text).groups() for text in selection.requirements("dev").values()]
    assert [row[:2] for row in rows[1:]] == expected
    assert not [name for name, _, licence in rows if licence == "not stated"]


@pytest.mark.parametrize(
    "path",
    ["Makefile", "server/Dockerfile", "client_company/Dockerfile", "client_regulator/Dockerfile"],
)
def test_nothing_is_installed_without_its_hash(path: str) -> None:
    text = (ROOT / path).read_text().replace("$(PIP)", "pip install --no-deps")
    for line in re.findall(r"pip install (?!--quiet)(.*)", text):
        # Our own package: nothing else is fetched, not even what builds it.
        ours = "--no-build-isolation" in line and line.split()[-1] == "."
        assert "--no-deps" in line
        assert ours or "--require-hashes" in line, line
