"""The weights and BatchNorm statistics of evaluation: stochastic weight averaging, and population statistics.

Stochastic weight averaging (SWA, Izmailov et al. 2018) keeps the mean of the weights of several steps near the end of a
training. The mean network is evaluated and saved; the training goes on with its own weights. The running statistics of
BatchNorm do not fit averaged weights, so they are computed again from all training images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from advibp.execution.memory_format import match_layout
from advibp.execution.modes import preserve_modes
from advibp.execution.own_copy import run_on_copy


class WeightAverage:
    """The running mean of a network's parameters.

    Args:
        net: the network.
        start: the step after which the weights are averaged; None: never.
        every: steps between the weights that are averaged.

    Examples:
        >>> import torch
        >>> from advibp.training.averaging import WeightAverage
        >>> net = torch.nn.Linear(1, 1, bias=False)
        >>> average = WeightAverage(net, start=0, every=1)
        >>> for step, weight in enumerate((1.0, 2.0, 6.0), 1):
        ...     _ = torch.nn.init.constant_(net.weight, weight)
        ...     average.observe(step)
        >>> with average.applied():
        ...     net.weight.item()
        3.0
        >>> net.weight.item()
        6.0
    """

    def __init__(self, net: nn.Module, start: float | None, every: int) -> None:
        self.net, self.start, self.every, self.count = net, start, every, 0
        self.mean: dict[str, Tensor] = {}

    @torch.no_grad()
    def observe(self, steps: int) -> None:
        """Take in the current weights after a number of steps, if they are to be averaged."""
        if self.start is None or steps <= self.start or steps % self.every:
            return
        self.count += 1
        for name, p in self.net.named_parameters():
            if self.count == 1:
                self.mean[name] = p.detach().clone()
            else:
                self.mean[name].lerp_(p.detach(), 1 / self.count)

    @contextmanager
    def applied(self) -> Iterator[bool]:
        """Replace the weights by their mean until the context ends. Yields whether there is a mean."""
        if not self.count:
            yield False
            return
        params = dict(self.net.named_parameters())
        own = {name: params[name].detach().clone() for name in self.mean}
        self._write(self.mean)
        try:
            yield True
        finally:
            self._write(own)

    @torch.no_grad()
    def _write(self, values: dict[str, Tensor]) -> None:
        params = dict(self.net.named_parameters())
        for name, value in values.items():
            params[name].copy_(value)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the mean and the number of averaged weights; an empty dictionary before the first."""
        return {"count": torch.tensor(self.count), **self.mean} if self.count else {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        params = dict(self.net.named_parameters())
        self.count = int(state["count"]) if state else 0
        self.mean = {
            name: match_layout(value.to(params[name].device), params[name]).clone()
            for name, value in state.items()
            if name != "count"
        }


@contextmanager
def population_statistics(
    net: nn.Module, layers: Sequence[_BatchNorm], batches: Callable[[], Iterator[Tensor]]
) -> Iterator[None]:
    """Let BatchNorm have the mean statistics of all batches until the context ends.

    Args:
        net: the network.
        layers: the layers whose statistics are computed. The others keep theirs.
        batches: returns an iterator over batches of images, (B, ...).
    """
    if not layers:
        yield
        return
    kept = [{name: buffer.clone() for name, buffer in layer.named_buffers()} for layer in layers]
    momenta = [layer.momentum for layer in layers]
    with preserve_modes(net), torch.no_grad():
        net.eval()
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # the mean of all batches
            layer.train()
        try:
            for x in batches():
                if len(x) > 1:  # one image has no variance
                    run_on_copy(net, x)
        finally:
            for layer, momentum in zip(layers, momenta, strict=True):
                layer.momentum = momentum
    try:
        yield
    finally:
        for layer, values in zip(layers, kept, strict=True):
            for name, buffer in layer.named_buffers():
                buffer.copy_(values[name])
