"""After the demonstration: its regulator's daemon and console, for looking around."""

from __future__ import annotations

import select
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.private_files import private_folder
from isonomy.company.demo.layout import Layout
from isonomy.company.demo.processes import Processes

START_S, LOOK_S, DAY_S = 60.0, 300.0, 24 * 3600.0


def file_report(layout: Layout) -> None:
    """Put a copy of the report where the regulator's console lists it."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    name = f"{stamp}-{Plan.load(layout.plan).hash.hex()[:12]}"
    folder = private_folder(private_folder(layout.regulator / "reports") / name)
    for ending in ("json", "html", "sig"):
        Path(shutil.copy(layout.root / f"report.{ending}", folder)).chmod(0o600)


def look_around(layout: Layout, announce: Callable[[str], None], *, stays: bool = True) -> None:
    """Run daemon and console until Ctrl-C; unless it `stays`, for five minutes or until Enter.

    `announce` gets the console's one-time address.
    """
    home = ("--home", str(layout.regulator))
    with Processes(layout.logs) as processes:
        processes.start("regulator-daemon", ["isonomy-regulator", "serve", *home])
        console = processes.start("console", ["isonomy-regulator", "console", *home, "--port", "0"])
        processes.until(lambda: console.says("/login?token="), "the console", START_S)
        announce(console.log.read_text().strip())
        end = time.monotonic() + (DAY_S if stays else LOOK_S)

        def is_over() -> bool:
            late = time.monotonic() > end or console.process.poll() is not None
            return late or (not stays and bool(select.select([sys.stdin], [], [], 0)[0]))

        processes.until(is_over, "its end", DAY_S + 60, idle=0.3)
