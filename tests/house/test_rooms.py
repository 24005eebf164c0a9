"""The house: narrow folders, rooms that say what they are for, and pages that match them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from rooms_picture import CAPTIONS, PICTURE, SOURCES, draw, layers

ROOT = Path(__file__).parents[2]
ROOTS = {name: ROOT / source / "isonomy" / name for name, source in SOURCES.items()}
WIDEST = 15
PAGE = (ROOT / "docs" / "architecture.md").read_text()
MODULES = sorted(path for folder in ROOTS.values() for path in folder.rglob("*.py"))


def rooms() -> dict[str, Path]:
    """Every package below the four roots, by the name that the page uses."""
    return {name: path for name, path in packages().items() if "/" in name}


def packages() -> dict[str, Path]:
    """The four roots and every room."""
    return {_name(path.parent): path.parent for path in MODULES if path.name == "__init__.py"}


def _name(folder: Path) -> str:
    (name,) = (name for name, root in ROOTS.items() if folder.is_relative_to(root))
    return "/".join((name, *folder.relative_to(ROOTS[name]).parts))


def test_no_folder_is_crowded() -> None:
    folders = {path.parent for path in MODULES}
    crowded = {
        _name(folder): count
        for folder in folders
        if (count := len(list(folder.glob("*.py")))) > WIDEST
    }
    assert not crowded


@pytest.mark.parametrize("name", sorted(packages()))
def test_a_room_says_what_it_is_for(name: str) -> None:
    text = ast.get_docstring(ast.parse((packages()[name] / "__init__.py").read_text())) or ""
    assert "TODO" not in text
    assert re.search(r"\w+\s+\w+\s+\w+[^.]*\.(\s|$)", text), "expected at least one sentence"


def test_the_page_names_every_room_and_no_other() -> None:
    named = re.findall(r"^\| `((?:common|company|regulator|server)/[\w/]+)` \|", PAGE, re.MULTILINE)
    assert len(named) == len(set(named))
    assert set(named) == set(rooms())


def test_files_that_the_page_names_exist() -> None:
    names = re.findall(r"`((?:common|company|regulator|server)/[\w/]+\.py)`", PAGE)
    assert names
    missing = [name for name in names if not (ROOTS[name.split("/")[0]].parent / name).is_file()]
    assert not missing


def test_the_picture_is_drawn_from_the_contracts_as_they_are() -> None:
    """After a change: python tests/kits/rooms_picture.py"""
    assert PICTURE.read_text() == draw()


def test_the_picture_has_every_room() -> None:
    drawn = {room for rows in layers().values() for row in rows for room in row}
    drawn = {room.replace("company.gradient", "company/gradient") for room in drawn}
    shown_by_caption = {f"{room}/{word}" for room in drawn for word in _words(CAPTIONS.get(room))}
    parents = {"common/few_shot"}
    assert set(rooms()) - parents <= drawn | shown_by_caption


def _words(caption: str | None) -> list[str]:
    return re.findall(r"\w+", caption or "")


def test_no_module_refers_to_a_page_that_is_not_here() -> None:
    pages = {path.name for path in ROOT.glob("*.md")} | {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")
    }
    pages |= {Path(page).name for page in pages}
    produced = {
        "card.md",
        "tables.md",
        "table.md",
        "table-natural.md",
        "differences.md",
    }  # files we write
    lost = []
    for path in MODULES:
        for reference in re.findall(r"[\w./-]*\w\.md\b", path.read_text()):
            if reference.lstrip("./") not in pages | produced:
                lost.append(f"{_name(path.parent)}/{path.name}: {reference}")
    assert not lost


def test_private_modules_stay_in_their_room() -> None:
    """`_name.py` is for its own folder; what another room needs has no underscore."""
    trespasses = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
        for module in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        if _is_private(module) and _room_of(module) != path.parent
    ]
    assert not trespasses


def _is_private(module: str) -> bool:
    name = module.rpartition(".")[2]
    return name.startswith("_") and (_room_of(module) / f"{name}.py").exists()


def _room_of(module: str) -> Path:
    """The folder that a module of ours lies in."""
    parts = module.split(".")
    if len(parts) < 3 or parts[0] != "isonomy" or parts[1] not in ROOTS:
        return ROOT
    return ROOTS[parts[1]].joinpath(*parts[2:-1])
