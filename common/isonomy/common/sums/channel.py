"""What carries a query to the regulator, and what may be asked through it.

    prepare(question) → Prepared        pure: clip, quantise, price, capacity        question.py
    channel.exchange  → Released        Local, Encrypted or Pooled: how it travels
    assemble          → Release         pure: units, last group, deviation           question.py

A channel says what it is (`Capabilities`); a strategy says what it needs (`Needs`). `check_needs`
compares the two before anything is asked, so that what does not fit is refused by name and free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from isonomy.common.base.errors import ConfigError
from isonomy.common.sums.question import Prepared, Released, Terms

Carrier = Literal["local", "encrypted", "pads", "pooled"]


@dataclass(frozen=True)
class Capabilities:
    """What a channel is. All of it is public."""

    carrier: Carrier
    record_private: bool = False  # the plan promises that whole records are protected
    individual: bool = False  # the plan lets everybody pay for their own rows
    filtered: bool = False  # an individual filter stands before the channel

    @property
    def pooled(self) -> bool:
        """Several companies ask together."""
        return self.carrier == "pooled"


@dataclass(frozen=True)
class Needs:
    """What a strategy can work with."""

    strategy: str
    pooled: bool = False  # several companies may ask together
    filtered: bool = True  # an individual filter may stand before the channel
    record_private: bool = False  # it protects whole records
    true_attributes: bool = False  # it reads them: a comparison for rehearsals


def check_needs(needs: Needs, capabilities: Capabilities) -> None:
    """Raise ConfigError where the two do not fit. Nothing was asked, nothing is spent."""
    name = needs.strategy
    if needs.true_attributes and capabilities.carrier != "local":
        raise ConfigError(
            f"{name} needs the true attributes: it is a comparison for rehearsals without "
            "encryption, never a protocol. Nothing was asked."
        )
    if capabilities.pooled and not needs.pooled:
        raise ConfigError(
            f"{name} works for one company alone: with several, each company would fit or clip by "
            "its own rows, and their questions would differ. Several companies can train by "
            "FairClassifier, under a plan with a feature map, audit, and ask for sums. Nothing was "
            "asked."
        )
    if capabilities.filtered and not needs.filtered:
        raise ConfigError(f"{name} does not work under an individual filter. Nothing was asked.")
    if capabilities.record_private and not needs.record_private:
        raise ConfigError(
            "the approved plan promises that whole records are protected (record_privacy). Only "
            "the gradient trainer does that: Trainer(…, record_privacy=RecordPrivacy(epsilon=…)). "
            f"{name} asked nothing."
        )
    if needs.record_private and capabilities.filtered:
        raise ConfigError(
            "record privacy and the individual filter do not go together: the filter lets the "
            "noise of a query be smaller than what records are promised. Nothing was asked."
        )


class Channel(Protocol):
    """How a prepared query travels. Nothing else about an oracle varies."""

    @property
    def terms(self) -> Terms: ...
    @property
    def capabilities(self) -> Capabilities: ...

    def exchange(self, prepared: Prepared) -> Released:
        """Carry the query. An id that was answered before gets the same answer, for free."""

    def confirm_multipliers(self, query_id: str, values: tuple[float, ...]) -> None:
        """Compare λ after a dual step with the regulator's; ProtocolError if they differ."""

    def close(self, error: BaseException | None = None) -> None:
        """End what the channel holds open; the other parties are told the error, if any."""


class Wrapper:
    """A channel around another one; says and does the same."""

    def __init__(self, inner: Channel) -> None:
        self.inner, self.terms, self.capabilities = inner, inner.terms, inner.capabilities

    def exchange(self, prepared: Prepared) -> Released:
        return self.inner.exchange(prepared)

    def confirm_multipliers(self, query_id: str, values: tuple[float, ...]) -> None:
        self.inner.confirm_multipliers(query_id, values)

    def close(self, error: BaseException | None = None) -> None:
        self.inner.close(error)
