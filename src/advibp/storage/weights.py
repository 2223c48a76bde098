"""Load a user's weights from a safetensors file or a torch file into a network, without running code."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from advibp.errors import UserError
from advibp.storage import checkpoint
from advibp.storage.torch_files import SUFFIXES, read_state_dict

#: Prefixes that nn.DataParallel and torch.compile add to all names.
PREFIXES = ("module.", "_orig_mod.")
SAVE = 'safetensors.torch.save_file(net.state_dict(), "w.safetensors")'


def load_weights(net: nn.Module, path: str | Path) -> None:
    """Load weights from a safetensors file, or a .pt or .pth file of torch.save, into a network, in place.

    Of a torch file only tensors are read, by torch.load(weights_only=True); a file with any other objects than plain
    containers is refused, and no code in it runs. The state_dict may be nested under "state_dict", "model_state_dict",
    "model" or "net". The prefixes "module." and "_orig_mod.", which nn.DataParallel and torch.compile add to all names,
    are removed.

    The file and the network must have the same tensor names and shapes, and all values must be finite. Tensors of
    another floating-point type are converted to the network's type. If anything does not match, the network is not
    changed.

    Args:
        net: the network.
        path: a saved state_dict, or the model.safetensors of a run.

    Raises:
        UserError: the file is missing, damaged or contains other objects than tensors, or does not match the network.

    Examples:
        ```python
        safetensors.torch.save_file(net.state_dict(), "w.safetensors")
        load_weights(net, "w.safetensors")
        ```
    """
    path = Path(path)
    expected = {name: value for name, value in net.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}
    if any(is_lazy(value) for value in expected.values()):
        raise UserError(f"The network has lazy layers, so {path} can't be loaded; run it on an image first.")
    loaded = _without_prefix(_read(path), expected)
    _check_names(expected, loaded, path)
    net.load_state_dict({name: _converted(name, expected[name], value, path) for name, value in loaded.items()})


def _read(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file. The checksum of a file that advibp wrote is compared."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; give a file in it, such as {path / 'model.safetensors'}.")
    if not path.is_file():
        raise UserError(f"The weights {path} do not exist; save them with {SAVE}.")
    if path.suffix.lower() in SUFFIXES:
        return read_state_dict(path)
    if _is_pickle(path):
        raise UserError(
            f"{path} is a pickle by its first bytes, which can run code when it is loaded; save the weights with "
            f"{SAVE}, or rename the file to .pt if torch.save wrote it."
        )
    try:
        with safe_open(path, framework="pt") as file:
            if "advibp" in (file.metadata() or {}):
                return checkpoint.load(path)[0]
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except UserError:  # from checkpoint.load
        raise
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is not a valid safetensors file ({error}); save the weights with {SAVE}.") from None


def _is_pickle(path: Path) -> bool:
    """Return whether a file is a pickle, or a zip archive as torch.save writes it."""
    with path.open("rb") as file:
        head = file.read(9)
    # A safetensors file starts with the length of its header and "{". That length can look like the start of a pickle.
    pickled = head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5") and head[8:] != b"{"
    return pickled or head[:4] == b"PK\x03\x04"


def _without_prefix(loaded: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove a prefix that all loaded names have, and no name of the network."""
    for prefix in PREFIXES:
        in_all, in_net = all(name.startswith(prefix) for name in loaded), any(n.startswith(prefix) for n in expected)
        if in_all and not in_net:
            loaded = {name.removeprefix(prefix): value for name, value in loaded.items()}
    return loaded


def _check_names(expected: dict[str, Tensor], loaded: dict[str, Tensor], path: Path) -> None:
    """Check that names and shapes are the same."""
    missing = [name for name in expected if name not in loaded]
    unknown = [name for name in loaded if name not in expected]
    shapes = [name for name in expected if name in loaded and expected[name].shape != loaded[name].shape]
    problems = [
        f"{len(names)} {problem} ({'' if len(names) == 1 else 'first '}'{names[0]}')"
        for names, problem in ((missing, "missing"), (unknown, "unknown"), (shapes, "of another shape"))
        if names
    ]
    if shapes:
        problems[-1] = problems[-1][:-1] + f", {tuple(loaded[shapes[0]].shape)} for {tuple(expected[shapes[0]].shape)})"
    if problems:
        raise UserError(
            f"The weights in {path} do not match this network: of the network's {len(expected)} tensors and the file's "
            f"{len(loaded)}, {', '.join(problems)}; give the network they belong to."
        )


def _converted(name: str, expected: Tensor, loaded: Tensor, path: Path) -> Tensor:
    """Return a loaded tensor in the network's dtype. Both must be of the same kind: real, complex, integer or bool."""
    if _kind(loaded) != _kind(expected):
        raise UserError(
            f"'{name}' in {path} has type {loaded.dtype}, but the network's is {expected.dtype}; convert it first."
        )
    converted = loaded.to(expected.dtype)
    if not bool(converted.isfinite().all()):  # checked after the conversion, because that can overflow
        raise UserError(f"'{name}' in {path} has NaN or infinite values as {expected.dtype}; train that network again.")
    return converted


def _kind(tensor: Tensor) -> str:
    if tensor.dtype == torch.bool:
        return "bool"
    return "complex" if tensor.is_complex() else "real" if tensor.is_floating_point() else "whole"
