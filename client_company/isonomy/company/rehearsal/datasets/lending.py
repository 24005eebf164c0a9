"""A lending population that the project makes itself: no download, no real person in it.

How bias enters, step by step (each is a documented mechanism, and each has one number below):

1. **Segregation of work and homes.** Occupation depends on sex and origin, the postcode area on
   origin. Neither is a cause of repayment; both give sex and origin away (proxies).
2. **Unequal pay and hours.** Women work part-time more often; women and people from elsewhere earn
   less for the same work. Lower income means a higher burden, and the burden is a true cause of
   default: parity then costs accuracy, as in real data.
3. **Unequal measurement.** People from elsewhere have a short record in this country's registers,
   although they handled money elsewhere: the column says less about them than about others.
4. **Biased labels.** Some loans that were repaid late are on file as not repaid; officers wrote
   down late payers from the south and from elsewhere more often. A model that fits the file
   perfectly is unfair to them.

Given a person's true burden, savings, stability and experience, neither sex nor origin has any
effect on whether they repay.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isonomy.common.base.errors import DataError
from isonomy.company.rehearsal.datasets._dataset import Dataset, dataset_of

MIN_PEOPLE = 200
SEX = ("female", "male")
ORIGIN = ("elsewhere", "north", "south")
ORIGIN_SHARE = (0.12, 0.60, 0.28)
OCCUPATION = ("care", "clerical", "crafts", "hospitality", "management", "sales", "technical")
# Relative frequency of the occupations by sex, then what origin multiplies onto it.
OCCUPATION_BY_SEX = (
    (0.24, 0.24, 0.04, 0.13, 0.10, 0.17, 0.08),
    (0.05, 0.10, 0.26, 0.08, 0.17, 0.13, 0.21),
)
OCCUPATION_BY_ORIGIN = (
    (1.4, 0.7, 1.1, 2.2, 0.4, 0.9, 0.7),
    (1.0, 1.1, 0.9, 0.8, 1.2, 1.0, 1.1),
    (1.0, 0.9, 1.2, 1.2, 0.8, 1.0, 0.9),
)
PAY = (2100.0, 2400.0, 2500.0, 1850.0, 4300.0, 2300.0, 3400.0)  # monthly, full time
PART_TIME = (0.36, 0.09)  # probability by sex
PAY_GAP_SEX = (0.93, 1.00)
PAY_GAP_ORIGIN = (0.90, 1.00, 0.96)
AREAS = 8  # areas 0–2 are mostly northern, 3–5 southern, 6–7 where newcomers found homes
AREA_BY_ORIGIN = (
    (0.05, 0.05, 0.08, 0.08, 0.08, 0.10, 0.28, 0.28),
    (0.26, 0.24, 0.20, 0.08, 0.07, 0.06, 0.05, 0.04),
    (0.07, 0.08, 0.08, 0.22, 0.23, 0.20, 0.06, 0.06),
)
RECORD_KEPT = (0.35, 1.00, 1.00)  # share of a person's experience that the register shows
WRITTEN_DOWN = (0.12, 0.04, 0.07)  # late payers filed as not repaid, by origin
PURPOSE = ("car", "education", "furniture", "repair", "small business")


def lending(people: int = 20_000, seed: int = 0) -> Dataset:
    """A synthetic lending population; the same `people` and `seed` give the same people.

    Target: repaid (72 %). Attributes: sex (2 groups), origin (3). A plain model would grant loans
    to men 0.12 to 0.13 more often than to women, and in the north 0.14 to 0.15 more often than to
    people from elsewhere.
    """
    if people < MIN_PEOPLE:
        raise DataError(f"lending needs at least {MIN_PEOPLE} people to hold every group")
    rng = np.random.default_rng(seed)
    sex = (rng.random(people) < 0.52).astype(np.int64)
    origin = rng.choice(len(ORIGIN), people, p=ORIGIN_SHARE)
    occupation = _draw(
        rng, _normalised(OCCUPATION_BY_SEX)[sex] * np.array(OCCUPATION_BY_ORIGIN)[origin]
    )
    area = _draw(rng, np.array(AREA_BY_ORIGIN)[origin])
    age = np.clip(rng.gamma(6.0, 4.2, people) + 18, 18, 78).round()
    part_time = rng.random(people) < np.array(PART_TIME)[sex]
    experience = np.clip((age - 18) * rng.beta(3.0, 2.0, people), 0, None)

    full_pay = np.array(PAY)[occupation] * (1 + 0.008 * (age - 18)) * rng.lognormal(0, 0.22, people)
    gap = np.array(PAY_GAP_SEX)[sex] * np.array(PAY_GAP_ORIGIN)[origin]
    income = full_pay * gap * np.where(part_time, 0.62, 1.0)
    tenure = np.minimum(experience, rng.exponential(6.0, people))
    savings = income * rng.lognormal(0.2, 0.9, people)
    amount = np.clip(rng.lognormal(8.9, 0.55, people), 1_000, 60_000).round(-2)
    term = rng.choice([12, 24, 36, 48, 60], people, p=[0.15, 0.2, 0.3, 0.2, 0.15])
    other_debt = rng.exponential(120.0, people)
    burden = (amount / term + other_debt) / income  # monthly payments as a share of income

    score = (
        1.3
        - 6.0 * np.minimum(burden, 1.2)
        + 1.1 * np.log(savings / 2_500)
        + 0.10 * np.minimum(tenure, 12)
        + 0.045 * np.minimum(experience, 25)
    )
    repays = rng.random(people) < 1 / (1 + np.exp(-score))
    filed_wrong = rng.random(people) < np.array(WRITTEN_DOWN)[origin]
    features = pd.DataFrame(
        {
            "age": age.astype(np.int64),
            "occupation": np.array(OCCUPATION)[occupation],
            "part_time": np.where(part_time, "yes", "no"),
            "area": np.array([f"area {number}" for number in range(AREAS)])[area],
            "monthly_income": income.round(),
            "years_in_job": tenure.round(1),
            "years_on_record": (experience * np.array(RECORD_KEPT)[origin]).round(1),
            "savings": savings.round(-1),
            "amount": amount,
            "term_months": term,
            "other_payments": other_debt.round(),
            "purpose": np.array(PURPOSE)[rng.integers(len(PURPOSE), size=people)],
        }
    )
    return dataset_of(
        name="lending",
        features=features,
        target=repays & ~filed_wrong,
        values={
            "sex": pd.Series(np.array(SEX)[sex]),
            "origin": pd.Series(np.array(ORIGIN)[origin]),
        },
        groups={"sex": SEX, "origin": ORIGIN},
        notes="Synthetic. Neither sex nor origin is a feature; occupation, hours, area and length "
        "of record give them away in part.",
        source=f"isonomy.company.lending(people={people}, seed={seed}); nobody's data",
    )


def _normalised(weights: tuple[tuple[float, ...], ...]) -> NDArray[np.float64]:
    table = np.array(weights)
    return np.asarray(table / table.sum(axis=1, keepdims=True))


def _draw(rng: np.random.Generator, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """One category per person from (people, categories) relative weights."""
    edges = np.cumsum(weights, axis=1)
    place = rng.random(len(weights))[:, None] * edges[:, -1:]
    return np.asarray((place > edges).sum(axis=1), dtype=np.int64)
