"""BatchNorm in a step of several passes: the statistics of one pass, captured there and reused by the others.

A set of inputs has no mean and variance of its own, and an attack must not leave a trace. So within a step

    a plain pass       normalizes with its batch's statistics, captures them, and touches the running ones, once;
    a quiet pass       (of an attack) normalizes with its batch's statistics and leaves no trace;
    a pass on a set    normalizes with the captured statistics.

With `clean`, a forward pass on the clean images captures, and all the others reuse.

The gradient of a reusing pass flows on through the statistics into the pass that was captured. It must: a layer in
front of BatchNorm may be scaled without any effect, but with constant statistics smaller weights would seem to narrow
the bounds, and training follows that: from random first weights every trial ended next to guessing.

The price, in forward-equivalents on top of a joint step's eleven: two for the adversarial pass's statistics (one more
backward pass), five for a clean pass's (a forward pass, and a backward pass for each of the two losses).

It catches `F.batch_norm` itself, so it serves `nn.BatchNorm` layers and functional networks alike.
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
    mean: Tensor
    var: Tensor

    def normalize(self, input: Any, weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
        """weight (z - mean) / sqrt(var + eps) + bias for z (B, C, ...), with a gradient for mean and var too."""
        scale = (self.var + eps).rsqrt() if weight is None else weight * (self.var + eps).rsqrt()
        shift = -self.mean * scale if bias is None else bias - self.mean * scale
        per_channel = (-1, *[1] * (len(input.shape) - 2))
        return input * scale.view(per_channel) + shift.view(per_channel)


class Statistics(TorchFunctionMode):
    """The BatchNorm statistics of one step; `with Statistics(net):` around its passes."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self._counters = {id(m.num_batches_tracked) for m in net.modules() if isinstance(m, _BatchNorm)}
        # By layer, told apart by its running mean; a layer that runs several times in a pass has several.
        self._captured: dict[int, list[_Captured]] = {}
        self._reused: dict[int, int] = {}
        self._counted: set[int] = set()
        self._quiet = self._reuse = False

    def capture(self, net: Any, x: Tensor) -> None:
        """The clean pass: from here on every pass reuses its statistics."""
        run_on_copy(net, x)
        self._reuse = True

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.batch_norm:
            return self._batch_norm(*args, **(kwargs or {}))
        if func is Tensor.add_ and id(args[0]) in self._counters:
            if self._quiet or self._reuse or id(args[0]) in self._counted:
                return args[0]  # num_batches_tracked counts steps, not passes
            self._counted.add(id(args[0]))
        if func is Tensor.__float__ and id(args[0]) in self._counters:
            return max(1.0, func(*args))  # momentum=None divides by the count, also when an attack comes first
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
            turn = self._reused.get(key, 0)
            self._reused[key] = turn + 1
            return self._captured[key][turn % len(self._captured[key])].normalize(input, weight, bias, eps)
        if input.numel() == input.shape[1]:
            raise UserError(
                "A batch of one image has no statistics for BatchNorm; use larger batches, and drop_last=True in a "
                "DataLoader of your own."
            )
        if self._quiet:
            return F.batch_norm(input, None, None, weight, bias, True, 0.0, eps)
        output = F.batch_norm(input, running_mean, running_var, weight, bias, True, momentum, eps)
        var, mean = torch.var_mean(input, [d for d in range(input.dim()) if d != 1], correction=0)
        self._captured.setdefault(key, []).append(_Captured(mean, var))
        return output


class Population(TorchFunctionMode):
    """BatchNorm as in evaluation, whatever mode its layers are in: for the frozen part of a network."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.batch_norm and "training" in (kwargs or {}):
            kwargs = {**(kwargs or {}), "training": False}
        return func(*args, **(kwargs or {}))


_active: list[Statistics] = []


@contextmanager
def step(net: nn.Module, needed: bool) -> Iterator[Statistics | None]:
    """Around the passes of a step; None where the network has no BatchNorm in training mode."""
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
def quietly() -> Iterator[None]:
    """Around an attack: its passes leave no trace in BatchNorm's statistics."""
    statistics = _active[-1] if _active else None
    if statistics is None:
        yield
        return
    statistics._quiet = True
    try:
        yield
    finally:
        statistics._quiet = False


class _Noting(TorchFunctionMode):
    seen = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.batch_norm and (kwargs or {}).get("training") and args[1] is not None:
            self.seen = True
        return func(*args, **(kwargs or {}))


def in_training(net: nn.Module, x: Tensor) -> bool:
    """Whether `net` normalizes x (B, ...) by statistics of the batch and keeps running ones, in layers or not."""
    with torch.no_grad(), _Noting() as noting:
        run_on_copy(net, x)
    return noting.seen
