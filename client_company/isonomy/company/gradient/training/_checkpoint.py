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

from isonomy.common.base.errors import ConfigError, DataError, StorageError, VerificationError
from isonomy.common.base.private_files import private_folder, write_private
from isonomy.common.sums.accounts import Drops
from isonomy.company.gradient.run.history import History
from isonomy.company.gradient.run.strategy import Run, State

if TYPE_CHECKING:
    from isonomy.company.gradient.training.trainer import Trainer

SCHEMA = 3
STATE = "state.json"


def save(
    folder: Path, trainer: Trainer, run: Run, optimiser: Optimizer, averaged: dict[str, Tensor]
) -> None:
    """Write the run's state after a round (or after `prepare`)."""
    queries, spent = run.oracle.position
    strategy, numbers = _split(trainer.strategy.state_dict())
    optimiser_tensors, optimiser_json = _pack_optimiser(optimiser)
    record, record_numbers = _split({} if run.record is None else run.record.state_dict())
    tensors = {
        **{f"model/{name}": value for name, value in trainer.model.state_dict().items()},
        **{f"average/{name}": value for name, value in averaged.items()},
        **{f"strategy/{name}": value for name, value in strategy.items()},
        **{f"record/{name}": value for name, value in record.items()},
        **optimiser_tensors,
        "generator": run.generator.get_state(),
        "torch_generator": torch.get_rng_state(),
        "spent": torch.from_numpy(spent),
        "log": torch.from_numpy(run.oracle.log.pools),
    }
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    name = f"round-{run.round:06d}.safetensors"
    blob = to_bytes(plain)
    state = {
        "schema": SCHEMA,
        "settings": _settings(trainer, run, optimiser),
        "round": run.round,
        "queries": queries,
        "tensors": name,
        "sha256": hashlib.sha256(blob).hexdigest(),
        "strategy": numbers,
        "record": record_numbers,
        "log": run.oracle.log.to_json(),
        "drops": [asdict(drops) for drops in run.oracle.accounts.drops],
        "optimiser": optimiser_json,
        "history": trainer.history.to_json(),
        "symbol": trainer.history.symbol,
        "groups": list(trainer.history.groups),
        "events": list(trainer.history.events),
    }
    try:
        private_folder(folder)
        write_private(folder / name, blob)
        write_private(folder / STATE, json.dumps(state, ensure_ascii=False).encode())
        for old in folder.glob("round-*.safetensors"):
            if old.name != name:
                old.unlink()
    except OSError as error:
        raise StorageError(f"cannot write the checkpoint in {folder}: {error.strerror}") from None


def check_folder(folder: Path) -> None:
    """Can a checkpoint be written here? Asked before anything is spent."""
    try:
        private_folder(folder)
        probe = folder / "probe"
        write_private(probe, b"")
        probe.unlink()
    except OSError as error:
        raise StorageError(f"cannot write the checkpoint in {folder}: {error.strerror}") from None


def restore(
    folder: Path, trainer: Trainer, run: Run, optimiser: Optimizer, averaged: dict[str, Tensor]
) -> History:
    """Put everything back where it was; the settings must be those of the checkpoint's run."""
    state, tensors = _read(folder)
    saved, settings = state.get("settings"), _settings(trainer, run, optimiser)
    if not isinstance(saved, dict):
        raise DataError(f"{folder / STATE} lacks the settings of its run")
    both = settings | saved
    differ = [key for key in both if key not in saved or settings.get(key) != saved[key]]
    if differ:
        raise ConfigError(f"the checkpoint is of another run: {', '.join(differ)} differ")
    try:
        trainer.model.load_state_dict(_under(tensors, "model/"))
        averaged.update(_under(tensors, "average/"))
        strategy: State = {**_under(tensors, "strategy/"), **state["strategy"]}
        trainer.strategy.load_state_dict(strategy)
        if run.record is not None:
            run.record.load_state_dict({**_under(tensors, "record/"), **state["record"]})
        _unpack_optimiser(optimiser, tensors, state["optimiser"])
        run.generator.set_state(tensors["generator"])
        torch.set_rng_state(tensors["torch_generator"])
        run.oracle.go_on_from(int(state["queries"]), tensors["spent"].numpy().astype(np.int64))
        run.oracle.log.restore(state["log"], tensors["log"].numpy())
        run.oracle.accounts.drops[:] = [Drops(**drops) for drops in state["drops"]]
        run.round = int(state["round"])
        history = History.from_json(state["history"], state["groups"], state["events"])
        history.symbol = str(state["symbol"])
        return history
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{folder / STATE} lacks or garbles a field: {error}") from error


def _settings(trainer: Trainer, run: Run, optimiser: Optimizer) -> dict[str, Any]:
    """What must agree for a resumed run to be the same run."""
    return {
        "strategy": {"name": trainer.strategy.name, **_plain_fields(trainer.strategy)},
        "rounds": trainer.rounds,
        "chunks": len(run.chunks),
        "local_steps": trainer.local_steps,
        "passes": trainer.passes,
        "loss_batch": trainer.loss_batch,
        "average": trainer.average,
        "seed": trainer.seed,
        "rows": len(run.target),
        "attributes": list(run.attributes),
        "plan": run.oracle.plan.hex(),
        "record_privacy": _record_settings(trainer, run),
        "optimiser": type(optimiser).__name__,
        "loss": _loss_name(trainer),
        "data": run.fingerprint,
    }


def _record_settings(trainer: Trainer, run: Run) -> dict[str, Any] | None:
    """Other records under the same noise would show their difference: never without the data."""
    if trainer.record_privacy is None:
        return None
    return {
        **vars(trainer.record_privacy),
        "warmup_steps": trainer.warmup_steps,
        "loss": _loss_name(trainer),
        "data": run.fingerprint,
    }


def _loss_name(trainer: Trainer) -> str:
    return str(getattr(trainer.loss, "__qualname__", type(trainer.loss).__qualname__))


def _plain_fields(strategy: object) -> dict[str, Any]:
    """A strategy's numbers and names as it was made; objects (your own notion) are left out."""
    if not is_dataclass(strategy):
        return {}
    values = {f.name: getattr(strategy, f.name) for f in fields(strategy) if f.init}
    return {k: v for k, v in values.items() if v is None or isinstance(v, int | float | str | bool)}


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        state = json.loads((folder / STATE).read_bytes())
        if not isinstance(state, dict) or state.get("schema") != SCHEMA:
            raise DataError(f"{folder / STATE} is not a checkpoint of schema {SCHEMA}")
        name = Path(str(state["tensors"])).name  # never outside the folder
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != state["sha256"]:
            raise VerificationError(f"{folder / name} is not the file that {STATE} describes")
        return state, load_file(folder / name)
    except OSError as error:
        raise ConfigError(f"no checkpoint in {folder}: {error.strerror}") from None
    except (json.JSONDecodeError, KeyError, SafetensorError) as error:
        raise DataError(f"{folder} holds no readable checkpoint: {error}") from error


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _split(state: State) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    return tensors, {n: v for n, v in state.items() if not isinstance(v, Tensor)}


def _pack_optimiser(optimiser: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors to safetensors, the rest (numbers, flags, tuples as lists) to JSON."""
    state = optimiser.state_dict()
    tensors: dict[str, Tensor] = {}
    plain: dict[str, dict[str, Any]] = {}
    for index, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"optimiser/{index}/{name}"] = value
            else:
                plain.setdefault(str(index), {})[name] = value
    return tensors, {"state": plain, "groups": state["param_groups"]}


def _unpack_optimiser(
    optimiser: Optimizer, tensors: dict[str, Tensor], saved: dict[str, Any]
) -> None:
    state: dict[int, dict[str, Any]] = {
        int(index): dict(entries) for index, entries in saved["state"].items()
    }
    for name, value in _under(tensors, "optimiser/").items():
        index, entry = name.split("/", 1)
        state.setdefault(int(index), {})[entry] = value
    optimiser.load_state_dict({"state": state, "param_groups": saved["groups"]})


__all__ = ["SCHEMA", "check_folder", "restore", "save"]
