"""Save and load a fitted estimator: one folder, no pickle.

    model.json            schema, type, classes, SHA-256 of the files
    model.skops           the estimator with its base model, without oracle and training rows
    card.md, card.json    the model card, of a `FairClassifier` or `FairRegressor`
    model.onnx            the whole decision, only with save_model(..., onnx=True)

skops writes objects as a tree of types, plain values and arrays. Loading makes only objects of
known types: skops's list (scikit-learn, numpy, scipy), a few more of scikit-learn, data classes and
estimators of Isonomy, torch's layers. Another type (LightGBM, XGBoost, a network's class that you
wrote) is code that loading would import and run: it needs `load_model(..., trust=True)`. model.json
names every file of the model with its SHA-256; loading refuses a file that is missing or changed.
"""

from __future__ import annotations

import copy
import hashlib
import json
import sys
import zipfile
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import skops.io
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from isonomy.common.base.documents import parse_json
from isonomy.common.base.errors import ConfigError, DataError, VerificationError
from isonomy.common.base.private_files import write_private, write_whole
from isonomy.company.fair._model_card import card_json, card_markdown, score_card
from isonomy.company.fair.estimator import FairClassifier
from isonomy.company.fair.inputs.copies import LeftOut, WithoutOracle
from isonomy.company.fair.onnx_export import onnx_bytes
from isonomy.company.fair.scores.regressor import FairRegressor

SCHEMA = 5
MODEL, ESTIMATOR, ONNX = "model.json", "model.skops", "model.onnx"

# What fitted estimators hold, and skops leaves to its caller.
_KNOWN = {
    "isonomy.company.fair.torch_adapter.small_network",
    "numpy.dtype",
    "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration",
    "sklearn.compose._column_transformer.make_column_selector",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.feature_selection._univariate_selection.f_classif",
    "sklearn.metrics._classification.balanced_accuracy_score",
    "sklearn.metrics._scorer._CurveScorer",
    "sklearn.metrics._scorer._PassthroughScorer",
    "sklearn.metrics._scorer._Scorer",
    "sklearn.model_selection._split.KFold",
    "sklearn.model_selection._split.StratifiedKFold",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.tree._tree.Tree",
    "sklearn.utils._metadata_requests.MetadataRequest",
    "sklearn.utils._metadata_requests.MethodMetadataRequest",
}


def save_model(model: Any, folder: str | Path, *, onnx: bool = False, X: Any = None) -> Path:
    """Write a fitted estimator of Isonomy to a new folder; returns the folder.

    Settings that are neither text nor numbers (callbacks, networks before training) are left out.
    `onnx=True` also writes the whole decision as ONNX, checked on the rows X (or made-up ones).
    What cannot be written is refused before the folder is made.
    """
    if not _is_ours(model):
        raise ConfigError(
            "save_model writes a FairClassifier, FairRegressor, GradientFairClassifier or "
            f"TorchClassifier; keep a {type(model).__name__} with skops or joblib"
        )
    check_is_fitted(model)
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; give a new folder")
    files = {ESTIMATOR: _written(model)}
    if onnx and isinstance(model, FairRegressor):
        raise ConfigError("a FairRegressor is not written as ONNX; save it without onnx=True")
    if onnx:
        files[ONNX] = onnx_bytes(model, X)
    hashes = {name: _sha256(content) for name, content in files.items()}
    state = {
        "schema": SCHEMA,
        "type": _type_name(model),
        "classes": _plain_classes(getattr(model, "classes_", ())),
        "files": hashes,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_private(folder / name, content)
    write_private(folder / MODEL, _json(state))
    if isinstance(model, FairClassifier | FairRegressor):
        fingerprints = {MODEL: _sha256(_json(state)), **hashes}
        queries = list(model.releases_.queries) if model.releases_ else []
        about = (_type_name(model.base_estimator_), queries, fingerprints)
        if isinstance(model, FairRegressor):
            card, text = score_card(model.report_, *about)
        else:
            card = card_json(model.report_, *about)
            text = card_markdown(model.report_, card)
        write_whole(folder / "card.json", _json(card))
        write_whole(folder / "card.md", (text + "\n").encode())
    return folder


def load_model(folder: str | Path, *, trust: bool = False) -> Any:
    """Read a saved estimator. It predicts; `frontier` and `at` need the training rows.

    `trust=True` also makes objects of types that are not known here, which can run any code: say
    it only for folders that you wrote yourself.
    """
    folder = Path(folder)
    content = _checked_files(folder)[ESTIMATOR]
    path = folder / ESTIMATOR
    try:
        types = skops.io.get_untrusted_types(data=content)
        unknown = sorted(name for name in types if not _is_known(name))
        if unknown and not trust:
            raise ConfigError(
                f"{path} holds objects of {', '.join(unknown)}. Loading them can run code: if you "
                "wrote this folder yourself, say load_model(folder, trust=True)"
            )
        model = skops.io.loads(content, trusted=types)
        if not _is_ours(model):
            raise DataError(f"{path} holds no estimator of Isonomy")
        check_is_fitted(model)
        if isinstance(model, FairClassifier):
            model.model_.check(len(model.classes_))
        if isinstance(model, FairRegressor):
            model.model_.check(len(model.levels_))
    except ImportError as error:
        raise ConfigError(f"{path} needs a package that is not installed: {error}") from error
    except (ConfigError, DataError):
        raise
    except Exception as error:  # a changed file can fail anywhere in foreign code
        raise DataError(f"{path} has a missing or damaged part: {error}") from error
    return model


def _written(model: Any) -> bytes:
    """The estimator as skops, read back once: some objects fail only then."""
    model = _portable(model)
    try:
        content: bytes = skops.io.dumps(model, compression=zipfile.ZIP_DEFLATED)
        skops.io.loads(content, trusted=skops.io.get_untrusted_types(data=content))
    except Exception as error:  # skops and foreign objects raise many kinds
        raise ConfigError(
            f"skops cannot write this {type(model).__name__}: {error}. joblib.dump keeps it, as a "
            "pickle; it leaves the oracle out"
        ) from error
    return content


def _portable(model: Any) -> Any:
    """A shallow copy without oracle, training rows and settings that are no plain values."""
    other = copy.copy(model)
    if isinstance(other, FairClassifier):
        other.estimator = other.base_estimator_
        other.releases = other.earlier = other.releases_ = other._outcome = None
    if isinstance(other, FairRegressor):
        other.estimator = other.base_estimator_
        other.releases_ = other._fitted = None
    for name, value in other.get_params(deep=False).items():
        if name != "estimator" and not _is_plain(value):
            setattr(other, name, LeftOut(name))
    return other


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _is_ours(model: Any) -> bool:
    """Without importing torch, which takes seconds: who has such a model has imported it."""
    adapter = sys.modules.get("isonomy.company.fair.torch_adapter")
    torch_model = adapter is not None and isinstance(model, adapter.TorchClassifier)
    return isinstance(model, WithoutOracle) or torch_model


def _is_known(name: str) -> bool:
    """Whether a type only holds values. A prefix would not do: it lets functions be called."""
    if name in _KNOWN:
        return True
    module, _, last = name.rpartition(".")
    if module.startswith("isonomy."):
        kind = getattr(import_module(module), last, None)
        estimator = isinstance(kind, type) and issubclass(kind, BaseEstimator | LeftOut)
        return estimator or is_dataclass(kind)
    if module.startswith("torch.nn.modules."):
        from torch import nn

        kind = getattr(nn, last, None)
        return isinstance(kind, type) and issubclass(kind, nn.Module)
    return False


def _checked_files(folder: Path) -> dict[str, bytes]:
    """The model's files, each as model.json describes it, or an error that names the file."""
    path = folder / MODEL
    state = parse_json(_read(path), path)
    if not isinstance(state, dict) or state.get("schema") != SCHEMA:
        schema = state.get("schema") if isinstance(state, dict) else None
        raise ConfigError(f"{path} has schema {schema!r}; this version reads {SCHEMA}")
    hashes = state.get("files")
    if not isinstance(hashes, dict) or ESTIMATOR not in hashes or hashes.keys() - {ESTIMATOR, ONNX}:
        raise DataError(f"{path} has no readable list of files")
    if ONNX not in hashes and (folder / ONNX).exists():
        raise VerificationError(f"{folder / ONNX} does not belong to this model")
    missing = [name for name in hashes if not (folder / name).exists()]
    if missing:
        raise VerificationError(f"{folder / missing[0]} is missing, and {MODEL} describes it")
    files = {name: _read(folder / name) for name in hashes}
    for name, content in files.items():
        if _sha256(content) != hashes[name]:
            raise VerificationError(f"{folder / name} is not the file that {MODEL} describes")
    return files


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read") from error


def _type_name(model: Any) -> str:
    return f"{type(model).__module__}.{type(model).__qualname__}"


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def _plain_classes(classes: Any) -> list[Any]:
    plain = np.asarray(classes).tolist()
    if not all(isinstance(c, str | int | float | bool) for c in plain):
        raise ConfigError("only text, integer, float and boolean classes can be saved")
    return list(plain)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
