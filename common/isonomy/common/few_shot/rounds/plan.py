"""The few-shot plan: what both owners agree to before they meta-train one model together.

An `Agreement` about whose tasks meet, in how many rounds, and what the regulator's samples may
lose. The model is bound by its fingerprint, so that two sides with different code find out before
any budget is set aside. Needs no torch.
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from isonomy.common.agreements.agreement import MAX_PLAN_BYTES, MAX_ROUND_PARTS, Agreement, Word
from isonomy.common.base.errors import ConfigError
from isonomy.common.crypto.params import parameter_set
from isonomy.common.few_shot.rounds.settings import FewShotSettings
from isonomy.common.keys.party import Hex32
from isonomy.common.privacy.accounting import units_for
from isonomy.common.privacy.units import UNITS_PER_MU2, ceil_div

MILLION = 1_000_000
KIND: Literal["few-shot"] = "few-shot"
_DECIMAL = re.compile(r"[0-9]{1,3}(\.[0-9]{1,20})?(e-[0-9]{1,3})?")
PoolName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]


class FewShotPlan(Agreement):
    """Who meta-trains with whom, on which tasks, and what it may cost."""

    word: ClassVar[str] = "few-shot plan"

    schema_version: Literal[1] = 1
    kind: Literal["few-shot"] = KIND
    purpose: Word = "meta-training"
    pool: PoolName  # the regulator's tasks, by the name under which it keeps them
    samples: Annotated[int, Field(ge=1, le=50_000_000)]  # that the regulator holds there
    settings: FewShotSettings
    fingerprint: Hex32  # of the model, as both sides must build it
    size: Annotated[int, Field(ge=1)]  # d, its parameters

    @model_validator(mode="after")
    def _can_be_kept(self) -> Self:
        if len(self.companies) != 1:
            raise ValueError("few-shot rounds are between one company and one regulator")
        if not self.settings.private:
            raise ValueError(
                f"method {self.settings.method!r} does not protect the regulator's samples, and "
                "the holder of the key can subtract its own share: rehearse it with both sides "
                "known, or take dp_sgd, irdp or pf_ld"
            )
        if not _DECIMAL.fullmatch(self.settings.delta) or not 0 < self.delta_value < 1:
            raise ValueError("delta must be a decimal number between 0 and 1, such as 1e-5")
        if not self.settings.epsilon:
            raise ValueError("an epsilon of 0 allows no round at all")
        if self.round_parts > MAX_ROUND_PARTS:
            most = MAX_ROUND_PARTS * parameter_set(self.parameters).poly_degree
            raise ValueError(f"the model has {self.size:,} parameters; at most {most:,} travel")
        return self

    @property
    def round_parts(self) -> int:
        return -(-self.size // parameter_set(self.parameters).poly_degree)

    @cached_property
    def cap_units(self) -> int:
        """The budget in units of μ²: the most whose ε at δ is at most the approved one."""
        return units_for(self.settings.epsilon / MILLION, self.delta_value)

    @cached_property
    def round_units(self) -> int:
        """The most that a round can cost a sample: by the settings, whatever the samples are.

        A sample is in one task of a round, in its support set (`inner_steps` noised sums) or in its
        query set (one, and with a constraint a dual step); the shares of the groups come on top in
        the first round, and are counted in every one.
        """
        own = self.settings
        support = own.inner_steps * _units(own.inner_noise)
        query = _units(own.query_noise) + (_units(own.dual_noise) if own.fair else 0)
        return max(support, query) + (_units(own.share_noise) if own.fair else 0)

    @property
    def epsilon_millionths(self) -> int:
        return self.settings.epsilon

    @property
    def delta(self) -> str:
        return self.settings.delta

    @property
    def delta_value(self) -> float:
        return float(self.settings.delta)

    @property
    def round_bytes(self) -> int:
        """Bytes of one round: θ, the company's key and both sides' ciphertexts."""
        params = parameter_set(self.parameters)
        return 4 * self.size + params.column_bytes + 2 * self.round_parts * params.answer_bytes

    def describe(self) -> str:
        """The plan in plain language, for the owner who approves it."""
        own, company, regulator = self.settings, self.companies[0].name, self.regulator.name
        return "\n".join(
            [
                f"Few-shot plan {self.name!r} ({self.purpose})",
                f"  lets {company} and {regulator} meta-train one model ({own.model}, "
                f"{self.size:,} parameters) in {own.rounds:,} rounds, {own.ways} classes with "
                f"{own.shots} examples each, by {own.learner} with {own.method};",
                f"  uses {regulator}'s tasks {self.pool!r}: {self.samples:,} samples, of which "
                f"each loses at most ε = {own.epsilon / MILLION:g} at δ = {own.delta}, all rounds "
                "together, whether all of them are run or not;",
                f"  {company} receives the sum of both sides' steps and can subtract its own: what "
                f"protects {regulator}'s samples from it is the noise, not the encryption;",
                f"  {regulator} receives the model in every round, and so learns how it moves;",
                f"  the server adds ciphertexts and learns neither; {self.round_bytes:,} bytes per "
                "round.",
                f"  Model {self.fingerprint}",
                f"  Hash {self.hash.hex()}",
            ]
        )


def _units(noise: int) -> int:
    """Of one noised sum: 1/z² of μ², rounded up; 0 where there is none."""
    return ceil_div(UNITS_PER_MU2 * MILLION**2, noise**2) if noise else 0


def is_few_shot(path: Path) -> bool:
    """Whether a file is a few-shot plan, by its `kind`; full checks come after."""
    try:
        with path.open("rb") as file:
            return f'"kind":"{KIND}"'.encode() in file.read(MAX_PLAN_BYTES)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


__all__ = ["FewShotPlan", "is_few_shot"]
