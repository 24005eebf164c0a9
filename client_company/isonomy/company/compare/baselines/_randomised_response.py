"""k-ary randomised response: every person's group once, each by itself ε-differentially private.

    P[report a] = e^ε / (e^ε + k − 1)   for one's own group, else the rest in equal parts

Warner 1965; as the release of Mozannar, Ohannessian & Srebro 2020 ("Fair learning with private
demographic data"). For the comparison with randomised response only: no plan, policy or message of
the protocol reaches it, and `LocalOracle` alone offers it.

Formal guarantees (tests/company/compare/test_baselines_randomised.py)
  ratio_is_bounded     P[report given a] / P[report given b] <= e^ε in exact arithmetic
  paid_once            one ledger record with the pure ε as μ² is on disk before anybody sees a
                       report; asked again, the stored reports come back
  inverse_is_unbiased  E[inverse[reported] given a] is the indicator of a
"""

from __future__ import annotations

from decimal import Context, Decimal

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import BudgetExceeded, ConfigError
from isonomy.common.privacy.accounting import laplace_units
from isonomy.common.privacy.noise import NoiseSource, uniform_below
from isonomy.common.privacy.queries import query_id_prefix
from isonomy.common.sums.channel import Needs, check_needs
from isonomy.common.sums.local import known_side
from isonomy.common.sums.oracle import GroupOracle

MILLION = 1_000_000
GRID = 2**63  # chances are multiples of 1/GRID
_EXACT = Context(prec=60)
_PURPOSE = "attributes by randomised response (comparison only)"
_DOMAIN = "isonomy/randomised-response/v1"


def keep_threshold(epsilon_millionths: int, groups: int) -> int:
    """⌊GRID·e^ε/(e^ε + k − 1)⌋: rounded down, so that the ratio never exceeds e^ε."""
    if groups < 2:
        raise ConfigError(f"randomised response needs at least two groups; got {groups}")
    if not 1 <= epsilon_millionths <= 40 * MILLION:
        raise ConfigError("randomised response takes an ε above 0 and of at most 40")
    odds = _EXACT.exp(_EXACT.divide(Decimal(epsilon_millionths), Decimal(MILLION)))
    share = _EXACT.divide(odds, _EXACT.add(odds, Decimal(groups - 1)))
    return int(_EXACT.multiply(share, Decimal(GRID)))  # 60 digits for 19: the floor is right


def randomise(
    codes: NDArray[np.int64], groups: int, epsilon_millionths: int, source: NoiseSource
) -> NDArray[np.int64]:
    """Reports of group numbers `codes`: kept, or moved to one of the others, all alike."""
    threshold = np.uint64(keep_threshold(epsilon_millionths, groups))
    stays = uniform_below(GRID, len(codes), source) < threshold
    # Drawn for everybody: how much randomness is used must not depend on who keeps.
    away = uniform_below(groups - 1, len(codes), source).astype(np.int64) + 1
    return np.where(stays, codes, (codes + away) % groups)


def flip_matrix(epsilon_millionths: int, groups: int) -> NDArray[np.float64]:
    """(groups, groups) P[report b given a]."""
    keep = keep_threshold(epsilon_millionths, groups) / GRID
    chances = np.full((groups, groups), (1 - keep) / (groups - 1))
    np.fill_diagonal(chances, keep)
    return chances


def corrected_indicators(
    reports: NDArray[np.int64], epsilon_millionths: int, groups: int
) -> NDArray[np.float64]:
    """(people, groups) unbiased estimates of 1[A = a]: rows of the flip matrix's inverse.

    Any sum that is linear in the indicators is estimated without bias by putting these in.
    """
    return np.asarray(np.linalg.inv(flip_matrix(epsilon_millionths, groups))[reports])


def units_of(epsilon_millionths: int) -> int:
    """What a person pays: the μ² that covers a pure ε, as for Laplace noise."""
    return laplace_units(epsilon_millionths, MILLION)


def largest_epsilon(units: int) -> int:
    """The largest ε, in millionths, that costs at most `units`; ConfigError if there is none."""
    low, high = 0, 40 * MILLION
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if units_of(middle) <= units else (low, middle - 1)
    if low == 0:
        raise ConfigError("the budget is too small for randomised response; take a larger ε")
    return low


def release(
    oracle: GroupOracle, strategy: str, epsilon_millionths: int, attribute: str
) -> NDArray[np.int64]:
    """(people,) everybody's group by randomised response, paid for in the ledger as a pure ε.

    Debit and reports are one record. Its id is the attribute's own, so a plan releases each
    attribute once: the same request again gets the stored reports, another ε is refused.
    """
    needs = Needs(strategy, filtered=False, true_attributes=True)
    check_needs(needs, oracle.capabilities)
    channel, units = known_side(oracle, strategy), units_of(epsilon_millionths)
    budget = oracle.budget
    if budget.spent_units + units > budget.cap_units:
        raise BudgetExceeded("randomised response would exceed the budget. Nothing was asked.")
    codes, groups = channel.table.codes(attribute), len(oracle.labels(attribute))
    text = f"{attribute}/{groups}/{epsilon_millionths}".encode()
    reports = randomise(codes, groups, epsilon_millionths, channel.custodian.source)
    name = hash_bytes(_DOMAIN, attribute.encode()).hex()
    record = channel.custodian.record(
        query_id=f"{query_id_prefix(oracle.plan)}reports-{name}",
        request_hash=hash_bytes(_DOMAIN, text),
        units=units,
        event={
            "mechanism": "randomised_response",
            "noise": epsilon_millionths,
            "kind": "open",
            "shape": "reports",
            "attributes": attribute,
            "columns": 1,
            "people": len(codes),
            "purpose": _PURPOSE,
            "norm": "1.0",
            "weights": "",
        },
        answer=reports.astype("<u2").tobytes(),
    )
    oracle.accounts.restore(oracle.accounts.state() + record.units)
    oracle.log.add(_PURPOSE, record.units, slice(None), len(codes))
    return np.frombuffer(record.answer, "<u2").astype(np.int64)
