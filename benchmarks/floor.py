"""The minimal cost of a step: only its convolutions and matrix products, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from advibp.execution.image_gradient import MAX_CHANNELS, input_gradient


class Layer(NamedTuple):
    """A convolution or linear layer of a chain, its input, and the gradient of its output."""

    module: nn.Conv2d | nn.Linear
    x: Tensor
    gradient: Tensor
    weight: Tensor
    size: Tensor  # |weight|

    def forward(self, weight: Tensor) -> None:
        m = self.module
        if isinstance(m, nn.Conv2d):
            torch.ops.aten.convolution(self.x, weight, m.bias, m.stride, m.padding, m.dilation, False, [0, 0], m.groups)
        else:
            torch.addmm(m.bias, self.x, weight.t())

    def backward(self, weight: Tensor, to_input: bool, to_weight: bool) -> None:
        m = self.module
        if isinstance(m, nn.Conv2d):
            if to_input and weight.shape[1] <= MAX_CHANNELS:  # the image's gradient, computed as in a step
                input_gradient(self.gradient, weight, self.x.shape[2:], m.stride, m.padding)  # type: ignore[arg-type]
                to_input = False
            if to_input or to_weight:
                torch.ops.aten.convolution_backward(
                    self.gradient, self.x, weight, [len(weight)], m.stride, m.padding, m.dilation, False, [0, 0],
                    m.groups, [to_input, to_weight, to_weight],
                )  # fmt: skip
            return
        if to_input:
            self.gradient @ weight
        if to_weight:
            self.gradient.t() @ self.x


class Floor:
    """Minimal steps of the methods, for an nn.Sequential on a batch x."""

    @torch.no_grad()
    def __init__(self, net: nn.Sequential, x: Tensor) -> None:
        self.layers = list(_layers(net, x))

    def standard(self) -> None:
        self._forward()
        self._backward()

    def adversarial(self) -> None:
        """The attack (forward, and backward to the image), then the loss at the adversarial example (forward, and
        backward to the weights and, for FOSC, to the image)."""
        self._forward()
        self._backward(to_image=True, to_weights=False)
        self._forward()
        self._backward(to_image=True)

    def ibp(self) -> None:
        """Passes for the center and the radius."""
        for sized in (False, True):
            self._forward(sized)
            self._backward(sized)

    def joint(self) -> None:
        self.adversarial()
        self.ibp()

    @torch.no_grad()
    def _forward(self, sized: bool = False) -> None:
        for layer in self.layers:
            layer.forward(layer.size if sized else layer.weight)

    @torch.no_grad()
    def _backward(self, sized: bool = False, *, to_image: bool = False, to_weights: bool = True) -> None:
        for k, layer in reversed(list(enumerate(self.layers))):
            layer.backward(layer.size if sized else layer.weight, k > 0 or to_image, to_weights)


def _layers(net: nn.Sequential, x: Tensor) -> Iterator[Layer]:
    for module in net:
        y = module(x)
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            weight = module.weight.detach()
            yield Layer(module, x.clone(), torch.randn_like(y), weight, weight.abs())
        x = y
