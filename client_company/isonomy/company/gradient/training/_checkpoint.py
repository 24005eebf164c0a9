"""Checkpoints: a folder with one JSON and one safetensors file; nothing in it can run code.

    state.json                round, settings, history, numbers; names the tensor file and its hash
    round-NNNNNN.safetensors  model, optimiser, strategy, generator states, spent units, and under
                              record privacy the seed of its noise and samples

A save writes the new tensors first and then replaces state.json in one step, so a crash leaves the
old checkpoint or the new one. What is kept of the ledger is the company's own position in it (which
query comes next): queries that were answered after the checkpoint are asked again under the same
ids and get the stored answers, so a resumed run ends with the same model.

Files are readable by their owner only: they hold released figures and the model.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor
from torch.optim import Optimizer

from isonomy.common.base.documents import parse_json
from isonomy.common.base.errors import ConfigError, DataError, StorageError, VerificationError
from isonomy.common.base.private_files import private_folder, write_private
from isonomy.common.sums.accounts import Drops
from isonomy.company.gradient.run.history import History
from isonomy.company.gradient.run.strategy import Run

if TYPE_CHECKING:
    from isonomy.company.gradient.training.trainer import Trainer

SCHEMA = 4
STATE = "state.json"
_TENSOR = "tensor"  # {"tensor": name} in the JSON stands for a tensor of the other file


def save(
    folder: Path, trainer: Trainer, run: Run, optimiser: Optimizer, averaged: dict[str, Tensor]
) -> None:
    """Write the run's state after a round (or after `prepare`)."""
    queries, spent = run.oracle.position
    state = {
        "schema": SCHEMA,
        "settings": _settings(trainer, run, optimiser),
        "round": run.round,
        "queries": queries,
        "spent": torch.from_numpy(spent),
        "model": trainer.model.state_dict(),
        "average": averaged,
        "strategy": trainer.strategy.state_dict(),
        "record": None if run.record is None else run.record.state_dict(),
        "optimiser": optimiser.state_dict(),
        "generator": run.generator.get_state(),
        "torch_generator": torch.get_rng_state(),
        "log": run.oracle.log.to_json(),
        "pools": torch.from_numpy(run.oracle.log.pools),
        "drops": [asdict(drops) for drops in run.oracle.accounts.drops],
        "history": trainer.history.to_json(),
        "symbol": trainer.history.symbol,
        "groups": trainer.history.groups,
        "events": trainer.history.events,
    }
    tensors: dict[str, Tensor] = {}
    plain = _take_out(state, "", tensors)
    name, blob = f"round-{run.round:06d}.safetensors", to_bytes(tensors)
    plain |= {"tensors": name, "sha256": hashlib.sha256(blob).hexdigest()}
    # Tensors first: a crash in between leaves the old state.json with the old tensors.
    write_private(folder / name, blob)
    write_private(folder / STATE, json.dumps(plain, ensure_ascii=False).encode())
    for old in folder.glob("round-*.safetensors"):
        if old.name != name:
            old.unlink(missing_ok=True)


def check_folder(folder: Path) -> None:
    """Can a checkpoint be written here? Asked before anything is spent."""
    try:
        private_folder(folder)
    except OSError as error:
        raise StorageError(f"cannot write the checkpoint in {folder}: {error.strerror}") from None
    write_private(folder / "probe", b"")
    (folder / "probe").unlink()


def restore(
    folder: Path, trainer: Trainer, run: Run, optimiser: Optimizer, averaged: dict[str, Tensor]
) -> History:
    """Put everything back where it was; the settings must be those of the checkpoint's run."""
    state = _read(folder)
    saved, settings = state.get("settings"), _settings(trainer, run, optimiser)
    if not isinstance(saved, dict):
        raise DataError(
            f"{folder / STATE} lacks the settings of its run; start the run again without resume="
        )
    both = settings | saved
    # As text: a tensor in the place of a number has no yes or no.
    differ = [key for key in both if _text(settings.get(key, ...)) != _text(saved.get(key, ...))]
    if differ:
        raise ConfigError(
            f"the checkpoint is of another run: {', '.join(differ)} differ. Resume with the same "
            "settings and data, or start again without resume="
        )
    try:
        trainer.model.load_state_dict(state["model"])
        averaged.update(state["average"])
        trainer.strategy.load_state_dict(state["strategy"])
        if run.record is not None:
            run.record.load_state_dict(state["record"])
        by_number = {int(number): entry for number, entry in state["optimiser"]["state"].items()}
        optimiser.load_state_dict(state["optimiser"] | {"state": by_number})
        run.generator.set_state(state["generator"])
        torch.set_rng_state(state["torch_generator"])
        run.oracle.go_on_from(int(state["queries"]), state["spent"].numpy().astype(np.int64))
        run.oracle.log.restore(state["log"], state["pools"].numpy())
        run.oracle.accounts.drops[:] = [Drops(**drops) for drops in state["drops"]]
        run.round = int(state["round"])
        history = History.from_json(state["history"], state["groups"], state["events"])
        history.symbol = str(state["symbol"])
        return history
    except (
        LookupError,
        TypeError,
        ValueError,
        RuntimeError,
        ArithmeticError,
        AttributeError,
    ) as error:
        raise DataError(f"{folder / STATE} has a missing or damaged field: {error}") from error


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _settings(trainer: Trainer, run: Run, optimiser: Optimizer) -> dict[str, Any]:
    """What must agree for a resumed run to be the same run.

    The data above all: other records under the same noise would show their difference.
    """
    records = trainer.record_privacy
    return {
        "strategy": {"name": trainer.strategy.name, **_plain_fields(trainer.strategy)},
        "rounds": trainer.rounds,
        "chunks": len(run.chunks),
        "local_steps": trainer.local_steps,
        "warmup_steps": trainer.warmup_steps,
        "loss_batch": trainer.loss_batch,
        "average": trainer.average,
        "seed": trainer.seed,
        "rows": len(run.target),
        "attributes": list(run.attributes),
        "plan": run.oracle.plan.hex(),
        "record_privacy": None if records is None else vars(records),
        "optimiser": type(optimiser).__name__,
        "loss": str(getattr(trainer.loss, "__qualname__", type(trainer.loss).__qualname__)),
        "data": run.fingerprint,
    }


def _plain_fields(strategy: object) -> dict[str, Any]:
    """A strategy's numbers and names as it was made; objects (your own notion) are left out."""
    if not is_dataclass(strategy):
        return {}
    values = {f.name: getattr(strategy, f.name) for f in fields(strategy) if f.init}
    return {k: v for k, v in values.items() if v is None or isinstance(v, int | float | str | bool)}


def _read(folder: Path) -> dict[str, Any]:
    """The whole state, its tensors put back."""
    try:
        state = parse_json((folder / STATE).read_bytes(), folder / STATE)
        if not isinstance(state, dict) or state.get("schema") != SCHEMA:
            raise DataError(f"{folder / STATE} is not a checkpoint of schema {SCHEMA}")
        name = Path(str(state["tensors"])).name  # never outside the folder
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != state["sha256"]:
            raise VerificationError(f"{folder / name} is not the file that {STATE} describes")
        whole: dict[str, Any] = _put_back(state, load_file(folder / name))
        return whole
    except OSError as error:
        raise ConfigError(f"no checkpoint in {folder}: {error.strerror}") from None
    # RecursionError: Python 3.13 parses JSON that is nested more deeply than functions may be.
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
        SafetensorError,
    ) as error:
        raise DataError(f"{folder} holds no readable checkpoint: {error}") from error


def _take_out(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON has it: its tensors go to `tensors`, by their place."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach().cpu().contiguous().clone()
        return {_TENSOR: path}
    if isinstance(value, dict):
        return {str(k): _take_out(v, f"{path}/{k}", tensors) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_take_out(v, f"{path}/{k}", tensors) for k, v in enumerate(value)]
    return value


def _put_back(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if set(value) == {_TENSOR}:
            return tensors[value[_TENSOR]]
        return {k: _put_back(v, tensors) for k, v in value.items()}
    return [_put_back(v, tensors) for v in value] if isinstance(value, list) else value
