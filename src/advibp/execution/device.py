"""The device that a recipe or an option names."""

from __future__ import annotations

import torch

from advibp.errors import UserError


def resolve_device(name: str) -> torch.device:
    """Return a device that works here.

    Args:
        name: "auto" (an accelerator if there is one, else the CPU), or a name of torch such as "cuda:1".

    Raises:
        UserError: if the device can't be used.
    """
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return accelerator or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).add(1).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(
            f"Device '{name}' can't be used here ({str(error).splitlines()[0]}); try --device auto."
        ) from None
    return device
