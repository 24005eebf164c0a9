"""Everything that both owners agree on about a few-shot run: integers and words, so it has a hash.

Real numbers are in millionths. Needs no torch: the plan holds the settings.

| method | regulator's samples | accounts | fair |
|---|---|---|---|
| none | not protected: rehearsals only | – | no |
| fair | not protected: rehearsals only | – | yes |
| dp_sgd | clipped and noised | worst case | no |
| irdp | clipped and noised | each sample's own norms | no |
| l_d | clipped and noised | worst case | yes |
| pf_ld | clipped and noised | each sample's own norms | yes |

SC-Reptile, the paper's comparison, is `dp_sgd` with `learner="reptile"`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Millionths = Annotated[int, Field(ge=0, le=10**12)]
Small = Annotated[int, Field(ge=1, le=10_000)]

Delta = Annotated[str, Field(pattern=r"^[0-9]{1,3}(\.[0-9]{1,20})?(e-[0-9]{1,3})?$")]

MILLION = 10**6
_LEAST_NOISE = 7_813  # 2^-7: whole-number noise is exact from a deviation of 2^13 in 2^20


class FewShotSettings(BaseModel):
    """One few-shot run. Immutable; equal settings have equal JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: Literal["conv4", "mlp"] = "conv4"
    width: Small = 64
    input_shape: tuple[Small, ...] = (3, 28, 28)
    ways: Annotated[int, Field(ge=2, le=1_000)] = 5
    shots: Small = 5
    queries: Small = 5  # per class
    learner: Literal["maml", "fomaml", "reptile"] = "fomaml"
    company_learner: Literal["maml", "fomaml", "reptile"] = "fomaml"  # on its own tasks
    method: Literal["none", "fair", "dp_sgd", "irdp", "l_d", "pf_ld"] = "irdp"
    rounds: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    company_tasks: Small = 4  # per round
    regulator_tasks: Small = 4
    measured_tasks: Annotated[int, Field(ge=0, le=10_000)] = 0  # the regulator's, in no round
    inner_part: Literal["all", "head"] = "head"
    inner_steps: Small = 3
    inner_rate: Millionths = 400_000
    optimiser: Literal["adam", "sgd"] = "adam"
    outer_rate: Millionths = 1_000
    regulator_weight: Millionths = 1_000_000  # of its mean gradient beside the company's
    inner_norm: Millionths = 1_000_000  # clipping bound of one sample's gradient, support set
    query_norm: Millionths = 1_000_000  # the same, query set
    inner_noise: Millionths = 0  # noise multiplier of one inner step
    query_noise: Millionths = 0  # noise multiplier of the query set's sum
    epsilon: Millionths = 8_000_000
    delta: Delta = "1e-5"
    dual_rate: Millionths = 1_000_000  # s of PF-LD
    dual_bound: Millionths = 2_000_000  # λ^max
    dual_noise: Millionths = 0  # noise multiplier of one dual step
    share_noise: Millionths = 0  # noise multiplier of the group shares, released once
    seed: Annotated[int, Field(ge=0, le=2**31)] = 0  # of the first θ; never of noise

    @model_validator(mode="after")
    def _sound(self) -> FewShotSettings:
        for name in ("inner_rate", "outer_rate", "inner_norm", "query_norm"):
            if not getattr(self, name):
                raise ValueError(f"{name} must not be 0")
        if self.model == "conv4" and len(self.input_shape) != 3:
            raise ValueError("conv4 takes images: input_shape is (channels, height, width)")
        if not 0 < float(self.delta) < 1:
            raise ValueError(f"delta lies strictly between 0 and 1, got {self.delta!r}")
        if self.private:
            self._check_private()
        if self.learner != "fomaml" and self.fair:
            raise ValueError("the constraint needs learner='fomaml': its gradients are per sample")
        return self

    def _check_private(self) -> None:
        """Refuse what would leave the regulator's samples without protection."""
        if self.learner == "maml":
            raise ValueError(
                "exact second order on private tasks: the meta-gradient would contain the support "
                "samples' Hessian, which no noise covers. Take learner='fomaml'; the company may "
                "use company_learner='maml' on its own tasks"
            )
        noises = ["inner_noise"] + ["query_noise"] * (self.learner != "reptile")
        noises += ["dual_noise", "share_noise"] * self.fair
        small = [name for name in noises if getattr(self, name) < _LEAST_NOISE]
        if small:
            raise ValueError(
                f"{self.method} is private: {', '.join(small)} must be at least {_LEAST_NOISE} "
                "millionths"
            )
        if not self.epsilon:
            raise ValueError("epsilon is 0: there is no budget to learn anything from")

    @property
    def private(self) -> bool:
        """Are the regulator's samples protected? If not, the run is a rehearsal only."""
        return self.method not in ("none", "fair")

    @property
    def individual(self) -> bool:
        """Is a sample charged by its own norm (IRDP), or by the worst case (DP-SGD)?"""
        return self.method in ("irdp", "pf_ld")

    @property
    def fair(self) -> bool:
        """Does the constraint of PF-LD take part?"""
        return self.method in ("fair", "l_d", "pf_ld")

    def real(self, name: str) -> float:
        """A field in millionths as a number."""
        return int(getattr(self, name)) / MILLION
