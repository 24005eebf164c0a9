"""The SDK's public names, pinned."""

from __future__ import annotations

import subprocess
import sys

import isonomy.company as sdk


def test_every_name_can_be_had() -> None:
    for name in sdk.__all__:
        assert getattr(sdk, name) is not None
    assert sorted(sdk.__all__) == sorted(sdk._HOMES)


def test_importing_the_package_loads_no_learning_library() -> None:
    script = (
        "import sys, isonomy.company.cli.main\n"
        "print('sklearn' in sys.modules, 'torch' in sys.modules)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == ["False", "False"]


def test_a_name_is_the_object_and_not_the_module_of_that_name() -> None:
    script = "from isonomy.company import audit, join\nprint(callable(audit), callable(join))"
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == ["True", "True"]
