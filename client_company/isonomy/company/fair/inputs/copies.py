"""Copies of an estimator have everything but its oracle.

An oracle is a live handle to one plan's budget. It cannot be written to a file, and a copy of it
would be a second way to spend the same plan. So `clone`, `pickle`, joblib and `copy.deepcopy` leave
it out. The folds of a cross-validation are fitted on clones: none of them can spend anything.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar

from sklearn.base import clone

RECIPE = (
    "Copies have no oracle (clone, pickle, joblib, deepcopy, and so every fold of cross_val_score "
    "or GridSearchCV), so that no search spends a plan. Nothing was asked. Tune without "
    "attributes, e.g. FairClassifier(GridSearchCV(model, grid), oracle=oracle), and fit once; then "
    "at(tolerance=…) and frontier() are free. To fit this very copy: set_params(oracle=oracle)."
)
_REQUESTS = ("_metadata_request", "_sklearn_output_config")  # what scikit-learn's clone carries


class LeftOut:
    """Stands in a copy where the oracle was, and in a file where another setting was."""

    def __init__(self, setting: str = "oracle") -> None:
        self.setting = setting

    def __repr__(self) -> str:
        return f"<left out of copies: set_params({self.setting}=…)>"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name}: {RECIPE}")


class WithoutOracle:
    """Mixin: clones and pickles without the oracle. `_shared`: settings that need no copy."""

    _shared: ClassVar[tuple[str, ...]] = ()

    def __sklearn_clone__(self) -> Any:
        """The same settings without the oracle, and the same metadata requests."""
        settings = {
            name: value if name in self._shared else clone(value, safe=False)
            for name, value in self.get_params(deep=False).items()  # type: ignore[attr-defined]
            if name != "oracle"
        }
        other = type(self)(**settings)
        other.oracle = _left_out(self.oracle)  # type: ignore[attr-defined]
        for name in _REQUESTS:
            if hasattr(self, name):
                setattr(other, name, copy.deepcopy(getattr(self, name)))
        return other

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[assignment]
        return {**state, "oracle": _left_out(state.get("oracle"))}


def _left_out(oracle: Any) -> LeftOut | None:
    return None if oracle is None else LeftOut()
