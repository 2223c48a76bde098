"""Read the state_dict of a file that torch.save wrote, without running code in it.

torch.load(weights_only=True) builds tensors and plain containers and refuses every other object before it is created.
Nothing else in advibp reads a pickle.
"""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from advibp.errors import UserError

#: Names of files that torch.save writes.
SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
#: Keys under which training scripts save a state_dict.
NESTED = ("state_dict", "model_state_dict", "model", "net")
SAVE = 'torch.save(net.state_dict(), "w.pt")'


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a state_dict, which may be nested under one of the keys `NESTED`.

    Args:
        path: the file.

    Raises:
        UserError: the file is damaged, contains other objects than tensors and plain containers, or no state_dict.

    Examples:
        ```python
        torch.save({"epoch": 7, "state_dict": net.state_dict()}, "w.pt")
        read_state_dict(Path("w.pt"))
        ```
    """
    _check_archive(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise UserError(f"{path} does not fit into memory; save only the weights with {SAVE}.") from None
    except Exception as error:  # torch has no common class for errors of damaged files
        raise (_refusal(path, error) or _damaged(path)) from None
    return _state_dict(content, path)


def _check_archive(path: Path) -> None:
    """Raise if a zip archive is compressed: torch.save does not compress, and a small file could fill the memory."""
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            compressed = any(info.file_size != info.compress_size for info in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        raise _damaged(path) from None
    if compressed:
        raise UserError(
            f"{path} is a compressed archive, which torch.save does not write for weights; save them with {SAVE}."
        )


def _refusal(path: Path, error: Exception) -> UserError | None:
    """Return the error for a file with other objects than tensors; None if torch failed for another reason."""
    found = re.search(r"(?:GLOBAL|Unsupported class) ([\w.]+)", str(error))
    # The tar format of early versions, and TorchScript archives, contain pickles that torch can't restrict.
    if not found and (isinstance(error, pickle.UnpicklingError) or "weights_only" not in str(error)):
        return None
    what = f"the object {found[1]}" if found else "objects other than tensors"
    return UserError(
        f"{path} was not loaded: it contains {what}, which could run code; save only the weights with {SAVE}, and give "
        "that file."
    )


def _damaged(path: Path) -> UserError:
    return UserError(f"{path} is not a valid file of torch.save; save the weights with {SAVE}, and give that file.")


def _state_dict(content: Any, path: Path) -> dict[str, Tensor]:
    """Find the mapping of names to tensors."""
    for key in ("", *NESTED):
        found = content.get(key) if key and isinstance(content, Mapping) else content
        if isinstance(found, Mapping) and found and all(isinstance(name, str) for name in found):
            tensors = {name: value for name, value in found.items() if isinstance(value, Tensor)}
            if len(tensors) == len(found):
                return _checked(tensors, path)
    raise UserError(f"{path} contains no state_dict, i.e. tensors by name; save the weights with {SAVE}.")


def _checked(tensors: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return ordinary tensors: not sparse, not quantized, not on the meta device."""
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            raise UserError(f"'{name}' in {path} is sparse, quantized or has no values; save a dense tensor.")
    return {name: tensor.detach() for name, tensor in tensors.items()}
