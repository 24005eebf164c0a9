"""The code in README and quickstart runs as it stands (with fewer people)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs_pictures import PICTURES
from page_kit import DOCS, Walk, blocks

ROOT = Path(__file__).parents[2]


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)


def lending_walk(folder: Path) -> Walk:
    """A walk with fewer people than the pages have."""
    return Walk(folder, {"20_000": "3_000", "--seeds 8": "--seeds 1"})


@pytest.mark.parametrize("page", ["../README.md", "index.md"])
def test_the_first_example_runs(
    page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with lending_walk(tmp_path) as walk:
        for block in blocks(DOCS / page):
            if block.kind == "python":
                walk.run(block)
    assert "Privacy: ε" in capsys.readouterr().out


def test_the_engineers_tutorial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every block of quickstart.md, in order; test_howto runs the one that joins a federation."""
    spent = set()
    with lending_walk(tmp_path) as walk:
        for block in blocks(DOCS / "quickstart.md"):
            if "join(" in block.text:
                continue
            walk.run(block)
            spent.add(walk.names["oracle"].budget.spent_units)
    assert "Privacy: ε" in capsys.readouterr().out
    assert len(spent) == 1  # what comes after the fit is free
    assert (tmp_path / "model.onnx").exists()
    assert (tmp_path / "rehearsal" / "plots.html").exists()


def test_the_worked_examples_for_contributors_run(tmp_path: Path) -> None:
    """In order, in one process: a strategy, a channel, a data set, a section of the report."""
    blocks = python_blocks("docs/contributing.md")
    assert len(blocks) == 4
    env = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    command = [sys.executable, "-c", "\n".join(blocks)]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env)
    assert shown.returncode == 0, shown.stderr[-2000:]
    epsilon, cells, captions = shown.stdout.splitlines()
    assert 0.9 < float(epsilon) <= 1.0
    assert (cells, captions) == ("6", "['']")


def test_day_two_runs(tmp_path: Path) -> None:
    """All blocks in order: train and audit, watch, retrain with new people."""
    script = "\n".join(python_blocks("docs/day-two.md"))
    script += "\nassert newcomers.budget.spent_units > 0\n"
    env = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    command = [sys.executable, "-c", script]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env)
    assert shown.returncode == 0, shown.stderr[-2000:]
    assert "Audited file: SHA-256" in shown.stdout
    assert shown.stdout.count("The features show no change") == 1
    assert shown.stdout.count("The features have changed") == 1
    assert "only the others spent from this plan" in shown.stdout


def test_few_shot_is_rehearsed_and_adapted(tmp_path: Path) -> None:
    """Every block of few-shot.md, in order, with fewer rounds."""
    short = "--rounds 2 --warm-rounds 1"
    fewer = {"--epsilon 2,8 --seeds 3": f"--epsilon 8 {short}", "--save": f"{short} --save"}
    with Walk(tmp_path, fewer) as walk:
        walk.page("few-shot.md")
    assert walk.count == 6
    assert json.loads((tmp_path / "settings.json").read_text())["method"] == "pf_ld"
    assert (tmp_path / "results" / "table.md").exists()
    assert len(walk.names["classifier"].predict(walk.names["colours"][:7])) == 7


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_its_code_draws(name: str) -> None:
    assert (ROOT / "docs" / "images" / name).read_text() == PICTURES[name]()


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert built.returncode == 0, built.stderr[-2000:]
    assert (
        "isonomy-regulator enroll"
        in (tmp_path / "commands/isonomy-regulator/index.html").read_text()
    )
    sources = re.findall(r'(?:src|href)="(https?://[^"]+)"', (tmp_path / "index.html").read_text())
    assert not [address for address in sources if not address.startswith("https://squidfunk.")]
