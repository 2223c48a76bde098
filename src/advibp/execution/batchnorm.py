"""BatchNorm statistics that are shared by all forward passes of a training step.

A set of inputs has no mean and variance of its own, and an attack must not change the running statistics. Within a
step

    a plain pass       normalizes with its batch's statistics, captures them and updates the running statistics once;
    an untracked pass  (of an attack) normalizes with its batch's statistics and changes nothing;
    a pass on a set    normalizes with the captured statistics.

With the option `batchnorm: clean` a forward pass on the clean images captures, and all other passes reuse.

The gradient of a reusing pass flows through the statistics into the captured pass. This is necessary. The output of
BatchNorm does not depend on the scale of the layer before it, but with constant statistics smaller weights would seem
to narrow the bounds. Training would then shrink the weights: from random initial weights every trial ended close to
the error of random guessing.

Cost, in forward passes on top of the eleven of a joint step: two for statistics of the adversarial pass (one more
backward pass), five for those of a clean pass (a forward pass, and a backward pass for each of the two losses).

The statistics are captured at `F.batch_norm`, so `nn.BatchNorm` layers and functional networks work alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from advibp.errors import UserError
from advibp.execution.own_copy import run_on_copy


class _Captured(NamedTuple):
    """Statistics (C,) of one call of BatchNorm."""

    mean: Tensor
    var: Tensor

    def normalize(self, input: Any, weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
        """Return weight (z - mean) / sqrt(var + eps) + bias for z (B, C, ...), differentiable in mean and var."""
        scale = (self.var + eps).rsqrt() if weight is None else weight * (self.var + eps).rsqrt()
        shift = -self.mean * scale if bias is None else bias - self.mean * scale
        per_channel = (-1, *[1] * (len(input.shape) - 2))
        return input * scale.view(per_channel) + shift.view(per_channel)


class Statistics(TorchFunctionMode):
    """The BatchNorm statistics of one step. Use `with Statistics(net):` around its passes."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self._counters = {id(m.num_batches_tracked) for m in net.modules() if isinstance(m, _BatchNorm)}
        # Key: id of the layer's running mean. A layer that runs several times in a pass has several entries.
        self._captured: dict[int, list[_Captured]] = {}
        self._reused: dict[int, int] = {}
        self._counted: set[int] = set()
        self._untracked = self._reuse = False

    def capture(self, net: Any, x: Tensor) -> Tensor:
        """Run the clean pass and return its logits. From then on every pass reuses its statistics."""
        logits: Tensor = run_on_copy(net, x)
        self._reuse = True
        return logits

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.batch_norm:
            return self._batch_norm(*args, **(kwargs or {}))
        if func is Tensor.add_ and id(args[0]) in self._counters:
            if self._untracked or self._reuse or id(args[0]) in self._counted:
                return args[0]  # num_batches_tracked counts steps, not passes
            self._counted.add(id(args[0]))
        if func is Tensor.__float__ and id(args[0]) in self._counters:
            return max(1.0, func(*args))  # momentum=None divides by the count, which is 0 if an attack runs first
        return func(*args, **(kwargs or {}))

    def _batch_norm(
        self,
        input: Any,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Any:
        if not training or running_mean is None or running_var is None:
            return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
        key = id(running_mean)
        if self._reuse or (key in self._captured and not isinstance(input, Tensor)):
            call = self._reused.get(key, 0)
            self._reused[key] = call + 1
            return self._captured[key][call % len(self._captured[key])].normalize(input, weight, bias, eps)
        if input.numel() == input.shape[1]:
            raise UserError(
                "BatchNorm cannot compute statistics from a batch of one image; use larger batches, and "
                "drop_last=True in your own DataLoader."
            )
        if self._untracked:
            return F.batch_norm(input, None, None, weight, bias, True, 0.0, eps)
        output = F.batch_norm(input, running_mean, running_var, weight, bias, True, momentum, eps)
        var, mean = torch.var_mean(input, [d for d in range(input.dim()) if d != 1], correction=0)
        self._captured.setdefault(key, []).append(_Captured(mean, var))
        return output


class Population(TorchFunctionMode):
    """Let BatchNorm use its running statistics in every mode: for the frozen part of a network."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.batch_norm and "training" in (kwargs or {}):
            kwargs = {**(kwargs or {}), "training": False}
        return func(*args, **(kwargs or {}))


_active: list[Statistics] = []


@contextmanager
def step(net: nn.Module, needed: bool) -> Iterator[Statistics | None]:
    """Share statistics among the passes of a step. Yields None if no BatchNorm is in training mode."""
    if not needed:
        yield None
        return
    with Statistics(net) as statistics:
        _active.append(statistics)
        try:
            yield statistics
        finally:
            _active.pop()


@contextmanager
def no_tracking() -> Iterator[None]:
    """Do not track BatchNorm statistics inside this context: for the passes of an attack."""
    statistics = _active[-1] if _active else None
    if statistics is None:
        yield
        return
    statistics._untracked = True
    try:
        yield
    finally:
        statistics._untracked = False


class _TrainingDetector(TorchFunctionMode):
    """Note whether BatchNorm in training mode updates running statistics."""

    found = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.batch_norm and (kwargs or {}).get("training") and args[1] is not None:
            self.found = True
        return func(*args, **(kwargs or {}))


def in_training(net: nn.Module, x: Tensor) -> bool:
    """Return whether `net` normalizes x (B, ...) by batch statistics and updates running statistics."""
    with torch.no_grad(), _TrainingDetector() as detector:
        run_on_copy(net, x)
    return detector.found
