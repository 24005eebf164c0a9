"""How far a company is in a few-shot run, on disk: all that a restarted run needs.

    folder/few-shot.state    number of finished rounds, plan, the regulator's last receipt, the
                             learner's state; mode 0600, replaced as a whole

It is written before θ leaves, so that a round never comes with two different θ.
"""

from __future__ import annotations

import struct
from pathlib import Path

from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import write_private
from isonomy.common.few_shot.rounds._messages import RECEIPT_BYTES, RoundReceipt, parse_receipt

_MAGIC = b"isonomy-few-shot-1\n"
_FIELDS = struct.Struct(f"<Q32s{RECEIPT_BYTES}s")


class CompanyState:
    """The state of one plan's run."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "few-shot.state"

    def load(self, plan: FewShotPlan) -> tuple[int, bytes | None]:
        """The number of finished rounds and the learner's state; (0, None) before the first."""
        number, _, state = self._read(plan)
        return number, state

    def receipt(self, plan: FewShotPlan) -> RoundReceipt | None:
        """The regulator's newest receipt, its signature verified; None before the first."""
        _, raw, _ = self._read(plan)
        if raw == bytes(RECEIPT_BYTES):
            return None
        receipt = parse_receipt(raw)
        receipt.verify(plan.regulator.signing_key, plan.hash)
        return receipt

    def save(
        self, plan: FewShotPlan, number: int, state: bytes, receipt: RoundReceipt | None = None
    ) -> None:
        """Replace the file; the new one is on disk when this returns."""
        raw = bytes(RECEIPT_BYTES) if receipt is None else receipt.dump()
        write_private(self._path, _MAGIC + _FIELDS.pack(number, plan.hash, raw) + state)

    def _read(self, plan: FewShotPlan) -> tuple[int, bytes, bytes | None]:
        """The number of finished rounds, the receipt's bytes and the learner's state."""
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return 0, bytes(RECEIPT_BYTES), None
        except OSError as error:
            raise ConfigError(f"cannot read {self._path}: {error.strerror}") from None
        start = len(_MAGIC) + _FIELDS.size
        if not raw.startswith(_MAGIC) or len(raw) < start:
            raise ConfigError(f"{self._path} is not the state of a few-shot run")
        number, bound, receipt = _FIELDS.unpack_from(raw, len(_MAGIC))
        if bound != plan.hash:
            raise ConfigError(f"{self._path} belongs to another few-shot plan")
        return int(number), receipt, raw[start:]
