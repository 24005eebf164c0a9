"""The regulator's few-shot tasks: samples with labels, attribute and ids, sealed like the vault.

    home/tasks/NAME.bin    an .npz of plain arrays inside a sealed file (sealed_file.py), under the
                           vault's secret: who opens the vault opens these

| array | what |
|---|---|
| inputs | (n, …) numbers: images or rows |
| labels | (n,) whole numbers from 0: classes |
| groups | (n,) 0 or 1: the sensitive attribute; may be left out where no method needs it |
| positive | (classes,) booleans: which classes count as ŷ = 1; goes with `groups` |
| ids | (n,) distinct texts: whose sample it is, for the ledger |

Ids are hashed under the member key, so a sample has one account over all runs and pools: the same
samples under another name do not get a second budget.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.arrays import arrays_in, read_arrays
from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.base.private_files import private_folder
from isonomy.common.few_shot.learning.tasks import Pool
from isonomy.common.people.cohort import Cohort, id_key, normalise_id
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.faults import VaultLocked, VaultTampered
from isonomy.regulator.vault.sealed_file import (
    Header,
    open_sealed,
    read_header,
    shred,
    write_sealed,
)
from isonomy.regulator.vault.unlock import Derivation, Secret
from isonomy.regulator.vault.vault import Vault

WHAT, SCHEMA = "tasks", 1
MAX_BYTES = 1 << 31  # unpacked
ARRAYS = ("inputs", "labels", "groups", "positive", "ids")
_NEW = ".new"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


@dataclass(frozen=True)
class TaskPool:
    """Samples as the learner takes them, and the ids under which they are accounted for."""

    pool: Pool
    ids: Cohort = field(repr=False)

    def __len__(self) -> int:
        return len(self.pool)


@dataclass(frozen=True)
class PoolEntry:
    """What is known of a pool without the secret."""

    name: str
    samples: int
    classes: int
    shape: str
    has_groups: bool


def read_pool_file(path: Path) -> TaskPool:
    """Return a pool from an .npz file of plain arrays; DataError says what is wrong with it."""
    _check_size(path)
    return _pool(read_arrays(path), str(path))


def add_pool(config: RegulatorConfig, vault: Vault, name: str, pool: TaskPool) -> Path:
    """Seal a pool into the home. Returns its file. A name is used once, because plans name it."""
    if not _NAME.fullmatch(name):
        raise ConfigError("a name of tasks has 1 to 63 lower-case letters, digits, - and _")
    finish_pools(config, vault.secret)  # else an older pool of this name could come back later
    private_folder(config.tasks_folder)
    public: dict[str, int | str] = {
        "samples": len(pool),
        "classes": pool.pool.classes,
        "shape": "x".join(map(str, pool.pool.inputs.shape[1:])),
        "groups": int(pool.pool.groups is not None),
    }
    path = config.tasks_folder / f"{name}.bin"
    if path.exists():
        raise ConfigError(
            f"tasks named {name!r} exist already, and are never overwritten: take another name, "
            f"or destroy them first (isonomy-regulator tasks remove {name})"
        )
    # With the vault's derivation, because its key is cached and deriving one is slow.
    header = Header(WHAT, SCHEMA, Vault.header(config.vault_path).derivation, public)
    write_sealed(path, _dump(pool), header, vault.secret)
    return path


def open_pool(config: RegulatorConfig, vault: Vault, name: str) -> TaskPool:
    """Decrypt a pool."""
    finish_pools(config, vault.secret)
    path = _existing(config, name)
    raw = open_sealed(path, WHAT, SCHEMA, vault.secret)[1]
    try:
        return _pool(arrays_in(io.BytesIO(raw), path), str(path))
    except DataError:
        raise VaultTampered(f"{path} decrypts to something that is not a pool of tasks") from None


def list_pools(config: RegulatorConfig) -> list[PoolEntry]:
    """Return what is public about all pools; no secret needed."""
    entries = []
    for path in sorted(config.tasks_folder.glob("*.bin")):
        public = read_header(path, WHAT, SCHEMA).public
        numbers = (int(public["samples"]), int(public["classes"]))
        entries.append(PoolEntry(path.stem, *numbers, str(public["shape"]), bool(public["groups"])))
    return entries


def remove_pool(config: RegulatorConfig, name: str) -> None:
    """Destroy a pool and what a rotation left of it. Its samples' spending stays in the ledger."""
    path = _existing(config, name)
    shred(path.with_suffix(_NEW))
    shred(path)


def pools_about(config: RegulatorConfig, vault: Vault, people: Collection[str]) -> list[str]:
    """Return the names of the pools with a sample of one of these people, by the keys of ids."""
    finish_pools(config, vault.secret)
    names = [entry.name for entry in list_pools(config)]
    return [n for n in names if not set(people).isdisjoint(open_pool(config, vault, n).ids.keys)]


def opens(path: Path, secret: Secret) -> bool:
    """Return whether this secret opens the pool in this file."""
    try:
        open_sealed(path, WHAT, SCHEMA, secret)
    except (VaultLocked, VaultTampered):
        return False
    return True


def seal_pools_anew(config: RegulatorConfig, vault: Vault, secret: Secret) -> None:
    """Write each pool again under a new secret, beside the old file, before the vault changes.

    If the process is killed before the vault has changed, the old files open; if after it,
    `open_pool` finds the new ones and puts them in place.
    """
    for path in sorted(config.tasks_folder.glob("*.bin")):
        header, payload = open_sealed(path, WHAT, SCHEMA, vault.secret)
        header = replace(header, derivation=Derivation.fresh(strong_secret=secret.strong))
        write_sealed(path.with_suffix(_NEW), payload, header, secret, overwrite=True)


def finish_pools(config: RegulatorConfig, secret: Secret) -> None:
    """Put the pools that this secret opens in the place of the old ones."""
    for fresh in sorted(config.tasks_folder.glob(f"*{_NEW}")):
        if not opens(fresh, secret):
            shred(fresh)  # of a rotation that was not completed
            continue
        shred(fresh.with_suffix(".bin"))
        fresh.replace(fresh.with_suffix(".bin"))


def _existing(config: RegulatorConfig, name: str) -> Path:
    path = config.tasks_folder / f"{name}.bin"
    exists = path.exists() or path.with_suffix(_NEW).exists()  # a rotation was cut short
    if not _NAME.fullmatch(name) or not exists:
        names = ", ".join(entry.name for entry in list_pools(config)) or "none"
        raise ConfigError(
            f"no tasks named {name!r} are kept here (there are: {names}); add them with "
            "`isonomy-regulator tasks add NAME FILE`"
        )
    return path


def _check_size(path: Path) -> None:
    """Raise DataError for a file that would unpack to more than MAX_BYTES, or is a workbook."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
            if "[Content_Types].xml" in archive.namelist():
                raise DataError(f"{path} is an Excel workbook, not an .npz file of plain arrays")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or 'no file'}") from None
    except zipfile.BadZipFile:
        raise DataError(f"{path} is not an .npz file of plain arrays") from None
    if size > MAX_BYTES:
        raise DataError(f"{path} unpacks to {size:,} bytes; at most {MAX_BYTES:,}")


def _pool(arrays: dict[str, NDArray[Any]], where: str) -> TaskPool:
    """Return a pool made of these arrays; DataError says what is wrong with them."""
    missing = [name for name in ("inputs", "labels", "ids") if name not in arrays]
    unknown = sorted(set(arrays) - set(ARRAYS))
    if missing or unknown:
        raise DataError(
            f"{where} must hold inputs, labels and ids, and may hold groups and positive; "
            f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}"
        )
    inputs, labels, ids = arrays["inputs"], arrays["labels"], arrays["ids"]
    if inputs.dtype.kind not in "fiu" or labels.dtype.kind not in "iu" or ids.dtype.kind != "U":
        raise DataError(f"{where}: inputs are numbers, labels whole numbers, ids texts")
    count = len(labels) if labels.ndim == 1 else 0
    if not count or inputs.ndim < 2 or len(inputs) != count or ids.shape != (count,):
        raise DataError(f"{where}: inputs, labels and ids need the same number of samples, not 0")
    if not np.isfinite(inputs).all() or int(labels.min()) < 0:
        raise DataError(f"{where}: inputs must be finite and labels not negative")
    if int(labels.max()) >= count:  # arrays of one number per class must stay small
        raise DataError(f"{where}: labels count classes from 0; the largest is {labels.max()}")
    groups, positive = _attribute(arrays, count, int(labels.max()) + 1, where)
    values = np.ascontiguousarray(inputs, np.float32)
    pool = Pool(values, labels.astype(np.int64), groups, positive)
    distinct = len({id_key(normalise_id(person)) for person in ids.tolist()})
    if distinct < count:
        raise DataError(f"{where}: {count} samples have {distinct} ids; each needs one of its own")
    return TaskPool(pool, Cohort.of(ids.tolist()))


def _attribute(
    arrays: dict[str, NDArray[Any]], samples: int, classes: int, where: str
) -> tuple[NDArray[np.int8] | None, NDArray[np.bool_] | None]:
    groups, positive = arrays.get("groups"), arrays.get("positive")
    if groups is not None:
        if groups.shape != (samples,) or groups.dtype.kind not in "iub":
            raise DataError(f"{where}: groups is one whole number (0 or 1) per sample")
        missing = int((~np.isin(groups, (0, 1))).sum())
        if missing:
            raise DataError(f"{where}: the attribute is missing (not 0 or 1) on {missing} samples")
    if positive is not None and (positive.shape != (classes,) or positive.dtype != np.bool_):
        raise DataError(f"{where}: positive is one boolean for each of {classes} classes")
    return (None if groups is None else groups.astype(np.int8)), positive


def _dump(pool: TaskPool) -> bytes:
    arrays: dict[str, NDArray[Any]] = {
        "inputs": pool.pool.inputs,
        "labels": pool.pool.labels,
        "ids": np.array(pool.ids.ids),
    }
    if pool.pool.groups is not None:
        arrays["groups"] = pool.pool.groups
    if pool.pool.positive is not None:
        arrays["positive"] = pool.pool.positive
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()
