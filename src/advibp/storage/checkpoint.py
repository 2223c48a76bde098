"""Files that are whole or absent: atomic writes, and checkpoints as safetensors with a checksum. No pickle."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from advibp.errors import UserError
from advibp.execution.memory_format import laid_out_like

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

FORMAT = 2


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write beside the target, flush to the disk, then rename: a kill at any moment leaves the old file or the new."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException as error:
        beside.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # a disk that is full does not say where
        raise


def _digest(tensors: dict[str, Tensor], facts: str = "") -> str:
    sha = hashlib.sha256(facts.encode())
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sha.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def save(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any] | None = None) -> None:
    """Tensors and a few facts (anything JSON can hold) in one safetensors file."""
    # Zero-dimensional tensors keep their shape; clones because safetensors refuses tensors that share memory.
    held = {k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}
    text = json.dumps(facts or {})
    # One key: safetensors writes several in random order, and the same content would not give the same file.
    about = json.dumps({"format": FORMAT, "sha256": _digest(held, text), "facts": text})
    write_atomically(path, to_bytes(held, metadata={"advibp": about}))


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save` wrote. Anything else, also a single flipped bit, is a UserError."""
    try:
        with safe_open(path, framework="pt") as file:
            meta = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; give the folder of a run that `advibp train --out` made.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}); delete it to go on from an earlier checkpoint.") from None
    about = _about(meta)
    if about is None:
        raise UserError(
            f"{path} is no advibp file of format {FORMAT}; it was written by something else or another version."
        )
    if about.get("sha256") != _digest(tensors, about.get("facts", "")):
        raise UserError(f"{path} is damaged (its checksum differs); delete it to go on from an earlier checkpoint.")
    return tensors, json.loads(about["facts"])


def _about(meta: dict[str, str]) -> dict[str, Any] | None:
    """What the metadata say: `sha256` and `facts`. Format 1 had a key for each of them."""
    if meta.get("advibp") == "1":
        return dict(meta)
    try:
        about = json.loads(meta.get("advibp", ""))
    except (ValueError, RecursionError):
        return None
    ours = isinstance(about, dict) and about.get("format") == FORMAT and isinstance(about.get("facts"), str)
    return about if ours else None


def load_state(net: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Copy weights into a network of the same structure."""
    try:
        net.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        raise unfit(error, path) from None


def unfit(error: RuntimeError, path: Path) -> UserError:
    """What a user is told when a state_dict does not fit a network."""
    first = str(error).split("\n")[1].strip()
    return UserError(f"The weights in {path} do not fit this network ({first}); name the network they belong to.")


def file_name(steps: int) -> str:
    return f"step-{steps:09d}.safetensors"


def newest(folder: Path) -> list[Path]:
    """Checkpoints of a run, newest first."""
    return sorted(folder.glob("step-*.safetensors"), reverse=True)


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest checkpoints."""
    for old in newest(folder)[keep:]:
        old.unlink()
    sweep(folder)


def sweep(folder: Path) -> None:
    """Remove what a kill in the middle of `write_atomically` left behind."""
    for left in folder.glob(".*.*"):
        if left.suffix[1:].isdecimal():
            left.unlink(missing_ok=True)


@contextmanager
def held(folder: Path, doing: str, swept: Iterable[Path]) -> Iterator[None]:
    """A folder for this process alone, and parts of it swept. The system lets go of it when the process ends."""
    if fcntl is None:  # Windows has no such thing
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{folder} is in use: another process is {doing} there; wait for it.") from None
        except OSError:  # some network drives have no locks
            swept = ()
        for part in swept:
            sweep(part)
        yield
    finally:
        os.close(handle)


def group(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under `prefix.`, without it."""
    return {k.removeprefix(f"{prefix}."): v for k, v in tensors.items() if k.startswith(f"{prefix}.")}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state, one name per parameter number and entry."""
    state = optimizer.state_dict()["state"]
    return {f"{i}.{k}": torch.as_tensor(v) for i, entry in state.items() for k, v in entry.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    params = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        number, key = name.split(".", 1)
        like = params[int(number)]
        state.setdefault(int(number), {})[key] = laid_out_like(value, like) if value.shape == like.shape else value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def fingerprint(tensors: dict[str, Tensor]) -> str:
    """Twelve hex digits that tell these tensors from others: a network's state_dict, an image and its label."""
    return _digest({k: v.detach().cpu() for k, v in tensors.items()})[:12]
