"""Pages of the site that the program writes: each command's help, and the list of decisions.

mkdocs calls `on_files` (`hooks` in mkdocs.yml), so these pages are never out of date.
"""

from __future__ import annotations

import html
import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import typer
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

COMMANDS = ("isonomy", "isonomy-company", "isonomy-regulator", "isonomy-server", "isonomy-verify")
DECISIONS = """# Decisions

For contributors and reviewers: the choices that would be expensive to undo, one page each, with the
reasons and what was refused.

"""


def command_page(name: str) -> str:
    """Return the help texts of a command and of all commands below it as one page."""
    (point,) = entry_points(group="console_scripts", name=name)
    command = typer.main.get_command(point.load())
    page: str = get_docs_for_click(
        obj=command, ctx=typer.Context(command, info_name=name), name=name
    )
    page = re.sub(r"\*\*Commands\*\*:\n\n(\* .*\n)+\n?", "", page)  # cut short; headings follow
    return html.unescape(page)  # Markdown escapes once more


def decisions_page(folder: Path) -> str:
    """Return a list of links to the decision records, by their headings."""
    titles = [(path.name, path.open().readline().lstrip("# ")) for path in folder.glob("0*.md")]
    return DECISIONS + "".join(f"- [{title.strip()}]({name})\n" for name, title in sorted(titles))


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages to those of docs/."""
    pages = {f"commands/{name}.md": command_page(name) for name in COMMANDS}
    pages["adr/index.md"] = decisions_page(Path(config["docs_dir"]) / "adr")
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    return files
