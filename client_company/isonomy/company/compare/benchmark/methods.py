"""Every method's name, colour and mark, the same in every figure.

Marks differ as well as colours, so that a figure survives a black-and-white printer. A strategy
that is registered later appears by itself, with the first free colour of the reserve.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from isonomy.common.figures.style import (
    BLUE,
    BROWN,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PINK,
    PURPLE,
    RED,
    RESERVE,
    SKY,
)


@dataclass(frozen=True)
class Method:
    """How a strategy is shown, and what kind of thing it is."""

    label: str
    colour: str
    mark: str
    private: bool = True  # it has a budget; False: a reference, with the true attributes or none
    designed_here: bool = False  # rather than re-implemented from a paper


_METHODS = {
    "tilt": Method("tilt (ours)", BLUE, "circle", designed_here=True),
    "pf_ld": Method("PF-LD, our code", ORANGE, "square"),
    "dp_fermi": Method("DP-FERMI, our code", GREEN, "triangle"),
    "dp_oracle": Method("DP-oracle, our code", PINK, "diamond"),
    "dp_postprocess": Method("DP-postprocess. (needs A)", RED, "down"),
    "randomised_response": Method("randomised response", SKY, "square"),
    "dp_sgd_penalty": Method("DP-SGD + penalty", PURPLE, "cross"),
    "raco_dp": Method("RaCO-DP, our code", BROWN, "diamond"),
    "unconstrained": Method("no constraint", INK, "plus", private=False),
    "f_ld": Method("F-LD, not private", GREY, "square", private=False),
    "exponentiated_gradient": Method("exp. gradient, not private", GREY, "diamond", private=False),
    "linear_post": Method("LinearPost, not private", INK, "circle", private=False),
    "threshold_optimizer": Method(
        "thresholds by group, not private (needs A)", GREY, "down", private=False
    ),
    "zafar": Method("Zafar, not private", GREY, "triangle", private=False),
}

# The papers' own curves: the method's colour, drawn hollow.
_PUBLISHED = {
    "DP-FERMI": Method("DP-FERMI, published", GREEN, "triangle"),
    "Tran et al. 2021b (PF-LD)": Method("PF-LD, published by Lowy et al.", ORANGE, "square"),
    "Tran et al. 2021a": Method("Tran 2021a, published by Lowy et al.", BROWN, "cross"),
    "Jagielski et al. 2019": Method("Jagielski, published by Lowy et al.", PINK, "diamond"),
}


def method(strategy: str) -> Method:
    """The look of a strategy; one that is not listed here is taken to be private."""
    if strategy in _METHODS:
        return _METHODS[strategy]
    colour = RESERVE[zlib.crc32(strategy.encode()) % len(RESERVE)]
    return Method(strategy.replace("_", " "), colour, "circle")


def published_method(name: str) -> Method:
    """The look of a curve of the papers."""
    return _PUBLISHED.get(name) or Method(f"{name}, published", GREY, "plus")
