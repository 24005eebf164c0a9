"""The methods of a rehearsal, and the noise that a budget requires of each.

A run of `rounds` rounds uses every sample u = ⌈rounds·tasks·ways·(shots + queries)/samples⌉ times
(the sampler keeps uses even). A use is a support use (`inner_steps` noised sums) or a query use
(one noised sum, and with a constraint one dual step). With the cap's μ² shared evenly,

    b = (cap − shares)/u        z_query = 1/√b'      z_inner = √(steps/b)      z_dual = 1/√(b/10)

(b' = 0.9·b with a constraint, else b). Every sample then lasts to the end.

Under individual accounts the noise z·C is the same, but the bound is `ROOM`·C (and z a ROOM-th): a
sample is paced by its own account (common/few_shot/learning/_private.py), so it begins with rows of
norm C and may add longer ones when it has saved. It adds what DP-SGD would add, or more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from isonomy.common.agreements.few_shot_settings import MILLION, FewShotSettings
from isonomy.common.base.errors import ConfigError
from isonomy.common.few_shot.learning.tasks import planned_uses
from isonomy.common.privacy.accounting import UNITS_PER_MU2, units_for

SHARES, DUAL = 0.02, 0.1  # of the cap; of a query use
ROOM = 2  # largest row under individual accounts, over C


@dataclass(frozen=True)
class Variant:
    """One line of the paper's Table 5."""

    label: str
    method: str
    learner: str = "fomaml"
    inner_part: str = "head"
    rate: float = 1.0  # of `inner_rate`: where all of θ adapts, the head's rate is too large
    alone: bool = False  # without the regulator's share: what the company has by itself


VARIANTS = {
    "alone": Variant("company alone", "none", alone=True),
    "none": Variant("no privacy", "none", "maml"),
    "fair": Variant("no privacy, constraint", "fair"),
    "dp_sgd": Variant("DP-SGD", "dp_sgd"),
    "irdp": Variant("IRDP", "irdp"),
    "l_d": Variant("L-D (DP-SGD)", "l_d"),
    "pf_ld": Variant("PF-LD (IRDP)", "pf_ld"),
    "sc_reptile": Variant("SC-Reptile", "dp_sgd", "reptile", "all", rate=0.5),
}


def settings_for(name: str, epsilon: float, base: dict[str, Any], samples: int) -> FewShotSettings:
    """Settings of variant `name` whose noise fits ε and the number of rounds.

    `base` has the other settings; the variant's own replace them.
    """
    if name not in VARIANTS:
        raise ConfigError(f"unknown method {name!r}; there are {', '.join(VARIANTS)}")
    variant = VARIANTS[name]
    fields = {
        **base,
        "method": variant.method,
        "learner": variant.learner,
        "company_learner": "reptile" if variant.learner == "reptile" else "maml",
        "inner_part": variant.inner_part,
        "epsilon": round(epsilon * MILLION),
    }
    if variant.rate != 1.0:
        usual = base.get("inner_rate", FewShotSettings.model_fields["inner_rate"].default)
        fields["inner_rate"] = round(usual * variant.rate)
    if variant.alone:
        fields["regulator_weight"] = 0
    try:
        # Noise of 1 only to pass the checks: the real noise follows from these settings.
        settings = FewShotSettings(**{**fields, **dict.fromkeys(_NOISES, MILLION)})
        if not settings.private:
            return FewShotSettings(**{**fields, "epsilon": 0})
        return FewShotSettings(**{**fields, **_noises(settings, samples), **_norms(settings)})
    except ValidationError as error:
        raise ConfigError(f"settings of {name}: {error.errors()[0]['msg']}") from None


_NOISES = ("inner_noise", "query_noise", "dual_noise", "share_noise")


def _noises(settings: FewShotSettings, samples: int) -> dict[str, int]:
    """The noise multipliers of the formulas above, in millionths, rounded up."""
    cap = units_for(settings.real("epsilon"), float(settings.delta)) / UNITS_PER_MU2
    factor = 1 / ROOM if settings.individual else 1.0
    shares = SHARES * cap if settings.fair else 0.0
    each = (cap - shares) / planned_uses(settings, samples)
    query = each * (1 - DUAL) if settings.fair else each
    noises = {
        "inner_noise": factor * math.sqrt(settings.inner_steps / each),
        "query_noise": factor / math.sqrt(query),
    }
    if settings.fair:
        noises |= {"dual_noise": 1 / math.sqrt(each * DUAL), "share_noise": 1 / math.sqrt(shares)}
    return {name: math.ceil(value * MILLION) for name, value in noises.items()}


def _norms(settings: FewShotSettings) -> dict[str, int]:
    """The norm bounds: C, or ROOM times as much."""
    room = ROOM if settings.individual else 1
    return {name: room * getattr(settings, name) for name in ("inner_norm", "query_norm")}
