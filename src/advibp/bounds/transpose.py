"""Linear functions of a node's value, taken back to the values it was computed from.

A row of A is one linear function sum_j A_j z_j of a value z. If z = M x + c then it is the function A M of x, plus A c.
The matrix M is never built: A M is what a backward pass computes.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.bounds.box import RULES
from advibp.bounds.dispatch import Func, spellings
from advibp.bounds.nodes import Node, Ref, leaves_of, map_leaves

#: Rules of Box that say of an operation: it is affine in its one or two values.
_AFFINE_RULES = {
    "affine", "linear", "matmul", "batch_norm", "add", "sub", "rsub", "neg", "mul", "div", "positive", "pad", "interpolate",
    "join", "view", "to", "dropout",
}  # fmt: skip
_MIXING = frozenset(spellings("conv1d conv2d conv3d conv_transpose2d linear matmul mm bmm mv mean sum cumsum"))


def is_affine(func: Func) -> bool:
    rule: Any = RULES.get(func)
    return func is operator.getitem or (rule is not None and rule.__name__ in _AFFINE_RULES)


def mixes(func: Func) -> bool:
    """Whether an element of the result depends on several of the input: after two such, boxes are not exact."""
    return func in _MIXING or "pool" in getattr(func, "__name__", "") or not is_affine(func)


def take_back(node: Node, a: Any, shape: torch.Size | None) -> tuple[Tensor, Tensor] | None:
    """A (R, ...) at the value of `node` -> A at the one value it used, of this shape (R, ...), and the constants A c
    (R,). None for what is no common layer: `take_back_by_autograd` does that."""
    if len(node.refs) != 1 or shape is None or not isinstance(a, Tensor):
        return None
    if node.func in _RESHAPING:
        return a.reshape(shape), a.new_zeros(len(a))
    if not node.args or node.args[0] != Ref(node.refs[0]):
        return None
    if node.func is F.linear and not node.kwargs:
        return a @ node.args[1], _constants(a, node.args[2] if len(node.args) > 2 else None)
    return _conv2d(node, a, shape) if node.func in _CONV2D else None


def _constants(a: Tensor, offset: Tensor | None) -> Tensor:
    """A c for c (...), or one number per channel (C,)."""
    if offset is None:
        return a.new_zeros(len(a))
    if offset.dim() == 1 and a.dim() == 2:
        return a @ offset
    return a.flatten(2).sum(2) @ offset if offset.dim() == 1 else (a * offset).flatten(1).sum(1)


_RESHAPING = frozenset(spellings("flatten reshape view unflatten squeeze unsqueeze contiguous"))
_CONV2D = frozenset(spellings("conv2d"))


def _conv2d(node: Node, a: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor] | None:
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    weight, bias, padding = given["weight"], given.get("bias"), given.get("padding", 0)
    if isinstance(padding, str):
        return None
    stride, padding, dilation = (_pair(v) for v in (given.get("stride", 1), padding, given.get("dilation", 1)))
    # Pixels at the end that no kernel reached get zeros.
    missing = [
        shape[d + 2] - ((a.shape[d + 2] - 1) * stride[d] - 2 * padding[d] + dilation[d] * (weight.shape[d + 2] - 1) + 1)
        for d in (0, 1)
    ]
    back = F.conv_transpose2d(a, weight, None, stride, padding, missing, given.get("groups", 1), dilation)
    return back, _constants(a, bias)


def _pair(value: Any) -> tuple[int, int]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * 2 if len(values) == 1 else values


def take_back_by_autograd(
    node: Node, a: Any, inputs: dict[int, Any], constants: dict[int, Any]
) -> tuple[dict[int, Any], Tensor]:
    """The same for any affine operation: its backward pass, at zero, where its value is c.

    `inputs` holds zeros of the shape (R, ...) of each value that depends on the network's input, `constants` the others.
    Differentiable in A and in weights.
    """
    further = torch.is_grad_enabled()
    moving = {i: map_leaves(inputs[i], lambda t: t.clone().requires_grad_()) for i in node.refs if i in inputs}
    with torch.enable_grad():
        # Copies, for the operation may write to its input.
        offset = node.run({**constants, **{i: map_leaves(value, torch.clone) for i, value in moving.items()}})
    wanted, outputs, rows = list(leaves_of(list(moving.values()))), list(leaves_of(offset)), list(leaves_of(a))
    back = iter(torch.autograd.grad(outputs, wanted, rows, create_graph=further, materialize_grads=True))
    constant = torch.stack([_constants(r, c if further else c.detach()) for r, c in zip(rows, outputs, strict=True)])
    return {i: map_leaves(value, lambda _: next(back)) for i, value in moving.items()}, constant.sum(0)
