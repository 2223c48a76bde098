"""Evaluations of a network in float32 whose sums are taken in another order than torch's.

    with shuffled(seed):
        logits = net(x)

Linear layers, convolutions, matrix products and sums are evaluated by explicit sums over their terms, in an order that
the seed decides: one after the other, pairwise, or in blocks, of terms in a random permutation, with products that are
rounded before they are added or fused with the sum.
"""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class shuffled(TorchFunctionMode):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.dice = random.Random(seed)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear:
            return self._linear(*args, **kwargs)
        if func in (F.conv2d, torch.conv2d):
            return self._conv2d(*args, **kwargs)
        if func in (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm) and args[1].dim() == 2:
            return self._linear(args[0], args[1].t())
        return func(*args, **kwargs)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        with torch._C.DisableTorchFunction():
            terms = [(x[..., j : j + 1], weight[:, j]) for j in range(x.shape[-1])]
            return self._sum(terms, bias)

    def _conv2d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        with torch._C.DisableTorchFunction():
            parts = []
            each = len(weight) // groups
            shape = F.conv2d(x, weight, None, stride, padding, dilation, groups).shape
            if isinstance(padding, str):
                padding = tuple((d * (k - 1)) // 2 for d, k in zip(_pair(dilation), weight.shape[2:], strict=True))
            for group, (images, filters) in enumerate(zip(x.chunk(groups, 1), weight.split(each), strict=True)):
                columns = F.unfold(images, tuple(weight.shape[2:]), _pair(dilation), _pair(padding), _pair(stride))
                flat = filters.flatten(1)  # (O, J), columns (B, J, L)
                terms = [(columns[:, j, :, None], flat[:, j]) for j in range(flat.shape[1])]
                offset = None if bias is None else bias[group * each : (group + 1) * each]
                parts.append(self._sum(terms, offset).transpose(1, 2))
            return torch.cat(parts, 1).reshape(shape)

    def _sum(self, terms: list[tuple[Tensor, Tensor]], bias: Tensor | None) -> Tensor:
        """Products of pairs that broadcast, added up."""
        self.dice.shuffle(terms)
        how, first = self.dice.choice(["one by one", "fused", "pairwise", "blocks"]), self.dice.random() < 0.5
        total = terms[0][0] * terms[0][1] * 0
        start = total if bias is None else total + bias
        if how in ("one by one", "fused"):
            total = start if first else total
            for a, b in terms:
                fused = (total.double() + a.double() * b.double()).to(a.dtype) if how == "fused" else None
                total = total + a * b if fused is None else fused
            return total if first or bias is None else total + bias
        products = [a * b for a, b in terms]
        size = 2 if how == "pairwise" else self.dice.choice([3, 8, 16])
        while len(products) > 1:
            joined = []
            for k in range(0, len(products), size):
                part = products[k]
                for other in products[k + 1 : k + size]:
                    part = part + other
                joined.append(part)
            products = joined
        return products[0] if bias is None else products[0] + bias


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)
