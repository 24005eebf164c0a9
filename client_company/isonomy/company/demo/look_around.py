"""After the demonstration: its regulator's daemon and console, for looking around."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable

from isonomy.common.agreements.plan import Plan
from isonomy.company.demo.layout import Layout
from isonomy.company.demo.processes import Processes

START_S, DAY_S = 60.0, 24 * 3600.0


def look_around(layout: Layout, announce: Callable[[str], None]) -> None:
    """Run daemon and console until Ctrl-C. `announce` gets the console's one-time address."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    folder = layout.regulator / "reports" / f"{stamp}-{Plan.load(layout.plan).hash.hex()[:12]}"
    folder.mkdir(parents=True, mode=0o700)
    for ending in ("json", "html", "sig"):  # where the console lists them
        shutil.copy(layout.root / f"report.{ending}", folder)
    home = ("--home", str(layout.regulator))
    with Processes(layout.logs) as processes:
        processes.start("regulator-daemon", ["isonomy-regulator", "serve", *home])
        console = processes.start("console", ["isonomy-regulator", "console", *home, "--port", "0"])
        processes.until(lambda: console.says("/login?token="), "the console", START_S)
        announce(console.log.read_text().strip())
        processes.until(lambda: console.process.poll() is not None, "its end", DAY_S, idle=0.5)
