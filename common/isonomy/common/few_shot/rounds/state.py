"""How far a company is in a few-shot run, on disk: all that goes on after a kill.

    folder/few-shot.state    number of finished rounds, plan, the regulator's last signed word, the
                             learner's state; mode 0600, replaced as a whole

It is written before θ leaves, so that a round never comes with two different θ.
"""

from __future__ import annotations

import struct
from pathlib import Path

from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import write_private
from isonomy.common.few_shot.rounds.messages import GIVEN_BYTES, Given, parse_regulator
from isonomy.common.few_shot.rounds.plan import FewShotPlan

_MAGIC = b"isonomy-few-shot-1\n"
_FIELDS = struct.Struct(f"<Q32s{GIVEN_BYTES}s")


class CompanyState:
    """The state of one plan's run."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "few-shot.state"

    def load(self, plan: FewShotPlan) -> tuple[int, bytes | None]:
        """The number of finished rounds and the learner's state; (0, None) before the first."""
        found = self._read(plan)
        return (0, None) if found is None else (found[0], found[2])

    def given(self, plan: FewShotPlan) -> Given | None:
        """What the regulator signed last, if it did."""
        found = self._read(plan)
        if found is None or found[1] == bytes(GIVEN_BYTES):
            return None
        said = parse_regulator(found[1])
        if not isinstance(said, Given):
            raise ConfigError(f"{self._path} holds something else than a regulator's word")
        said.verify(plan.regulator.signing_key, plan.hash)
        return said

    def save(
        self, plan: FewShotPlan, number: int, state: bytes, given: Given | None = None
    ) -> None:
        """Replace it; on disk when this returns."""
        said = bytes(GIVEN_BYTES) if given is None else given.dump()
        write_private(self._path, _MAGIC + _FIELDS.pack(number, plan.hash, said) + state)

    def _read(self, plan: FewShotPlan) -> tuple[int, bytes, bytes] | None:
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"cannot read {self._path}: {error.strerror}") from None
        start = len(_MAGIC) + _FIELDS.size
        if not raw.startswith(_MAGIC) or len(raw) < start:
            raise ConfigError(f"{self._path} is no state of a few-shot run")
        number, bound, said = _FIELDS.unpack_from(raw, len(_MAGIC))
        if bound != plan.hash:
            raise ConfigError(f"{self._path} belongs to another few-shot plan")
        return int(number), said, raw[start:]


__all__ = ["CompanyState"]
