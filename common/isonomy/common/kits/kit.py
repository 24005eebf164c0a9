"""NAME.kit.zip: what the operator gives a party, signed by the authority.

kit.json     who it is for, the server's name and door      SHA256SUMS   of all other files
ca.pem       the authority         tls.pem    the party's certificate     node.pem   its node's
cards/       the other parties' public keys                 units/       systemd
README.md    exactly this party's steps                     compose.yaml the same in containers
kit.sig      the authority's signature of SHA256SUMS

Nothing in it is secret. Whoever changes it shows: the party compares the authority's fingerprint by
telephone, and everything else hangs on that.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from isonomy.common.base.documents import Document, read_bounded
from isonomy.common.base.errors import ConfigError, VerificationError
from isonomy.common.base.private_files import write_whole
from isonomy.common.keys.certificates import Authority, certify, verify_by_authority
from isonomy.common.keys.party import Card, PartyName
from isonomy.common.kits.request import KitRequest
from isonomy.common.kits.services import Places, compose_file, readme, units

MAX_KIT_BYTES, MAX_FILES = 1 << 20, 64
_SUMS, _SIGNATURE = "SHA256SUMS", "kit.sig"
# All that the standard library raises for archives that are cut short, encrypted or odd.
_UNREADABLE = (zipfile.BadZipFile, ValueError, RuntimeError, EOFError, OSError, zlib.error)
_TIME = (1980, 1, 1, 0, 0, 0)  # the oldest that a ZIP archive knows: equal kits have equal bytes


class KitFacts(Document):
    """Who a kit is for, and where the server is."""

    word: ClassVar[str] = "kit"

    schema_version: Literal["isonomy/kit/v1"] = "isonomy/kit/v1"
    name: PartyName
    role: Literal["company", "regulator"]
    server: Annotated[str, Field(pattern=r"^[A-Za-z0-9.:_-]{1,253}$")]  # as plans call the relay
    door: Annotated[str, Field(pattern=r"^[\[\]A-Za-z0-9.:_-]{1,260}$")]  # HOST:PORT for the node
    versions: dict[str, str]  # of Isonomy, by party; the operator's under "server"


class Kit:
    """A kit's files, checked: the sums fit, and the authority in it signed them."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = dict(files)
        self.facts = KitFacts.from_json(self._file("kit.json"))
        sums = self._file(_SUMS)
        if sums != _sums(self.files):
            raise VerificationError("the kit's files are not those of its SHA256SUMS")
        verify_by_authority(self._file("ca.pem"), sums, self._file(_SIGNATURE))

    @classmethod
    def load(cls, path: Path) -> Kit:
        """Read a kit. Total: whatever the file holds, a kit, or a ConfigError, or not verified."""
        data = read_bounded(path, MAX_KIT_BYTES)
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                entries = archive.infolist()
                size = sum(entry.file_size for entry in entries)
                if len(entries) > MAX_FILES or size > MAX_KIT_BYTES or len(data) > MAX_KIT_BYTES:
                    raise ConfigError(f"{path} is too large for a kit")
                return cls({entry.filename: archive.read(entry) for entry in entries})
        except _UNREADABLE:
            raise ConfigError(f"{path} is not a kit, or was cut short") from None

    def cards(self) -> list[Card]:
        """The other parties' public keys."""
        names = sorted(name for name in self.files if name.startswith("cards/"))
        return [Card.from_json(self.files[name]) for name in names]

    def _file(self, name: str) -> bytes:
        if name not in self.files:
            raise ConfigError(f"this kit is not whole: {name} is missing")
        return self.files[name]


def write_kit(
    authority: Authority,
    request: KitRequest,
    others: Sequence[KitRequest],
    *,
    server: str,
    door: str,
    folder: Path,
) -> Path:
    """Sign a party's certificates and write NAME.kit.zip; returns its path."""
    card = request.card
    versions = {each.card.name: each.version for each in (request, *others)}
    facts = KitFacts(
        name=card.name,
        role="company" if card.role == "company" else "regulator",
        server=server,
        door=door,
        versions={**versions, "server": version("isonomy")},
    )
    party, node = (certify(authority, each) for each in request.requests)
    services = units(Places.of(request), door)
    files = {
        "kit.json": facts.to_json(),
        "ca.pem": authority.ca,
        "tls.pem": party,
        "node.pem": node,
        "README.md": readme(request, others, server, door).encode(),
        "compose.yaml": compose_file(request, door).encode(),
        **{f"cards/{each.card.name}.json": each.card.to_json() for each in others},
        **{f"units/{name}": text.encode() for name, text in services.items()},
    }
    files[_SUMS] = _sums(files)
    files[_SIGNATURE] = authority.sign(files[_SUMS])
    path = folder / f"{card.name}.kit.zip"
    write_whole(path, _archive(files))
    return path


def _sums(files: Mapping[str, bytes]) -> bytes:
    """As `sha256sum` writes them, and as `sha256sum -c SHA256SUMS` checks them."""
    lines = [
        f"{sha256(data).hexdigest()}  {name}\n"
        for name, data in sorted(files.items())
        if name not in (_SUMS, _SIGNATURE)
    ]
    return "".join(lines).encode()


def _archive(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, _TIME), data)
    return buffer.getvalue()
