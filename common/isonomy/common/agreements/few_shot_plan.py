"""The few-shot plan: what both owners agree to before they meta-train one model together.

An `Agreement` about whose tasks meet, in how many rounds, and what the regulator's samples may
lose. The model is bound by its fingerprint, so that two sides with different code find out before
any budget is set aside. Needs no torch.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from isonomy.common.agreements.agreement import MAX_ROUND_PARTS, Agreement
from isonomy.common.agreements.few_shot_settings import MILLION, FewShotSettings
from isonomy.common.base.canonical import MAX_INTEGER
from isonomy.common.base.errors import ModelsDiffer
from isonomy.common.crypto.params import parameter_set
from isonomy.common.keys.party import Hex32
from isonomy.common.privacy.accounting import epsilon_of, gaussian_units, sigma_for, units_for
from isonomy.common.privacy.noise import MAX_SIGMA, MIN_SIGMA
from isonomy.common.privacy.task_counts import SCALE, TaskCounts

REPLACED = 4  # μ² of a sample that is exchanged, at most, over that of one that is left out
MEASURE = "few_shot_measure"  # the kind of a measurement's record in the ledger
KIND: Literal["few-shot"] = "few-shot"
PoolName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]


class FewShotPlan(Agreement):
    """Who meta-trains with whom, on which tasks, and what it may cost."""

    word: ClassVar[str] = "few-shot plan"

    schema_version: Literal[1] = 1
    kind: Literal["few-shot"] = KIND
    pool: PoolName  # the regulator's tasks, by the name under which it keeps them
    samples: Annotated[int, Field(ge=1, le=50_000_000)]  # that the regulator holds there
    settings: FewShotSettings
    fingerprint: Hex32  # of the model, as both sides must build it
    size: Annotated[int, Field(ge=1)]  # d, its parameters

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if len(self.companies) != 1:
            raise ValueError("few-shot rounds are between one company and one regulator")
        if not self.settings.private:
            raise ValueError(
                f"method {self.settings.method!r} does not protect the regulator's samples, and "
                "the holder of the key can subtract its own share: rehearse it with both sides "
                "known, or take dp_sgd, irdp or pf_ld"
            )
        if self.round_parts > MAX_ROUND_PARTS:
            most = MAX_ROUND_PARTS * parameter_set(self.parameters).poly_degree
            raise ValueError(f"the model has {self.size:,} parameters; at most {most:,} travel")
        self._check_measuring()
        return self

    def _check_measuring(self) -> None:
        tasks, held_out = self.settings.measured_tasks, self.measured_samples
        if not tasks:
            return
        if held_out >= self.samples:
            raise ValueError(
                f"{tasks} measured tasks take {held_out:,} of {self.samples:,} samples and leave "
                "none to the rounds; lower measured_tasks"
            )
        most = self.counts.most(tasks) * SCALE + 12 * self.measure_noise
        if not MIN_SIGMA <= self.measure_noise <= MAX_SIGMA or most > MAX_INTEGER:
            raise ValueError(
                f"the counts of {tasks} measured tasks, or their noise, do not fit into a record; "
                "take fewer tasks or queries, or another epsilon"
            )

    @property
    def round_parts(self) -> int:
        return -(-self.size // parameter_set(self.parameters).poly_degree)

    @cached_property
    def cap_units(self) -> int:
        """The budget in units of μ²: the most whose ε at δ is at most the approved one."""
        return units_for(self.settings.epsilon / MILLION, self.delta_value)

    @property
    def held_units(self) -> int:
        """What the ledger sets aside: the cap for a sample that is exchanged for another one.

        `cap_units` protect a sample that is left out. Exchanging it moves every sum by up to twice
        the norm, so it costs four times as much of μ². The ledger's total is about people whose
        attribute is replaced by another, and adds these units to those of queries.
        """
        return REPLACED * self.cap_units

    @cached_property
    def round_units(self) -> int:
        """The most that a round can cost a sample: by the settings, whatever the samples are.

        A sample is in one task of a round, in its support set (`inner_steps` noised sums) or in its
        query set (one sum, and with a constraint a dual step). The group shares are released in the
        first round only, but they are counted in every round: the bound must not depend on t.
        """
        run = self.settings
        support = run.inner_steps * _units(run.inner_noise)
        query = _units(run.query_noise) + (_units(run.dual_noise) if run.fair else 0)
        return max(support, query) + (_units(run.share_noise) if run.fair else 0)

    @property
    def counts(self) -> TaskCounts:
        """What is counted of a measured task."""
        return TaskCounts(self.settings.ways, self.settings.queries)

    @property
    def measured_samples(self) -> int:
        """How many samples no round uses, because the model is measured on them."""
        run = self.settings
        return run.measured_tasks * run.ways * (run.shots + run.queries)

    @cached_property
    def measure_noise(self) -> int:
        """The noise's deviation in each number of the measurement, 1/SCALE of a count.

        A measured sample is in one task and in no round, so the whole cap is there to pay for it.
        """
        return sigma_for(self.cap_units, self.counts.sensitivity_squared * SCALE**2)

    @property
    def measure_units(self) -> int:
        """What measuring costs a measured sample, left out and exchanged alike."""
        return gaussian_units(self.counts.sensitivity_squared * SCALE**2, self.measure_noise)

    def check_model(self, fingerprint: bytes, size: int) -> None:
        """Raise ModelsDiffer unless this is the model that the plan binds."""
        if (fingerprint.hex(), size) != (self.fingerprint, self.size):
            raise ModelsDiffer(
                f"the plan names model {self.fingerprint[:16]}… with {self.size} parameters; this "
                f"side builds {fingerprint.hex()[:16]}… with {size}. Install matching versions on "
                "both sides"
            )

    @property
    def _exchanged(self) -> float:
        return epsilon_of(self.held_units, self.delta_value)

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
        run, company, regulator = self.settings, self.companies[0].name, self.regulator.name
        return "\n".join(
            [
                f"Few-shot plan {self.name!r}",
                f"  lets {company} and {regulator} meta-train one model ({run.model}, "
                f"{self.size:,} parameters) in {run.rounds:,} rounds, {run.ways} classes with "
                f"{run.shots} examples each, by {run.learner} with {run.method};",
                f"  uses {regulator}'s tasks {self.pool!r}: {self.samples:,} samples, of which "
                f"each loses at most ε = {run.epsilon / MILLION:g} at δ = {run.delta}, all rounds "
                "together, whether all of them are run or not;",
                "  this bound is about whether a sample is there at all. For which attribute it "
                f"has, the bound is ε = {self._exchanged:.3g}, which is what counts against "
                f"{regulator}'s total;",
                self._measuring(),
                f"  {company} receives the sum of both sides' steps and can subtract its own: what "
                f"protects {regulator}'s samples from it is the noise, not the encryption;",
                f"  {regulator} receives the model in every round, and so learns how it moves;",
                f"  the server adds ciphertexts and learns neither; {self.round_bytes:,} bytes per "
                "round.",
                f"  Model {self.fingerprint}",
                *self.describe_words(),
                f"  Hash {self.hash.hex()}",
            ]
        )

    def _measuring(self) -> str:
        """What the owners agree to about measuring the result."""
        tasks = self.settings.measured_tasks
        if not tasks:
            return "  does not measure how accurate and how fair the model is (measured_tasks = 0);"
        return (
            f"  measures once, after the last round, how accurate and how fair the model is by "
            f"group: on {tasks:,} tasks of {self.measured_samples:,} samples that no round uses, "
            "with noise. Each of these loses as much as is promised to the others, at most;"
        )


def _units(noise: int) -> int:
    """Of one noised sum: 1/z² of μ², rounded up; 0 where there is none."""
    return gaussian_units(MILLION**2, noise) if noise else 0


__all__ = ["MEASURE", "MILLION", "REPLACED", "FewShotPlan"]
