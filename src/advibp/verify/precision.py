"""Checks and sets the precision of computations, so that bounds are computed in the type of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import nn

from advibp.bounds.domain import is_low_precision
from advibp.errors import UserError

#: What a proof covers: every evaluation of the network in a floating-point type, or the function of real numbers that
#: its weights define. Bounds in real arithmetic ignore rounding errors, as papers report them.
Arithmetic = Literal["float32", "float64", "real"]
ARITHMETICS: tuple[str, ...] = get_args(Arithmetic)


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute float32 products in float32, without TF32 and without bfloat16. The user's settings are restored.

    TF32 has a mantissa of ten bits, so its errors of 1e-3 would invalidate a proof. The setting "medium" of
    `torch.set_float32_matmul_precision` allows bfloat16.
    """
    values = [(setting, setting.value()) for setting in _settings()]
    readable = [(setting, value) for setting, value in values if value is not None]
    try:
        for setting, _ in readable:
            setting.put(setting.full)
        yield
    finally:
        for setting, value in readable:
            setting.put(value)


@dataclass(frozen=True)
class _Setting:
    """A setting of torch: functions that read and write it, and its value for full precision."""

    get: Callable[[], Any]
    put: Callable[[Any], None]
    full: Any

    def value(self) -> Any:
        """The value; None if torch lacks the setting, or can't read it because the user changed the newer one."""
        try:
            return self.get()
        except (AttributeError, RuntimeError):
            return None


def _settings() -> list[_Setting]:
    """All settings, the older ones first, because from torch 2.9 on they also change the newer ones."""
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
    """A setting that is an attribute."""
    return _Setting(lambda: getattr(owner, name), lambda value: setattr(owner, name, value), full)


def check_types(net: nn.Module) -> None:
    """Raise a UserError for a network in low precision or under autocast, whose rounding errors no proof covers."""
    if is_low_precision(torch.get_default_dtype()):
        raise UserError(f"torch's default is {torch.get_default_dtype()}; call torch.set_default_dtype(torch.float32).")
    tensors = [*net.named_parameters(), *net.named_buffers()]
    for name, tensor in tensors:
        if is_low_precision(tensor.dtype):
            raise UserError(
                f"'{name}' of the network is {tensor.dtype}, whose rounding errors no proof covers; certify "
                f"net.float()."
            )
    for device in {tensor.device.type for _, tensor in tensors}:
        if autocasts(device):
            raise UserError(
                f"autocast is on for {device}, whose rounding errors no proof covers; certify outside of "
                f"torch.autocast."
            )


def autocasts(device: str) -> bool:
    """Whether torch.autocast is on for this type of device."""
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
