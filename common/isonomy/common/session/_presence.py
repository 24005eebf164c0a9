"""When each party was last heard, and when absence becomes a time-out. The caller has the clock."""

from __future__ import annotations

from collections.abc import Iterable

from isonomy.common.base.errors import PartyTimeout


class Presence:
    """The relay and the other parties, as one party sees them."""

    def __init__(self, names: Iterable[str], absence_s: float, now: float) -> None:
        self._seen_at = dict.fromkeys(names, now)
        self._relay_at = now
        self._absence_s = absence_s
        self.here: frozenset[str] = frozenset()  # by the relay's last report

    def heard_relay(self, now: float) -> None:
        self._relay_at = now

    def heard_party(self, name: str, now: float) -> None:
        self._relay_at = self._seen_at[name] = now

    def connected(self, now: float) -> None:
        """Our stream is new. The relay may be, too, and then the others need time to come back."""
        self._seen_at = dict.fromkeys(self._seen_at, now)

    def reported(self, names: Iterable[str], now: float) -> None:
        """The relay says who is connected."""
        self.here = frozenset(names) & self._seen_at.keys()
        for name in self.here:
            self._seen_at[name] = now

    def check_relay(self, now: float) -> None:
        if now - self._relay_at > self._absence_s:
            raise self._timeout("the relay")

    def check(self, names: Iterable[str], now: float) -> None:
        """Raise if one of these parties stays away. Only meaningful while we are connected."""
        absent = [name for name in names if now - self._seen_at[name] > self._absence_s]
        if absent:
            raise self._timeout(" and ".join(absent))

    def _timeout(self, who: str) -> PartyTimeout:
        return PartyTimeout(
            f"{who} did not come back within {self._absence_s:g} s. State is kept; run again to "
            "resume: nothing that was answered is asked or paid twice"
        )
