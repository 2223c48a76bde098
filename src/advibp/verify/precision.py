"""Bounds are computed in the precision of their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import nn

from advibp.bounds.domain import is_low
from advibp.errors import UserError

#: What a proof covers: every evaluation of the network in a floating-point type, or the function of real numbers that
#: its weights define. Bounds in real arithmetic ignore rounding errors, as papers report them.
Arithmetic = Literal["float32", "float64", "real"]
ARITHMETICS: tuple[str, ...] = get_args(Arithmetic)


@contextmanager
def full_precision() -> Iterator[None]:
    """Products of float32 in float32: no TF32, whose ten bits of mantissa would put errors of 1e-3 into a proof, and no
    bfloat16, which `torch.set_float32_matmul_precision("medium")` allows. The user's settings come back afterwards."""
    before = [(setting, setting.value()) for setting in _settings()]
    known = [(setting, value) for setting, value in before if value is not None]
    try:
        for setting, _ in known:
            setting.put(setting.full)
        yield
    finally:
        for setting, value in known:
            setting.put(value)


@dataclass(frozen=True)
class _Setting:
    """One of torch's switches: how it is read and set, and its value for full precision."""

    get: Callable[[], Any]
    put: Callable[[Any], None]
    full: Any

    def value(self) -> Any:
        """None where torch does not know it, or refuses to tell as the user set it by the newer switches."""
        try:
            return self.get()
        except (AttributeError, RuntimeError):
            return None


def _settings() -> list[_Setting]:
    """The older switches first: they also set the newer ones (from torch 2.9 on), whose values are then exact."""
    backends: Any = torch.backends
    older = [
        _Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"),  # CUDA's too
        _switch(backends.cudnn, "allow_tf32", False),
        _switch(backends.mkldnn, "allow_tf32", False),
    ]
    places = [(backends.cuda, "matmul"), *((backends.cudnn, op) for op in ("conv", "rnn"))]
    places += [(backends.mkldnn, op) for op in ("matmul", "conv", "rnn")]
    newer = [_switch(getattr(owner, op), "fp32_precision", "ieee") for owner, op in places if hasattr(owner, op)]
    return older + newer


def _switch(owner: Any, name: str, full: Any) -> _Setting:
    return _Setting(lambda: getattr(owner, name), lambda value: setattr(owner, name, value), full)


def check_types(net: nn.Module) -> None:
    """Refuse a network with numbers of low precision, and an autocast that is on: a proof covers neither's rounding."""
    if is_low(torch.get_default_dtype()):
        raise UserError(f"torch's default is {torch.get_default_dtype()}; call torch.set_default_dtype(torch.float32).")
    tensors = [*net.named_parameters(), *net.named_buffers()]
    for name, tensor in tensors:
        if is_low(tensor.dtype):
            raise UserError(
                f"'{name}' of the network is {tensor.dtype}, whose rounding no proof covers; certify net.float()."
            )
    for device in {tensor.device.type for _, tensor in tensors}:
        if autocasts(device):
            raise UserError(
                f"autocast is on for {device}, so the network would not compute what is proved; certify outside of "
                f"torch.autocast."
            )


def autocasts(device: str) -> bool:
    """Whether torch.autocast is on for this type of device."""
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
