"""`make build` makes a wheel that holds all five source roots and can be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wheel_installs_and_imports(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    target = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*install, "--target", str(target), str(wheel)], check=True)
    for name in ("texts.toml", "templates/today.html.j2", "static/console.css"):
        assert (target / "isonomy" / "regulator" / "console" / name).is_file(), name
    (htmx,) = (target / "isonomy" / "regulator" / "console" / "static").glob("htmx-*.min.js")
    assert htmx.with_name("htmx-LICENSE.txt").is_file()
    script = (
        f"import sys; sys.path.insert(0, {str(target)!r})\n"
        "import isonomy.common.sums.oracle, isonomy.wire.v1.sums_pb2, isonomy.company.cli.main\n"
        "import isonomy.regulator, isonomy.server\n"
        "for m in ('common.sums.oracle', 'wire.v1.sums_pb2', 'company.cli.main', 'regulator'):\n"
        f"    assert sys.modules['isonomy.' + m].__file__.startswith({str(target)!r}), m\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)
