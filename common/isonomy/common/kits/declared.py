"""What a regulator's home declares to its kit: groups, and the folders of the witness's copies."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from isonomy.common.base.documents import parse_toml
from isonomy.common.base.errors import ConfigError
from isonomy.common.kits import users


@dataclass(frozen=True)
class Declared:
    """Nothing, for a company."""

    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    witnesses: tuple[Path, ...] = ()  # files outside the home, on another disk

    @classmethod
    def of(cls, home: Path) -> Declared:
        """Read regulator.toml, with its owner's rights; the regulator's own commands check it."""
        path = home / "regulator.toml"
        if not path.exists():
            return cls()
        with users.acting_as_owner(home):
            raw = parse_toml(path.read_bytes(), path)
        try:
            groups = {str(name): tuple(labels) for name, labels in raw.get("groups", {}).items()}
            copies = tuple(
                Path(os.path.normpath(home / str(copy))) for copy in raw.get("witness_copies", ())
            )
        except (AttributeError, TypeError):
            raise ConfigError(f"{path} cannot be used; look at groups and copies") from None
        return cls(groups, copies)

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders that the daemon writes to besides its home."""
        return tuple(sorted({str(path.parent) for path in self.witnesses}))
