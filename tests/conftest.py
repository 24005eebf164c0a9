"""Without PyTorch (`make test TORCH=no`) what needs it is skipped, and says so.

PyPI's PyTorch for Linux brings gigabytes of CUDA, and its build for the processor alone is not on
PyPI, so that tests on another version of Python may have to do without it.
"""

from __future__ import annotations

from collections.abc import Generator
from importlib.util import find_spec
from typing import Any

import pytest

REASON = "needs PyTorch, which is not installed"
_ABSENT = {name for name in ("torch", "opacus") if find_spec(name) is None}


def _misses_torch(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name in _ABSENT:
            return True
        error = error.__cause__ or error.__context__
    return False


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    report = yield
    call = getattr(report, "call", None)
    if _ABSENT and report.failed and call is not None and _misses_torch(call.excinfo.value):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {REASON}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    report = yield
    if _ABSENT and report.failed and call.excinfo and _misses_torch(call.excinfo.value):
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, f"Skipped: {REASON}")
    return report
