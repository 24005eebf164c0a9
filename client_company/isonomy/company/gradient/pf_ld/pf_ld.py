"""PF-LD: the private and fair Lagrangian dual (Tran, Fioretto & Van Hentenryck 2021).

    min_θ max_λ  J(θ) + Σ_e Σ_a λ_ae·(μ_e(D_P) − μ_e(D_G_a))                 Eq. (4), λ signed

    counts   once      n_ae                                     open, noised
    primal   Eq. (8)   θ ← θ − α(∇J + Σ_e Σ̃_i u_{A_i,e}·clip_{C_p}(∇h_ie − ḡ_e))     weighted, blind
                       u_ae = Σ_b λ_be/n_e − λ_ae/n_ae
    dual     Eq. (10)  λ_ae ← Π_[−λmax, λmax](λ_ae + s·ṽ_ae),  ṽ_ae = −S̃_ae/n_ae    open
                       S_ae = Σ_{A_i = a} (h_ie − h̄_e)

(Σ̃, S̃: with noise.) The dual step itself is in isonomy.common.privacy.dual, in integers, because the
regulator computes it too. Where we differ from the paper, each for privacy (docs/design.md §2):

| paper | here |
|---|---|
| absolute value: the sign is private | λ carries the sign; `signed=False`: the released sign |
| Δ_p divides by the least group size, private | counts released once with noise, used everywhere |
| a batch without a group has no mean | sums, not means: no batch is skipped or special |
| Δ_p uses λ^max | range(u) of the current λ: the noise follows the weights by itself |
| amplification by sampling | none: the company knows whom it asked about |
| only group terms are clipped | population and group terms alike, centred (primal.py) |
| σ_p and σ_d are given | both solved from one budget, exactly; or given (`*_multiplier`) |

The first dual step is taken before the first round, at the warmed-up model: with λ = 0 a primal
query would ask for nothing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.people.cohort import without_value
from isonomy.common.privacy.declarations import ConstraintGradient, Content, Declaration, DualStep
from isonomy.common.privacy.dual import DualRule, Multipliers, declared_counts
from isonomy.common.privacy.queries import cost_of
from isonomy.common.sums.oracle import Label, Release
from isonomy.company.gradient.pf_ld import _record as record_pf_ld
from isonomy.company.gradient.pf_ld._follow import Follower
from isonomy.company.gradient.pf_ld._population import Population, record_of, released_integers
from isonomy.company.gradient.record.privacy import Part, constant_bound, oracle_parts
from isonomy.company.gradient.record.releases import FreeTerms, with_last
from isonomy.company.gradient.run.bounds import subspace_tradeoff
from isonomy.company.gradient.run.notions import Notion, notion_of
from isonomy.company.gradient.run.schedule import Noise, Schedule, Weights, solve
from isonomy.company.gradient.run.strategy import Chunk, RoundRecord, Run, State
from isonomy.company.gradient.sums.deferred import Deferred
from isonomy.company.gradient.sums.filled import FILL, check_fill
from isonomy.company.gradient.sums.primal import Answer, CentredGradients, private_sum

_NAMED = 8  # groups that an error lists
_CONSTANT = ("the clipping bound C_p", "PFLD(primal_norm=…)")
SMALL = 3.0  # a cell whose released count is below this many deviations cannot be measured


class SmallGroupWarning(UserWarning):
    """A group is too small to measure at this budget and takes no part in the constraints."""


@dataclass
class PFLD:
    """PF-LD as a strategy for `Trainer`.

    | parameter | paper | meaning |
    |---|---|---|
    | notion | h, I | a name (notions.NAMES) or your own `Notion` |
    | step, bound | s, λ^max | dual step size, largest multiplier |
    | damping | – | ρ of the augmented Lagrangian: λ + ρ·ṽ is applied |
    | follow | – | ṽ follows the model from chunk to chunk within a round (_follow.py) |
    | signed | – | λ of either sign (default), or the paper's λ ≥ 0 |
    | primal_norm | C_p | None: `clip_quantile` of the company's norms; "bound": least in (12) |
    | dual_norm | C_d | None: the largest value there is, which clips nothing |
    | primal_multiplier, dual_multiplier | σ_p, σ_d | noise per sensitivity; None: solved for |
    | split, epsilon | – | how the budget is shared; how much of it, None: all but a tenth |
    | measure | – | "hard": dual steps look at decisions; "soft": at h |
    | clip_quantile | – | C_p as a quantile of the gradient norms |
    | fill | – | models larger than a chunk: noisy weights (filled); None: the span (subspace) |
    | noise_shape | – | κ of primal.py: noise that follows the gradients; None: round noise |
    | small_groups | – | "error", or "drop": cells too small to measure take no part |
    """

    notion: str | Notion = "demographic_parity"
    step: float = 1.0
    bound: float = 5.0
    damping: float = 1.0
    follow: bool = True
    signed: bool = True
    primal_norm: float | Literal["bound"] | None = None
    dual_norm: float | None = None
    primal_multiplier: float | None = None
    dual_multiplier: float | None = None
    split: Weights = field(default_factory=Weights)
    epsilon: float | None = None
    measure: Literal["hard", "soft"] = "hard"
    clip_quantile: float = 0.98
    fill: float | None = FILL
    noise_shape: float | None = 0.1
    small_groups: Literal["error", "drop"] = "error"
    name: str = field(default="pf_ld", init=False)

    def __post_init__(self) -> None:
        self._notion = notion_of(self.notion)
        if self.measure not in ("hard", "soft") or self.small_groups not in ("error", "drop"):
            raise ConfigError('measure is "hard" or "soft"; small_groups "error" or "drop"')
        if not 0 < self.clip_quantile <= 1:
            raise ConfigError(f"clip_quantile lies in (0, 1], got {self.clip_quantile}")
        if self.noise_shape is not None and not 0 < self.noise_shape < float("inf"):
            raise ConfigError(f"noise_shape is a positive number or None, got {self.noise_shape}")
        if self.fill is not None:
            check_fill(self.fill)
        if not 0 <= self.damping < float("inf"):
            raise ConfigError(f"damping is a number of at least 0, got {self.damping}")
        norms = (None if self.primal_norm == "bound" else self.primal_norm, self.dual_norm)
        for norm in norms:
            if norm is not None and not (isinstance(norm, int | float) and 0 < norm < float("inf")):
                raise ConfigError(f"a clipping bound is a positive number or None, got {norm!r}")
        if not isinstance(self.split, Weights):
            raise ConfigError(f"split takes Weights(counts, dual, primal), got {self.split!r}")
        for multiplier in (self.primal_multiplier, self.dual_multiplier):
            if multiplier is not None:
                Noise(multiplier=multiplier)  # refuses 0
        self._population: Population | None = None
        self._lam: Multipliers | None = None
        self._schedule: Schedule | None = None
        self._follower = Follower(self.damping, self.bound)

    # --- The three parts of a run --------------------------------------------------------------

    def prepare(self, run: Run) -> None:
        people = self._bind(run)
        people.rehearse(self.noise_shape)
        self._schedule = self._solved(run, people)
        rule = self._rule(run, people)
        bound, norm = run.oracle.params.row_bound, math.sqrt(people.width)
        members = people.mass.sum(dim=0).numpy()
        if run.record is not None:
            members = record_pf_ld.members(run.record, people)
        self._refuse_many(people, members, rule.least / bound)
        totals = [round(float(total) * bound) for total in members]
        counts = run.oracle.open_sum(
            people.persons.fold(people.mass).numpy(),
            norm=norm,
            attribute=list(run.attributes),
            people=people.persons.people,
            **self._schedule.counts.arguments(norm),
            **self._label("pf_ld: people per group", declared_counts(rule, totals)),
        )
        released = released_integers(counts, norm, bound, people.sizes)
        if run.record is not None:
            released = run.record.released_integers("counts", released)
            values = with_last(np.array(released) * (norm / bound), people.sizes, members)
            counts = replace(counts, values=values)
        self._refuse_small(people, counts, rule.least / bound)
        self._lam = Multipliers.start(rule, released, totals, bound, norm)
        self._dual_step(run, people)

    def constraint_gradient(self, run: Run, chunk: Chunk) -> Sequence[Tensor] | None:
        people, lam, schedule = self._ready(run)
        if run.record is not None:
            share = schedule.primal.arguments(1.0)["share"]
            questions = record_pf_ld.questions(run, people, lam, chunk, share, self._gradient_label)
            norm = constant_bound(self.primal_norm, *_CONSTANT)
            return run.record.constraint_gradient(run, questions, norm=norm)
        total: Sequence[Tensor] | None = None
        scale = len(people.persons) / chunk.persons
        follows = self.follow and self.damping > 0 and len(run.chunks) > 1
        looks = follows and self._follower.arrive(run)
        for number in range(len(people.events)):
            inside = people.inside(chunk.rows, number)
            if not len(inside):
                continue  # nobody here has this label, which is public; groups are never looked at
            grads = people.gradients(number, inside, self.noise_shape)
            for index, attribute in enumerate(run.attributes):
                u = lam.weights(index, number)
                answer = private_sum(
                    run.oracle,
                    grads,
                    u,
                    norm=self._primal_norm(run, grads, u),
                    part=self.clip_quantile,
                    attribute=attribute,
                    noise=schedule.primal.arguments(max(u) - min(u)),
                    fill=self.fill,
                    label=self._gradient_label(index, number),
                )
                query = (index, number)
                if looks:
                    whole = [scale * part for part in answer.tensors()]
                    self._follower.look(query, lam.applied(*query), whole)
                factor = self._follower.factor(query) if follows else 1.0
                total = _add(total, answer, factor * scale, inside)
        return total

    def end_round(self, run: Run) -> RoundRecord:
        people, _, _ = self._ready(run)
        return self._dual_step(run, people)

    # --- Under record privacy (_record) --------------------------------------------------------

    def record_parts(self, run: Run) -> tuple[dict[str, Part], int]:
        """What the planned queries cost records; nothing is asked."""
        constant_bound(self.primal_norm, *_CONSTANT)
        if self.primal_multiplier is not None or self.dual_multiplier is not None:
            raise ConfigError(
                "under record privacy the noise follows from the budget: leave primal_multiplier "
                "and dual_multiplier out. A run that stops when its budget is spent would tell "
                "whose records were used."
            )
        self._lam, people = None, self._bind(run)
        return oracle_parts(
            run,
            self._solved(run, people),
            people.sizes,
            queries=people.overlap * len(people.sizes),
            labelled=any(event.label is not None for event in people.events),
        )

    def free_terms(self, run: Run) -> FreeTerms | None:
        """ū·h, by row; nothing before the first dual step."""
        return None if self._lam is None else record_pf_ld.free_terms(run, *self._ready(run)[:2])

    # --- Steps ---------------------------------------------------------------------------------

    def _solved(self, run: Run, people: Population) -> Schedule:
        queries = people.overlap * len(run.attributes)
        return solve(
            run.oracle,
            rounds=run.rounds,
            primal_per_round=queries,
            primal_queries=None if run.record is None else run.record.most * queries,
            weights=self.split,
            epsilon=self.epsilon,
            dual_multiplier=self.dual_multiplier,
            primal_multiplier=self.primal_multiplier,
        )

    def _dual_step(self, run: Run, people: Population) -> RoundRecord:
        """Eq. (10): one open release of all events' centred values, then integers only."""
        _, lam, schedule = self._ready(run)
        hard, record = self.measure == "hard", run.record
        if record is None:
            rows = people.measured(hard=hard).numpy()  # (persons, events)
            norm = self.dual_norm or max(float(np.linalg.norm(rows, axis=1).max()), 1e-6)
        else:
            norm = self.dual_norm or record_pf_ld.dual_norm(people)
            rows = record_pf_ld.dual_rows(record, people, hard=hard, norm=norm).numpy()
        moves = sum(1 if size == 2 else 2 for size in people.sizes)
        release = run.oracle.open_sum(
            rows,
            norm=norm,
            attribute=list(run.attributes),
            people=people.persons.people,
            **schedule.dual.arguments(norm * float(np.sqrt(moves))),
            **self._label("pf_ld: dual step", DualStep()),
        )
        released = released_integers(release, norm, lam.row_bound, people.sizes)
        if record is not None:
            released = record.released_integers("dual", released)
        self._lam = lam.advance(released, norm)
        if release.receipt is not None:
            values = tuple(value for row in self._lam.values() for value in row)
            run.oracle.confirm_multipliers(release.receipt.query_id, values)
        return record_of(self._lam, release)

    def _primal_norm(self, run: Run, grads: CentredGradients, u: tuple[float, ...]) -> float | None:
        """C_p: given, or least in the bound of Theorem 4; None: a quantile (private_sum)."""
        if self.primal_norm != "bound" or max(u) == min(u):
            return None if self.primal_norm in (None, "bound") else float(self.primal_norm)
        _, _, schedule = self._ready(run)
        if (
            self.fill is not None
            and not run.oracle.capabilities.filtered
            and grads.size > len(grads)
        ):
            lengths = grads.inner.lengths  # noise is about that of everybody's weight: s²·Σ|g_i|²
            square = max(float(lengths.max()), 1e-12) ** 2
            columns = max(1, round(float(lengths @ lengths) / square))
        else:
            lengths, columns = grads.lengths, min(grads.size, len(grads))
        sigma = schedule.primal.sigma(run.oracle)
        return subspace_tradeoff(lengths, u, sigma=sigma, rank=columns).best

    def _rule(self, run: Run, people: Population) -> DualRule:
        """The dual rule, fixed before the counts are asked for: their noise is known already."""
        oracle = run.oracle
        cost = cost_of("groups", people.sizes, oracle.params)
        share = (self._schedule.counts.share if self._schedule else None) or 0.0
        noise = cost.sigma_for(int(oracle.budget.cap_units * share))
        deviation = noise * math.sqrt(max(people.sizes) - 1)  # of a last group, in units of C/Q
        deviation *= math.sqrt(people.width)
        return DualRule.of(
            people.sizes,
            len(people.events),
            step=self.step,
            bound=self.bound,
            signed=self.signed,
            damping=self.damping,
            least=max(math.ceil(SMALL * deviation), oracle.params.row_bound),
        )

    def _refuse_many(self, people: Population, members: NDArray[np.float64], least: float) -> None:
        """More groups than can all be measured: public numbers tell, so nothing is spent on it."""
        if self.small_groups == "error" and min(members) < least * max(people.sizes):
            raise DataError(
                f"{max(people.sizes)} groups among {min(members):.0f} people: at this budget a "
                f"group below {least:.0f} people cannot be measured, and they cannot all be "
                'larger. Nothing was spent. Merge groups, or take small_groups="drop".'
            )

    def _refuse_small(self, people: Population, counts: Release, least: float) -> None:
        """Cells whose released count the noise drowns are refused, or dropped with a warning.

        A group "not stated" is always dropped: it is declared whether or not anybody is in it.
        If all that is left is one group by itself, there is nothing to make equal: an error.
        """
        large = counts.values >= least  # (groups, events)
        if large.all():
            return
        small = [counts.groups[g] for g in np.flatnonzero(~large.all(axis=1))]
        more = f" and {len(small) - _NAMED} more" if len(small) > _NAMED else ""
        text = (
            "the released number of people is within the noise for "
            f"{', '.join(small[:_NAMED])}{more}: empty, or too small to be measured at this budget"
        )
        if self.small_groups == "error" and not all(map(without_value, small)):
            raise DataError(f'{text}. Merge groups, or take small_groups="drop".')
        ends = np.cumsum(people.sizes)[:-1]
        if max(int(groups.sum(axis=0).max()) for groups in np.split(large, ends)) < 2:
            raise DataError(f"{text}. Fewer than two groups are left to compare; merge groups.")
        warnings.warn(f"{text}; it takes no part in the constraints", SmallGroupWarning, 2)

    # --- Bookkeeping ---------------------------------------------------------------------------

    def describe(self, run: Run) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of groups and events, for tables and plots."""
        return self._bind(run).labels()

    def state_dict(self) -> State:
        if self._lam is None or self._schedule is None:
            return {}
        return {"multipliers": asdict(self._lam), "schedule": asdict(self._schedule)}

    def load_state_dict(self, state: State) -> None:
        if not state:
            raise DataError("the checkpoint holds no state of pf_ld")
        saved = {name: _as_tuples(value) for name, value in state["multipliers"].items()}
        rule = {name: _as_tuples(value) for name, value in saved.pop("rule").items()}
        self._lam = Multipliers(rule=DualRule(**rule), **saved)
        levels = state["schedule"].items()
        self._schedule = Schedule(**{name: Noise(**noise) for name, noise in levels})

    def _label(self, purpose: str, content: Content) -> Label:
        """What a query is, for people and for the regulator, who recomputes λ."""
        notion = self.notion if isinstance(self.notion, str) else "custom"
        return {"purpose": purpose, "declaration": Declaration(content, self.name, notion)}

    def _gradient_label(self, attribute: int, event: int) -> Label:
        return self._label("pf_ld: gradient", ConstraintGradient(attribute, event))

    def _ready(self, run: Run) -> tuple[Population, Multipliers, Schedule]:
        if self._lam is None or self._schedule is None:
            raise ConfigError("prepare(run) comes first")
        return self._bind(run), self._lam, self._schedule

    def _bind(self, run: Run) -> Population:
        if self._population is None or self._population.run is not run:
            self._population = Population.of(run, self._notion)
        return self._population


def _as_tuples(value: Any) -> Any:
    """Lists as JSON gives them, as the tuples that they were."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _add(
    total: Sequence[Tensor] | None, answer: Answer, scale: float, rows: Tensor
) -> Sequence[Tensor]:
    """total + scale·answer; as weights while all answers are about one chunk's gradients."""
    if answer.weights is not None and not answer.double:
        more = Deferred(answer.grads, scale * answer.weights, rows)
        if total is None:
            return more
        if isinstance(total, Deferred) and (both := total.plus(more)) is not None:
            return both
    tensors = [scale * part for part in answer.tensors()]
    return tensors if total is None else [a + b for a, b in zip(total, tensors, strict=True)]
