"""Privacy of whole records: the company's own steps are noised too, and everything is accounted.

    Trainer(model, PFLD(primal_norm=0.5), oracle, record_privacy=RecordPrivacy(epsilon=3.0))

What is guaranteed, to whom

| against | protected is | by |
|---|---|---|
| the company | a person's attribute, at the plan's ε | the oracle and its ledger, as always |
| whoever sees model and history | features, label, attribute: (ε, δ) of `RecordPrivacy` | below |
| the regulator | no record: it sees whom each query is about, so no sample hides them | – |

Adjacency: one person's record is blanked, so that their row is 0 in every sum. Public are: who
takes part (ids, hence n), the lists of classes and groups, the coding of the columns, the settings.

The model is a function of these releases, of public numbers, and of nothing else. z: noise per
sensitivity; q: everybody's chance to be in (Poisson sampling); σ: 1/μ of the oracle's query.

| release | by | what | sensitivity | z | q |
|---|---|---|---|---|---|
| counts | oracle | people by group | 1 | σ·√(moves/attributes) | 1 |
| totals | company | people with each label | 1 | z_t | 1 |
| totals | company | Σ h, hence the centre c̃ and the last group | C_d | z_t | 1 |
| dual | oracle | Σ (h − c̃) by group but the last | C_d | σ·√(moves/attributes) | 1 |
| primal | oracle | Σ_i (u_{A_i} − ū) clip(∇h_i) | C_p·range(u)/2 | 2σ/√queries | 1/chunks |
| loss | company | Σ_i clip(∇(ℓ_i + free_i)) | C | z | `loss_batch`/n |

moves is 1 for two groups and 2 for more, per attribute: the oracle's noise covers a *moved* person,
and one who is taken away moves once. ū is the middle of u's range; the company takes ū Σ ∇h, which
it knows exactly, off the answer, and ū h_i comes back in free_i, the part of the constraint that
needs no attribute. All of it composes by the accountants of Opacus, whose amplification is a fact
here: nothing that leaves says who was drawn. The loss step is Opacus' DP-SGD (per-person clipping,
Gaussian noise, expected batch size); only the sum is made in exact integers with a rounded
Gaussian, as in a blind group sum.

Off, because it would look at records for nothing: clipping bounds from quantiles, centred and
shaped rows, subspaces (their noise lies in the span of the chunk's own gradients), exact totals and
means, the loss in the history (NaN), ε spent by whoever was drawn most (the cap is told instead),
dropout. All noise is fixed before anything is asked.

Yours to see to: a model that starts untrained (or trained on other people), callbacks that decide
by the history and not by the records, and not releasing how long rounds took. A run that ends in an
error gives no model. Every `fit` costs its ε anew: the ledger counts attributes, nobody counts
records for you.

Nobody is in more than M constraint gradients (the attribute budget is solved for M); M is such that
(1 + e^ε)·P[Bin(T, q) > M] ≤ δ/1000, and that much is taken off δ (releases.most_often).

Randomness is expanded (SHAKE-256) from 32 bytes of the operating system, which a checkpoint holds,
so that a resumed run repeats its questions. Whoever has the checkpoint can take the noise off: it
is the company's, like the records.

Guarantees (tests/company/gradient/record)
  the_model_is_a_function_of_the_releases  forced to the same releases, two data sets that differ in
                                           a record give the same model, bit for bit
  one_record_moves_a_release_by_its_bound  no more than the table says
  nothing_is_released_unplanned            one release more than was accounted is refused
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.common.base.errors import BudgetExceeded, ConfigError
from isonomy.common.privacy.accounting import UNITS_PER_MU2, units_for
from isonomy.company.gradient.record.releases import (
    SPARE_DELTA,
    Expanded,
    Floats,
    FreeTerms,
    Ints,
    Question,
    blocks_of_people,
    centred_sum,
    most_often,
    person_gradients,
    poisson,
    private_total,
    split,
)
from isonomy.company.gradient.run.paper_epsilon import (
    ORDERS,
    WHOLE_ORDERS,
    Accountant,
    PaperEpsilon,
    subsampled_epsilon,
)
from isonomy.company.gradient.run.schedule import Schedule
from isonomy.company.gradient.run.strategy import Chunk, Loss, Run, State, trainable

_QUICK_ORDERS = (1.2, 1.4, 1.6, 1.8, *WHOLE_ORDERS)


@dataclass(frozen=True)
class RecordPrivacy:
    """What whole records are promised.

    | parameter | meaning |
    |---|---|
    | epsilon, delta | for all features, label and attribute, to whoever sees the model |
    | clip | C: bound on a person's gradient of the loss; a constant, chosen without the data |
    | totals | part of the budget (as μ²) for the company's own totals; the rest goes to the loss |
    | accountant | "rdp" or "prv" of Opacus |
    """

    epsilon: float
    delta: float = 1e-5
    clip: float = 1.0
    totals: float = 0.1
    accountant: Accountant = "rdp"

    def __post_init__(self) -> None:
        for name in ("epsilon", "clip"):
            value = getattr(self, name)
            if isinstance(value, bool) or not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} of record privacy must be a positive number: {value!r}")
        if not 0 < self.delta < 1:
            raise ConfigError(f"delta must lie strictly between 0 and 1, got {self.delta!r}")
        if not 0 < self.totals < 1:
            raise ConfigError(f"totals is a part of the budget, between 0 and 1; {self.totals!r}")
        if self.accountant not in ("rdp", "prv"):
            raise ConfigError(f'accountant is "rdp" or "prv", got {self.accountant!r}')


@dataclass(frozen=True)
class Part:
    """`times` releases with noise `multiplier` per sensitivity, about people drawn at `rate`."""

    multiplier: float
    times: int
    rate: float = 1.0


@runtime_checkable
class RecordStrategy(Protocol):
    """What a strategy adds to run under record privacy."""

    def record_parts(self, run: Run) -> tuple[dict[str, Part], int]:
        """What the oracle will release, and how many totals the company must; nothing is asked.

        Raises ConfigError for settings that look at records (bounds from quantiles).
        """

    def free_terms(self, run: Run) -> FreeTerms | None:
        """The per-row part of the constraint that needs no attribute, in units of the mean loss."""


def oracle_parts(
    run: Run, schedule: Schedule, sizes: Sequence[int], *, queries: int, labelled: bool
) -> tuple[dict[str, Part], int]:
    """What the oracle's releases cost a record (the table above), and how many totals.

    `sizes`: groups of each attribute; `queries`: in one constraint gradient about one person;
    `labelled`: is anybody counted by label? Those counts are one total more.
    """
    if run.record is None:
        raise ConfigError("this run does not protect records")
    moves = sum(1 if size == 2 else 2 for size in sizes)
    once = math.sqrt(moves / len(sizes))  # a record is taken away, not moved
    counts, dual, primal = (
        level.sigma(run.oracle) for level in (schedule.counts, schedule.dual, schedule.primal)
    )
    parts = {
        "counts": Part(counts * once, 1),
        "dual": Part(dual * once, run.rounds + 1),
        "primal": Part(2 * primal / math.sqrt(queries), run.record.steps, run.record.rate),
    }
    return parts, run.rounds + 1 + labelled


def constant_bound(bound: object, name: str, option: str) -> float:
    """A clipping bound as a constant; ConfigError for one that would come from the gradients."""
    if isinstance(bound, float | int):
        return float(bound)
    raise ConfigError(
        f"under record privacy {name} must be a number that was chosen without these "
        f"people's records: give {option}. A quantile of their gradient norms, or the bound that "
        "fits them best, would tell about records without paying for it."
    )


@dataclass
class RecordRun:
    """One run's account of what its releases cost records, and the company's own releases."""

    settings: RecordPrivacy
    people: Ints  # (n,) distinct cohort positions
    person: Ints  # (rows,) number of each row's person
    rate: float  # q of constraint gradients
    steps: int  # how many of them are planned
    loss_rate: float
    loss_steps: int
    seed: bytes = field(default_factory=lambda: os.urandom(32), repr=False)
    parts: dict[str, Part] = field(default_factory=dict)
    used: Counter[str] = field(default_factory=Counter)
    times: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    members: Floats = field(default_factory=lambda: np.zeros(0))  # people per event, as released

    @classmethod
    def of(
        cls,
        settings: RecordPrivacy,
        run: Run,
        *,
        loss_steps: int,
        loss_batch: int | None,
    ) -> RecordRun:
        """Rates follow from public numbers: chunks and the size of loss batches."""
        people, person = np.unique(run.people, return_inverse=True)
        rate = 1.0 / len(run.chunks)
        loss_rate = rate if loss_batch is None else min(1.0, loss_batch / len(people))
        steps = run.rounds * len(run.chunks)
        times = np.zeros(len(people), np.int64)
        return cls(settings, people, person, rate, steps, loss_rate, loss_steps, times=times)

    # --- What it costs -------------------------------------------------------------------------

    @property
    def most(self) -> int:
        """M: in how many constraint gradients a person can be."""
        return most_often(self.steps, self.rate, self.settings.epsilon, self.settings.delta)

    def plan(self, fairness: Mapping[str, Part], totals: int) -> None:
        """Fix all noise: the oracle's is given, the totals get their part, the loss the rest."""
        budget = units_for(self.settings.epsilon, self.settings.delta) / UNITS_PER_MU2
        z_totals = math.sqrt(totals / (self.settings.totals * budget)) if totals else math.inf
        self.parts = {**fairness, "totals": Part(z_totals, totals)}
        self.parts["loss"] = Part(self._loss_multiplier(), self.loss_steps, self.loss_rate)

    def epsilon(self, times: Mapping[str, int] | None = None) -> PaperEpsilon:
        """ε for records of the planned run, or of so many releases of each kind: a guarantee."""
        epsilon, settings = self._epsilon(self.parts, times, ORDERS), self.settings
        return PaperEpsilon(epsilon, settings.delta, settings.accountant, is_guarantee=True)

    def _epsilon(
        self,
        parts: Mapping[str, Part],
        times: Mapping[str, int] | None,
        orders: tuple[float, ...],
    ) -> float:
        steps: Counter[tuple[float, float]] = Counter()
        for name, part in parts.items():
            count = part.times if times is None else times.get(name, 0)
            if count:
                steps[(part.multiplier, part.rate)] += count
        delta = self.settings.delta * (1 - SPARE_DELTA)
        return subsampled_epsilon(steps, delta, self.settings.accountant, orders)

    def _loss_multiplier(self) -> float:
        """The least z (to 1 %) that meets ε, or a BudgetExceeded if the rest is over already."""

        def too_much(multiplier: float) -> bool:  # fewer orders: quick, and never too hopeful
            loss = Part(multiplier, self.loss_steps, self.loss_rate)
            return self._epsilon({**self.parts, "loss": loss}, None, _QUICK_ORDERS) > epsilon

        epsilon, low, high = self.settings.epsilon, 1e-2, 1e5
        if too_much(high):
            raise BudgetExceeded(
                f"the answers of this run alone would cost records more than ε = {epsilon:g}. "
                "Nothing was asked; give RecordPrivacy a larger ε, or the strategy a smaller one."
            )
        while high / low > 1.01:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if too_much(middle) else (low, middle)
        return high

    def released(self, name: str, values: Floats) -> Floats:
        """Every release passes here before anything is made of it; an unplanned one does not."""
        if self.used[name] >= self.parts[name].times:
            raise BudgetExceeded(f"the run planned no further release of its {name}")
        self.used[name] += 1
        return values

    def released_integers(self, name: str, values: list[list[int]]) -> list[list[int]]:
        """The same for the integers of an oracle's answer."""
        return [[int(v) for v in row] for row in self.released(name, np.array(values, np.float64))]

    # --- The company's own releases ------------------------------------------------------------

    def total(self, rows: Floats, norm: float) -> Floats:
        """(columns,) noised Σ over people of rows (n, columns), each clipped to `norm`."""
        noise = Expanded(self.seed, "totals", self.used["totals"])
        z = self.parts["totals"].multiplier
        return self.released("totals", private_total([rows], rows.shape[1], norm, z, noise))

    def count_members(self, mass: Floats, everybody: Sequence[bool], norm: float) -> Floats:
        """People per event: n where that is public, else counted with noise; at least 1.

        `mass` (n, events) says who is in which event; a person's row is at most `norm` long.
        """
        members = np.full(mass.shape[1], float(len(self.people)))
        labelled = ~np.asarray(everybody)
        if labelled.any():
            members[labelled] = self.total(mass[:, labelled], norm)
        self.members = np.maximum(members, 1.0)
        return self.members

    def loss_gradient(self, run: Run, loss: Loss, terms: FreeTerms | None) -> list[Tensor]:
        """1/(q n) (Σ_i clip(∇(ℓ_i + free_i)) + noise) over a fresh Poisson sample: DP-SGD."""
        number, part = self.used["loss"], self.parts["loss"]
        sample = poisson(len(self.people), part.rate, Expanded(self.seed, "draw loss", number))
        rows = self._rows_of(run, sample)
        columns = sum(p.numel() for p in trainable(run.model))

        def gradients() -> Iterator[Floats]:
            for block in blocks_of_people(rows, self.person[rows.numpy()], columns):
                yield person_gradients(run, block, loss, terms).rows().cpu().numpy()

        noise = Expanded(self.seed, "loss", number)
        total = private_total(gradients(), columns, self.settings.clip, part.multiplier, noise)
        total = self.released("loss", total) / (part.rate * len(self.people))
        return split(run.model, total)

    def draw_chunk(self, run: Run, index: int) -> Chunk:
        """The people of one constraint gradient: everybody, or a Poisson sample of those who have
        not been in M of them."""
        coins = Expanded(self.seed, "draw chunk", self.used["primal"])
        # The attribute budget is solved for M gradients: who was in M of them is left out.
        sample = poisson(len(self.people), self.rate, coins) & (self.times < self.most)
        self.times += sample
        rows = self._rows_of(run, sample)
        return Chunk(index, rows, run.people[rows.numpy()])

    def constraint_gradient(
        self, run: Run, questions: Iterable[Question], *, norm: float
    ) -> list[Tensor]:
        """1/q Σ_i (u − ū)·clip(v_i) + noise over all questions, one tensor per parameter.

        A sample may hold nobody. It still gives noise, from the run's seed: a missing release would
        tell who was not drawn.
        """
        flat = np.zeros(sum(p.numel() for p in trainable(run.model)))
        cap = run.oracle.budget.cap_units / UNITS_PER_MU2
        for number, question in enumerate(questions):
            flat += centred_sum(
                run.oracle,
                question.rows,
                question.weights,
                norm=norm,
                sigma=1 / math.sqrt(cap * question.share),
                nobody=Expanded(self.seed, f"nobody {number}", self.used["primal"]),
                attribute=question.attribute,
                people=question.people,
                share=question.share,
                **question.label,
            )
        return split(run.model, self.released("primal", flat) / self.rate)

    def _rows_of(self, run: Run, sample: NDArray[np.bool_]) -> Tensor:
        rows = np.flatnonzero(sample[self.person])
        return torch.from_numpy(rows[np.argsort(run.people[rows], kind="stable")])

    # --- A break in between --------------------------------------------------------------------

    def state_dict(self) -> State:
        return {
            "seed": self.seed.hex(),
            "times": torch.from_numpy(self.times),
            "members": self.members.tolist(),
            "parts": {name: asdict(part) for name, part in self.parts.items()},
            "used": dict(self.used),
        }

    def load_state_dict(self, state: State) -> None:
        self.seed = bytes.fromhex(state["seed"])
        self.times = state["times"].long().numpy().copy()
        self.members = np.array(state["members"], np.float64)
        self.parts = {name: Part(**part) for name, part in state["parts"].items()}
        self.used = Counter(state["used"])
