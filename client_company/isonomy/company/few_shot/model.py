"""A trained initialisation: save it, load it, adapt it to a new task.

    model = FewShotModel.load("initialisation")
    classifier = model.adapt(images, labels)        # K examples of each class
    classifier.predict(new_images)

Files: `model.safetensors` (θ by parameter name) and `card.json` (settings, hash, notes). Loading
executes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as from_bytes
from safetensors.numpy import save as to_bytes

from isonomy.common.agreements.few_shot_settings import FewShotSettings
from isonomy.common.base.documents import parse_json
from isonomy.common.base.errors import ConfigError, DataError, StorageError, VerificationError
from isonomy.common.base.private_files import write_whole
from isonomy.common.few_shot.learning.adapt import adapt
from isonomy.common.few_shot.learning.models import Network, Parameters, fingerprint

SCHEMA = 1
MODEL, CARD = "model.safetensors", "card.json"


@dataclass(frozen=True)
class AdaptedClassifier:
    """A network that was adapted to one task; `classes` in the order of its outputs."""

    network: Network
    params: Parameters = field(repr=False)
    classes: NDArray[Any]

    def predict_proba(self, inputs: NDArray[Any]) -> NDArray[np.float64]:
        """(n, classes)."""
        images = _checked(inputs, self.network.input_shape)
        logits = self.network.logits(self.params, images)[:, : len(self.classes)]
        return np.asarray(torch.softmax(logits, dim=1).detach().double().numpy())

    def predict(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """(n,) labels, as the examples had them."""
        return np.asarray(self.classes[self.predict_proba(inputs).argmax(axis=1)])


@dataclass(frozen=True)
class FewShotModel:
    """θ and the settings it was trained with. `notes` goes into the card as it is."""

    settings: FewShotSettings
    theta: NDArray[np.float32] = field(repr=False)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size = Network.of(self.settings).size
        if self.theta.shape != (size,) or not np.isfinite(self.theta).all():
            raise DataError(f"θ must be {size} finite numbers for this model")

    def adapt(self, inputs: NDArray[Any], labels: NDArray[Any]) -> AdaptedClassifier:
        """A classifier for the task of these examples: 2 to `ways` classes, K examples of each."""
        settings, network = self.settings, Network.of(self.settings)
        images, labels = _checked(inputs, network.input_shape), np.asarray(labels)
        if labels.shape != (len(images),):
            raise DataError(f"expected one label for each of {len(images)} examples")
        classes, places = np.unique(labels, return_inverse=True)
        if not 2 <= len(classes) <= settings.ways:
            raise DataError(
                f"this model distinguishes 2 to {settings.ways} classes, got {len(classes)}"
            )
        moved = adapt(
            network,
            network.unflatten(torch.from_numpy(self.theta)),
            images,
            torch.from_numpy(places.astype(np.int64)),
            steps=settings.inner_steps,
            rate=settings.real("inner_rate"),
            part=settings.inner_part,
        )
        return AdaptedClassifier(network, moved, classes)

    def save(self, folder: str | Path) -> Path:
        """Write model.safetensors and card.json to a new or empty folder; returns the folder."""
        folder = Path(folder)
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty; give a new folder")
        named = Network.of(self.settings).unflatten(torch.from_numpy(self.theta))
        blob = to_bytes({name: value.numpy().copy() for name, value in named.items()})
        card = {
            "schema": SCHEMA,
            "settings": self.settings.model_dump(mode="json"),
            "fingerprint": fingerprint(self.settings).hex(),
            "sha256": hashlib.sha256(blob).hexdigest(),
            "parameters": len(self.theta),
            "private": self.settings.private,
            "notes": dict(self.notes),
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / MODEL, blob)
            text = json.dumps(card, indent=1, ensure_ascii=False) + "\n"
            write_whole(folder / CARD, text.encode())
        except OSError as error:
            raise StorageError(f"{folder} could not be written: {error.strerror}") from None
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> FewShotModel:
        """Read what `save` wrote; every mismatch is refused."""
        folder = Path(folder)
        try:
            card = parse_json((folder / CARD).read_bytes(), folder / CARD)
            blob = (folder / MODEL).read_bytes()
            if card["schema"] != SCHEMA:
                raise ConfigError(f"{folder / CARD} has another schema than {SCHEMA}")
            if hashlib.sha256(blob).hexdigest() != card["sha256"]:
                raise VerificationError(f"{folder / MODEL} is not the file that {CARD} describes")
            settings = FewShotSettings.model_validate_json(json.dumps(card["settings"]))
            named = from_bytes(blob)
            shapes = Network.of(settings).shapes
            theta = np.concatenate([named[name].reshape(-1) for name in shapes])
            return cls(settings, theta.astype(np.float32), card.get("notes", {}))
        except OSError as error:
            raise ConfigError(f"no few-shot model in {folder}: {error.strerror}") from None
        except (ValueError, LookupError, TypeError, AttributeError, SafetensorError):
            raise DataError(f"{folder} is not a readable few-shot model") from None


def _checked(inputs: NDArray[Any], shape: tuple[int, ...]) -> torch.Tensor:
    """(n, *shape) finite numbers, or DataError."""
    try:
        images = np.ascontiguousarray(inputs, np.float32)
    except (TypeError, ValueError):
        raise DataError("inputs must be numbers") from None
    if images.ndim != len(shape) + 1 or images.shape[1:] != shape or not len(images):
        raise DataError(f"expected inputs of shape (n, {', '.join(map(str, shape))})")
    if not np.isfinite(images).all():
        raise DataError("some inputs are NaN or infinite; clean them")
    return torch.from_numpy(images)
