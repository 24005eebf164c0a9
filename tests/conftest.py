"""Without PyTorch (`make test TORCH=no`) what needs it is skipped, and says so.

PyPI's PyTorch for Linux brings gigabytes of CUDA, and its build for the processor alone is not on
PyPI, so that tests on another version of Python may have to do without it.
"""

from __future__ import annotations

from collections.abc import Generator
from importlib.util import find_spec
from typing import Any

import pytest

_ABSENT = [f"No module named '{n}" for n in ("torch", "opacus") if find_spec(n) is None]


def _skipped(report: Any, path: object) -> Any:
    """A failure that says that PyTorch is absent, perhaps in another process, is a skip."""
    if report.failed and any(text in str(report.longrepr) for text in _ABSENT):
        report.outcome = "skipped"
        report.longrepr = (str(path), 0, "Skipped: needs PyTorch, which is not installed")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    return _skipped((yield), collector.path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    return _skipped((yield), item.path)
