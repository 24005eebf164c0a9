"""The regulator's policy: what its officer lets companies ask, beyond what any one plan says.

It is checked twice: when a plan is approved, and again by the daemon for every query. So a policy
that was tightened after an approval takes effect when the daemon next starts.

| rule | checked on |
|---|---|
| who may ask, δ, inspection and auditor | the plan |
| how many officers sign an approval | the approval (plans/sign_off.py) |
| strategies, notions | the plan, and what each query declares itself to be for |
| ε per run | the plan's reservation |
| ε over all runs, by cohort | the plan's reservation, with everything else set aside |
| ε per query, queries per run, kinds of queries | each query |
| smallest group | each query: about how many people it is (a public number) |

All numbers that decide are public or part of the plan, so a refusal reveals nothing about anybody.

The smallest group applies to blind queries and weighted sums too: the company learns the same from
them, and a sum with the weights (1, 0) is a group's sum. It keeps honest questions coarse; it does
not protect anybody. Rows are hidden, so a company can name many people and send zeros for most of
them. What protects a person is the noise, and the debit that pays for it.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from isonomy.common.base.errors import PolicyRefused
from isonomy.common.privacy.accounting import epsilon_of, units_for
from isonomy.common.privacy.queries import Query

STRATEGIES = (
    *("tilt", "pf_ld", "dp_fermi", "dp_sgda", "dp_postprocess", "dp_oracle"),
    *("few_shot", "audit"),
)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")  # which no limit admits


def _positive(text: str) -> str:
    if not 0 < _number(text) < float("inf"):
        raise ValueError("must be a positive number, written as text such as '1e-6'")
    return text


def _share(text: str) -> str:
    if not 0 <= _number(text) <= 1:
        raise ValueError("must be a number from 0 to 1, written as text such as '0.05'")
    return text


# Numbers that end up in promises are text, kept as it was written.
Decimal = Annotated[str, AfterValidator(_positive)]
Share = Annotated[str, AfterValidator(_share)]
Fingerprint = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{4}( [0-9a-f]{4}){7}$")]
Auditor = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")]


class Policy(BaseModel):
    """The table [policy]. Empty lists and absent limits mean that the rule is not set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    approving_officers: Literal[1, 2] = 1
    companies: tuple[Fingerprint, ...] = ()
    strategies: tuple[str, ...] = ()
    notions: tuple[str, ...] = ()
    kinds: Annotated[tuple[Literal["blind", "open"], ...], Field(min_length=1)] = (
        *("blind", "open"),
    )
    epsilon_per_run: Decimal | None = None
    epsilon_per_query: Decimal | None = None
    queries_per_run: Annotated[int, Field(ge=1)] = 100_000
    smallest_group: Annotated[int, Field(ge=1)] = 10
    screening_ratio: Share = "0.8"
    inspection_rate: Share = "0"
    auditor: Auditor = ""

    def check_query(
        self, query: Query, units: int, *, people: int, answered: int, delta: str
    ) -> None:
        """Raise PolicyRefused unless a query of this cost about so many people may be answered."""
        if query.kind not in self.kinds:
            raise PolicyRefused(f"the regulator's policy allows no {query.kind} queries")
        declared = query.declaration
        strangers = {declared.strategy} - {"", *self.strategies} if self.strategies else set()
        if self.notions:
            strangers |= set(declared.notion.split("+")) - {"", *self.notions}
        if strangers:
            raise PolicyRefused(f"the regulator's policy allows no {', '.join(sorted(strangers))}")
        if answered >= self.queries_per_run:
            raise PolicyRefused(
                f"the regulator answers at most {self.queries_per_run} queries per run"
            )
        if self.epsilon_per_query is not None and units > self._units(
            self.epsilon_per_query, delta
        ):
            raise PolicyRefused(
                f"the query costs ε = {epsilon_of(units, float(delta)):.4g}; the regulator's "
                f"policy allows {self.epsilon_per_query} per query. Ask with more noise"
            )
        if people < self.smallest_group:
            raise PolicyRefused(
                f"a query about {people} people; the regulator's policy asks for at least "
                f"{self.smallest_group}. Ask about more at a time (gradients: a larger chunk_size)"
            )

    @staticmethod
    @cache  # a search, and it is asked twice per query
    def _units(epsilon: str, delta: str) -> int:
        return units_for(float(epsilon), float(delta))
