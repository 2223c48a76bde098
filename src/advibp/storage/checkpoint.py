"""Atomic writes, and checkpoints as safetensors files with a checksum. No pickle is used."""

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
from advibp.execution.memory_format import match_layout

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

FORMAT = 2


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a temporary file, flush it and rename it. If the process is killed, the old or the new file remains."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # the error of a full disk has no file name
        raise


def _digest(tensors: dict[str, Tensor], facts: str = "") -> str:
    """Return the SHA-256 of tensors and text."""
    sha = hashlib.sha256(facts.encode())
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sha.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def save(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any] | None = None) -> None:
    """Write tensors and facts to one safetensors file.

    Args:
        path: the file.
        tensors: tensors by name; they are copied to the CPU.
        facts: any mapping that JSON can represent.
    """
    # Copies, because safetensors refuses tensors that share memory. Zero-dimensional tensors keep their shape.
    copies = {k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}
    text = json.dumps(facts or {})
    # A single metadata key, because safetensors writes several keys in random order.
    metadata = json.dumps({"format": FORMAT, "sha256": _digest(copies, text), "facts": text})
    write_atomically(path, to_bytes(copies, metadata={"advibp": metadata}))


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load a file that `save` wrote.

    Returns:
        The tensors and the facts.

    Raises:
        UserError: the file is missing, was not written by `save`, or a bit of it has changed.
    """
    try:
        with safe_open(path, framework="pt") as file:
            raw = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; give the folder of a run from `advibp train --out`.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}); delete it to continue from an earlier checkpoint.") from None
    metadata = _parse_metadata(raw)
    if metadata is None:
        raise UserError(
            f"{path} is not an advibp file of format {FORMAT}; another program or another version wrote it."
        )
    if metadata.get("sha256") != _digest(tensors, metadata.get("facts", "")):
        raise UserError(f"{path} is damaged (its checksum differs); delete it to continue from an earlier checkpoint.")
    return tensors, json.loads(metadata["facts"])


def _parse_metadata(raw: dict[str, str]) -> dict[str, Any] | None:
    """Return `sha256` and `facts` of a file's metadata, or None if advibp did not write it.

    Format 1 had one metadata key for each.
    """
    if raw.get("advibp") == "1":
        return dict(raw)
    try:
        metadata = json.loads(raw.get("advibp", ""))
    except (ValueError, RecursionError):
        return None
    valid = isinstance(metadata, dict) and metadata.get("format") == FORMAT and isinstance(metadata.get("facts"), str)
    return metadata if valid else None


def load_state(net: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Copy weights into a network of the same structure.

    Args:
        net: the network.
        tensors: its state_dict.
        path: the file of the weights, for the error message.
    """
    try:
        net.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        raise mismatch_error(error, path) from None


def mismatch_error(error: RuntimeError, path: Path) -> UserError:
    """Return the error for a state_dict that does not match a network."""
    first = str(error).split("\n")[1].strip()
    return UserError(f"The weights in {path} do not match this network ({first}); give the network they belong to.")


def file_name(steps: int) -> str:
    """Return the name of the checkpoint after this many steps."""
    return f"step-{steps:09d}.safetensors"


def newest(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, newest first."""
    return sorted(folder.glob("step-*.safetensors"), reverse=True)


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest checkpoints."""
    for old in newest(folder)[keep:]:
        old.unlink()
    remove_temporary_files(folder)


def remove_temporary_files(folder: Path) -> None:
    """Remove the temporary files that remain if a process is killed during `write_atomically`."""
    for file in folder.glob(".*.*"):
        if file.suffix[1:].isdecimal():
            file.unlink(missing_ok=True)


@contextmanager
def lock(folder: Path, doing: str, swept: Iterable[Path]) -> Iterator[None]:
    """Lock a folder for this process. The operating system releases the lock when the process ends.

    Args:
        folder: the folder.
        doing: the activity, such as "training", for the error message of other processes.
        swept: folders from which temporary files are removed.
    """
    if fcntl is None:  # Windows has no flock
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{folder} is in use: another process is {doing} there; wait until it ends.") from None
        except OSError:  # some network drives have no locks
            swept = ()
        for part in swept:
            remove_temporary_files(part)
        yield
    finally:
        os.close(handle)


def group(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names start with `prefix.`, without the prefix."""
    return {k.removeprefix(f"{prefix}."): v for k, v in tensors.items() if k.startswith(f"{prefix}.")}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state as tensors named "parameter number.entry"."""
    state = optimizer.state_dict()["state"]
    return {f"{i}.{k}": torch.as_tensor(v) for i, entry in state.items() for k, v in entry.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Load the tensors of `optimizer_tensors` into an optimizer, in the memory format of its parameters."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        number, key = name.split(".", 1)
        like = params[int(number)]
        state.setdefault(int(number), {})[key] = match_layout(value, like) if value.shape == like.shape else value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def fingerprint(tensors: dict[str, Tensor]) -> str:
    """Return twelve hex digits that identify these tensors, such as a network's state_dict."""
    return _digest({k: v.detach().cpu() for k, v in tensors.items()})[:12]
