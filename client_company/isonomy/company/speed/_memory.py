"""Peak memory of a piece of work in a process of its own."""

from __future__ import annotations

from pathlib import Path


def status_mb(name: str, process: int | str = "self") -> float:
    """A line of /proc/…/status in megabytes: VmRSS is resident now, VmHWM was at the peak."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def reset_peak_mb() -> float:
    """Linux forgets the peak on request; returns what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return status_mb("VmRSS")
