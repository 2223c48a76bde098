"""Weights of one's own into a network: a plain safetensors file, checked name by name. No pickle."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from advibp.errors import UserError
from advibp.storage import checkpoint

PICKLED = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt")
SAVE = 'safetensors.torch.save_file(net.state_dict(), "w.safetensors")'


def load_weights(net: nn.Module, path: str | Path) -> None:
    """Copy the weights in a safetensors file into `net`: its state_dict, or the model.safetensors of a run.

    Every tensor of the network must be there, in its shape, finite, and no other. A tensor of another floating-point
    type is converted to the network's. Nothing is copied unless all of it fits.
    """
    path = Path(path)
    own = {name: value for name, value in net.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}
    if any(is_lazy(value) for value in own.values()):
        raise UserError(f"The network has lazy layers, which {path} can't fill; run it on an image first.")
    given = _read(path)
    _check_names(own, given, path)
    net.load_state_dict({name: _fitted(name, own[name], value, path) for name, value in given.items()})


def _read(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; one that advibp wrote must match its checksum too."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; name the file in it, such as {path / 'model.safetensors'}.")
    if not path.is_file():
        raise UserError(f"The weights {path} do not exist; save them with {SAVE}.")
    if sign := _sign_of_pickle(path):
        raise UserError(
            f"{path} is a pickle by its {sign}, which can run code when it is read; save the weights with {SAVE} and "
            "give that file."
        )
    try:
        with safe_open(path, framework="pt") as file:
            if "advibp" in (file.metadata() or {}):
                return checkpoint.load(path)[0]
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except UserError:  # of a file that advibp wrote
        raise
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is no whole safetensors file ({error}); save the weights with {SAVE}.") from None


def _sign_of_pickle(path: Path) -> str | None:
    """What gives a pickle away. torch's own files are zip archives of one, or begin with one."""
    if path.suffix.lower() in PICKLED:
        return "name"
    with path.open("rb") as file:
        head = file.read(9)
    # safetensors begin with the length of their header and "{", so that length may look like a pickle's first bytes.
    pickled = head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5") and head[8:] != b"{"
    return "first bytes" if pickled or head[:4] == b"PK\x03\x04" else None


def _check_names(own: dict[str, Tensor], given: dict[str, Tensor], path: Path) -> None:
    missing = [name for name in own if name not in given]
    strange = [name for name in given if name not in own]
    shapes = [name for name in own if name in given and own[name].shape != given[name].shape]
    wrong = [
        f"{len(names)} {what} ({'' if len(names) == 1 else 'first '}'{names[0]}')"
        for names, what in ((missing, "missing"), (strange, "unknown to it"), (shapes, "of another shape"))
        if names
    ]
    if shapes:
        wrong[-1] = wrong[-1][:-1] + f", {tuple(given[shapes[0]].shape)} for {tuple(own[shapes[0]].shape)})"
    if wrong:
        raise UserError(
            f"The weights in {path} do not fit this network: of its {len(own)} tensors and the file's {len(given)}, "
            f"{', '.join(wrong)}; name the network they belong to."
        )


def _fitted(name: str, own: Tensor, given: Tensor, path: Path) -> Tensor:
    """The tensor in the network's type, unless that would be another kind of number."""
    if _kind(given) != _kind(own):
        raise UserError(f"'{name}' in {path} holds {given.dtype}, but the network's is {own.dtype}; convert it first.")
    fitted = given.to(own.dtype)
    if not bool(fitted.isfinite().all()):  # after the conversion, in which a large number may overflow
        raise UserError(f"'{name}' in {path} has NaN or infinite values as {own.dtype}; train that network again.")
    return fitted


def _kind(tensor: Tensor) -> str:
    if tensor.dtype == torch.bool:
        return "bool"
    return "complex" if tensor.is_complex() else "real" if tensor.is_floating_point() else "whole"
