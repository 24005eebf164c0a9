"""Save and load a fitted `FairClassifier`: one folder, plain formats.

    model.json            schema, classes, events, features' codes, report, fingerprints
    arrays.safetensors    λ, proxy, features' constants
    card.md, card.json    the model card
    base.joblib           the base model, only with save_model(..., trust=True)
    model.onnx            the whole decision, only with save_model(..., onnx=True)

Loading reads JSON and safetensors and executes nothing. A base model is foreign code: it is loaded
from base.joblib (a pickle) only with `load_model(..., trust=True)`, or the caller hands it over,
fitted. model.json and the card name every file of the model with its SHA-256; loading refuses a
file that is missing or was changed.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file
from safetensors.numpy import save as array_bytes
from sklearn.utils.validation import check_is_fitted

from isonomy.common.base.documents import parse_json
from isonomy.common.base.errors import ConfigError, DataError, VerificationError
from isonomy.common.base.private_files import write_private, write_whole
from isonomy.company.fair._model_card import card_json, card_markdown
from isonomy.company.fair.estimator import FairClassifier
from isonomy.company.fair.inputs.checks import class_numbers
from isonomy.company.fair.inputs.state import Arrays, pack, unpack
from isonomy.company.fair.onnx_export import Schema, onnx_bytes
from isonomy.company.fair.tilt.model import TiltedModel
from isonomy.company.fair.tilt.report import Report

SCHEMA = 3
MODEL, ARRAYS, BASE = "model.json", "arrays.safetensors", "base.joblib"
ONNX = "model.onnx"


def save_model(
    classifier: FairClassifier,
    folder: str | Path,
    *,
    trust: bool = False,
    base_reference: str = "",
    onnx: bool = False,
    X: Any = None,
) -> Path:
    """Write a fitted classifier to a new folder.

    `trust=True` also writes the base model as a pickle. Otherwise `base_reference` should say
    where the base model is kept (a registry's name, a path, a hash); it is written down as it is.
    `onnx=True` also writes the whole decision as ONNX, checked on the rows X (or made-up ones); a
    model that does not convert is refused before anything is written.
    """
    if not isinstance(classifier, FairClassifier):
        raise ConfigError(
            f"save_model writes a FairClassifier; keep a {type(classifier).__name__} with joblib "
            "or pickle, which leave its oracle out"
        )
    check_is_fitted(classifier, "model_")
    if classifier.model_.retrained and not trust:
        raise ConfigError(
            "a model trained with in_training=True needs two networks; save it with trust=True"
        )
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; give a new folder")
    exported = onnx_bytes(classifier, X) if onnx else None
    folder.mkdir(parents=True, exist_ok=True)
    arrays = Arrays()
    model = pack(classifier.model_, arrays)
    write_whole(folder / ARRAYS, array_bytes(arrays))
    base: dict[str, Any] = {
        "type": f"{type(classifier.base_estimator_).__module__}."
        f"{type(classifier.base_estimator_).__qualname__}",
        "reference": base_reference,
        "sha256": None,
    }
    if trust:  # a pickle runs code when it is loaded: only on the caller's word
        joblib.dump((classifier.base_estimator_, classifier.fair_estimator_), folder / BASE)
        base["sha256"] = _sha256(folder / BASE)
    if exported is not None:
        write_private(folder / ONNX, exported)
    state = {
        "schema": SCHEMA,
        "model": model,
        "classes": _plain_classes(classifier.classes_),
        "pos_label": _plain_classes(np.array([classifier.pos_label_]))[0],
        "columns": int(classifier.n_features_in_),
        "column_names": [str(n) for n in getattr(classifier, "feature_names_in_", [])],
        "base": base,
        "report": pack(classifier.report_, arrays),
        "queries": list(classifier.releases_.queries) if classifier.releases_ else [],
        "arrays_sha256": _sha256(folder / ARRAYS),
        "schema_of_columns": pack(classifier.schema_, arrays),
        "onnx_sha256": _sha256(folder / ONNX) if exported is not None else None,
    }
    write_private(folder / MODEL, _json(state))
    card = card_json(classifier.report_, state, _sha256(folder / MODEL))
    write_whole(folder / "card.json", _json(card))
    write_whole(folder / "card.md", (card_markdown(classifier.report_, card) + "\n").encode())
    return folder


def load_model(folder: str | Path, *, estimator: Any = None, trust: bool = False) -> FairClassifier:
    """Read a saved classifier. It predicts; `frontier` and `at` need the training rows.

    Give the fitted base model as `estimator`, or `trust=True` to unpickle the one in the folder:
    do that only for folders that you made yourself, a pickle can run any code.
    """
    folder = Path(folder)
    state = _read_state(folder)
    classifier = FairClassifier(estimator)
    try:
        # Every fingerprint is checked before a file's content is used.
        if _sha256(folder / ARRAYS) != state["arrays_sha256"]:
            raise VerificationError(f"{folder / ARRAYS} is not the file that {MODEL} describes")
        _check_onnx(folder, state)
        arrays = load_file(folder / ARRAYS)
        classifier.base_estimator_, classifier.fair_estimator_ = _base(
            folder, state["base"], estimator, trust
        )
        classifier.model_ = unpack(TiltedModel, state["model"], arrays)
        classifier.cut_ = classifier.model_.cut
        classifier.report_ = unpack(Report, state["report"], arrays)
        classes = class_numbers(state["classes"], len(state["classes"]), state["pos_label"])
        classifier.pos_label, classifier.pos_label_ = state["pos_label"], classes.pos_label
        classifier.classes_, classifier.class_order_ = classes.listed, classes.order
        classifier.n_features_in_ = int(state["columns"])
        if state["column_names"]:
            classifier.feature_names_in_ = np.array(state["column_names"], dtype=object)
        classifier.schema_ = unpack(Schema, state["schema_of_columns"], arrays)
        classifier.model_.check(len(classifier.classes_))
    except SafetensorError as error:
        raise DataError(f"{folder / ARRAYS} is not a safetensors file") from error
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise DataError(f"{folder / MODEL} lacks or garbles a field: {error}") from error
    classifier.releases_, classifier._outcome = None, None
    fitted_for = getattr(classifier.base_estimator_, "classes_", classifier.classes_)
    if [str(c) for c in fitted_for] != [str(c) for c in classifier.classes_]:
        raise ConfigError("this estimator was fitted for other classes than the saved model")
    return classifier


def _check_onnx(folder: Path, state: dict[str, Any]) -> None:
    """The ONNX file is what was saved with this model, or there is none on either side."""
    expected = state["onnx_sha256"]
    if expected is None:
        if (folder / ONNX).exists():
            raise VerificationError(f"{folder / ONNX} does not belong to this model")
    elif not (folder / ONNX).exists() or _sha256(folder / ONNX) != expected:
        raise VerificationError(f"{folder / ONNX} is not the file that {MODEL} describes")


def _base(folder: Path, base: dict[str, Any], estimator: Any, trust: bool) -> tuple[Any, Any]:
    """The base model and the model that decides: the same object unless it was retrained."""
    if estimator is not None:
        check_is_fitted(estimator)
        return estimator, estimator
    if not trust:
        where = f" ({base['reference']})" if base.get("reference") else ""
        raise ConfigError(
            f"give the fitted base model{where} as estimator=…, or trust=True to unpickle the one "
            "in the folder; a pickle can run any code, so trust only what you saved yourself"
        )
    if not base.get("sha256") or not (folder / BASE).exists():
        raise ConfigError(
            "this folder holds no base model: it was saved without trust=True. Give it as "
            "estimator=…, fitted"
        )
    if _sha256(folder / BASE) != base["sha256"]:
        raise VerificationError(f"{folder / BASE} is not the file that {MODEL} describes")
    first, second = joblib.load(folder / BASE)
    return first, second


def _read_state(folder: Path) -> dict[str, Any]:
    try:
        state = parse_json((folder / MODEL).read_bytes(), folder / MODEL)
    except OSError as error:
        raise DataError(f"{folder / MODEL} cannot be read") from error
    if not isinstance(state, dict) or state.get("schema") != SCHEMA:
        schema = state.get("schema") if isinstance(state, dict) else None
        raise ConfigError(f"{folder / MODEL} has schema {schema!r}; this version reads {SCHEMA}")
    return state


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def _plain_classes(classes: Any) -> list[Any]:
    plain = classes.tolist()
    if not all(isinstance(c, str | int | float | bool) for c in plain):
        raise ConfigError("only text, integer, float and boolean classes can be saved")
    return list(plain)


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read") from error
