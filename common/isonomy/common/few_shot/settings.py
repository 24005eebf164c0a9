"""Everything that both owners agree on about a few-shot run: integers and words, so it has a hash.

Real numbers are in millionths. Needs no torch: the plan holds it, and the server may read it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Millionths = Annotated[int, Field(ge=0, le=10**12)]
Small = Annotated[int, Field(ge=1, le=10_000)]

METHODS = ("none", "l_d", "dp_sgd", "irdp", "pf_ld")
PRIVATE = ("dp_sgd", "irdp", "pf_ld")


class FewShotSettings(BaseModel):
    """One few-shot run. Immutable; equal settings have equal JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: Literal["conv4", "mlp"] = "conv4"
    width: Small = 64
    input_shape: tuple[Small, ...] = (3, 28, 28)
    ways: Small = 5
    shots: Small = 5
    queries: Small = 5  # per class
    learner: Literal["maml", "fomaml", "reptile"] = "fomaml"
    method: Literal["none", "l_d", "dp_sgd", "irdp", "pf_ld"] = "irdp"
    rounds: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    company_tasks: Small = 4  # per round
    regulator_tasks: Small = 4
    inner_part: Literal["all", "head"] = "head"
    inner_steps: Small = 3
    inner_rate: Millionths = 400_000
    outer_rate: Millionths = 1_000
    regulator_weight: Millionths = 1_000_000  # of its mean gradient beside the company's
    inner_norm: Millionths = 1_000_000  # clipping bound of one sample's gradient, support set
    query_norm: Millionths = 1_000_000  # the same, query set
    inner_noise: Millionths = 0  # noise multiplier of one inner step
    query_noise: Millionths = 0  # noise multiplier of the query set's sum
    epsilon: Millionths = 8_000_000
    delta: str = "1e-5"
    seed: Annotated[int, Field(ge=0, le=2**31)] = 0  # of the first θ; never of noise

    @model_validator(mode="after")
    def _private_methods_have_noise(self) -> FewShotSettings:
        if self.private and not (self.inner_noise and self.query_noise):
            raise ValueError(f"{self.method} is private: inner_noise and query_noise must not be 0")
        return self

    @property
    def private(self) -> bool:
        """Are the regulator's samples protected? If not, the run is a rehearsal only."""
        return self.method in PRIVATE


__all__ = ["METHODS", "PRIVATE", "FewShotSettings"]
