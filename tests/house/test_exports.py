"""The SDK's public names, pinned."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import isonomy.company as sdk

PUBLIC = [
    "FLD",
    "NOTIONS",
    "PFLD",
    "ColumnCoder",
    "Dataset",
    "DpFermi",
    "DpSgda",
    "EarlyStopping",
    "Event",
    "FairClassifier",
    "FairRegressor",
    "FilteredOracle",
    "GradientFairClassifier",
    "LocalOracle",
    "PublicFeatures",
    "RecordPrivacy",
    "TorchClassifier",
    "Trainer",
    "add_to_statement",
    "align_records",
    "audit",
    "audit_scores",
    "dual_tradeoff",
    "inputs_of",
    "join",
    "lending",
    "load",
    "load_model",
    "load_releases",
    "own_lengths",
    "primal_tradeoff",
    "rehearse_together",
    "save_model",
    "save_releases",
]


def test_the_public_names_are_these() -> None:
    """Written out: a name that README or docs use cannot vanish by an edit elsewhere."""
    assert sorted(sdk.__all__) == sorted(PUBLIC)
    assert sorted(sdk._MODULE_OF) == sorted(PUBLIC)
    for name in PUBLIC:
        assert getattr(sdk, name) is not None


def test_docs_import_public_names_only() -> None:
    root = Path(__file__).parents[2]
    for page in (root / "README.md", *(root / "docs").glob("*.md")):
        for names in re.findall(r"from isonomy\.company import ([\w, ]+)", page.read_text()):
            assert {name.strip() for name in names.split(",")} <= set(PUBLIC), page


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
