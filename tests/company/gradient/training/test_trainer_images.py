"""A small convolutional network on coloured digits: colour is the attribute (few-shot paper §4.2).

Without the MNIST files (folder in ISONOMY_DATA_DIR) digits are drawn: bars of seven segments.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from gradient_kit import regulator, trainer
from numpy.typing import NDArray
from torch import nn

from isonomy.company import GradientFairClassifier
from isonomy.company.gradient.pf_ld.pf_ld import PFLD

SEGMENTS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
BARS = {"a": (0, 1, 2, 5), "b": (1, 6, 5, 6), "c": (6, 11, 5, 6), "d": (11, 12, 2, 5)}
BARS |= {"e": (6, 11, 1, 2), "f": (1, 6, 1, 2), "g": (5, 7, 2, 5)}


def _drawn(n: int, rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    digits = rng.integers(10, size=n)
    images = np.zeros((n, 14, 14), dtype=np.float32)
    for image, digit in zip(images, digits, strict=True):
        down, right = rng.integers(0, 3), rng.integers(0, 7)
        for segment in SEGMENTS[digit]:
            top, bottom, left, end = BARS[segment]
            image[down + top : down + bottom, right + left : right + end] = 1.0
    return np.clip(images + 0.1 * rng.normal(size=images.shape), 0, 1).astype(np.float32), digits


def _digits(n: int, rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    folder = Path(os.environ.get("ISONOMY_DATA_DIR", "")) / "mnist"
    if not (folder / "train-images-idx3-ubyte.gz").exists():
        return _drawn(n, rng)
    with gzip.open(folder / "train-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(16 + n * 784), np.uint8, offset=16).reshape(n, 28, 28)
    with gzip.open(folder / "train-labels-idx1-ubyte.gz") as file:
        digits = np.frombuffer(file.read(8 + n), np.uint8, offset=8).astype(np.int64)
    return (pixels.reshape(n, 14, 2, 14, 2).mean(axis=(2, 4)) / 255).astype(np.float32), digits


def coloured(
    n: int, seed: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """(n, 2, 14, 14) images in the red or the green channel, whether the digit is 5 or more, and
    the colour, which goes with the label in 80 of 100 cases."""
    rng = np.random.default_rng(seed)
    grey, digits = _digits(n, rng)
    label = (digits >= 5).astype(np.int64)
    colour = np.where(rng.random(n) < 0.8, label, 1 - label)
    images = np.zeros((n, 2, 14, 14), dtype=np.float32)
    images[np.arange(n), colour] = grey
    return images, label, colour


def small_cnn(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, stride=2),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, 2),
    )


def _gap(model: nn.Module, images: NDArray[np.float32], colour: NDArray[np.int64]) -> float:
    """The true difference between the colours' rates of decisions for 1."""
    with torch.no_grad():
        chosen = model(torch.from_numpy(images)).argmax(dim=1).numpy()
    return float(chosen[colour == 1].mean() - chosen[colour == 0].mean())


@pytest.mark.parametrize(
    ("n", "rounds", "seed", "most"),
    [
        (600, 3, 0, 0.5),
        *(pytest.param(4_000, 12, s, 0.3, marks=pytest.mark.slow) for s in range(4)),
    ],
)
def test_a_small_network_learns_digits_and_not_the_colour(
    tmp_path: Path, n: int, rounds: int, seed: int, most: float
) -> None:
    """The model goes to fairness and stays there, instead of swinging from colour to colour.

    Labels go with colours in 80 of 100 cases: who gets all digits right has a gap of .6 and who
    goes by colour alone one of 1. At gap g at most .7 + g/2 of the decisions are right.
    """
    images, label, colour = coloured(n, seed)
    home = regulator(tmp_path, colour, epsilon=40.0, seed=seed)
    model = small_cnn(seed)
    gaps: list[float] = []
    own = trainer(
        model,
        PFLD(step=1.0, damping=2.0),
        home.local(),
        chunk_size=200,
        rounds=rounds,
        local_steps=4,
        warmup_steps=60,
        average=0.3,
        optimiser=lambda p: torch.optim.Adam(p, lr=4e-3),
        callbacks=[lambda t, record: gaps.append(_gap(model, images, colour))],
    )
    history = own.fit(images, label).history
    with torch.no_grad():
        chosen = model(torch.from_numpy(images)).argmax(dim=1).numpy()
    assert (chosen == label).mean() > 0.6
    assert abs(gaps[-1]) < most
    assert history[-1].violation < most + 0.05  # as released
    late = gaps[rounds // 2 :]
    assert max(map(abs, late)) < most + 0.1  # all of the last rounds, not by luck of the last


def test_images_go_through_the_classifier_as_they_are(tmp_path: Path) -> None:
    images, label, colour = coloured(200)
    oracle = regulator(tmp_path, colour, epsilon=40.0).local()
    options = {"rounds": 1, "chunk_size": 100, "warmup_steps": 5}
    model = GradientFairClassifier(small_cnn(), oracle=oracle, trainer_options=options)
    model.fit(images, label)
    assert model.predict_proba(images).shape == (200, 2)
