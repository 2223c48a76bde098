"""Linear functions of a node's value, taken back to the values it was computed from.

A row of A is one linear function sum_j A_j z_j of a value z. If z = M x + c then it is the function A M of x, plus A c.
The matrix M is never built: A M is what a backward pass computes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.bounds.box import RULES
from advibp.bounds.domain import spellings, unsupported
from advibp.bounds.graph.nodes import Node, Ref, leaves_of, map_leaves
from advibp.bounds.graph.tape import Tape
from advibp.errors import UserError

#: Rules of Box that say of an operation: it is affine in its one or two values, and
#: an element of its result may depend on several of the input.
_MIXING_RULES = {"affine", "linear", "matmul", "positive", "interpolate"}
_AFFINE_RULES = _MIXING_RULES | {
    "batch_norm", "add", "sub", "rsub", "neg", "mul", "div", "pad", "join", "view", "to", "dropout",
}  # fmt: skip
#: What leaves the elements in their order.
_RESHAPING = frozenset(spellings("flatten reshape view unflatten squeeze unsqueeze contiguous detach data"))
_CONV2D = frozenset(spellings("conv2d"))


def is_affine(node: Node) -> bool:
    return node.func is operator.getitem or rule_of(node) in _AFFINE_RULES


def mixes(node: Node) -> bool:
    """Whether an element of the result may depend on several of the input: after two such, boxes are not exact."""
    return rule_of(node) in _MIXING_RULES or not is_affine(node)


def rule_of(node: Node) -> str:
    """The name of Box's rule for a node's operation."""
    return getattr(RULES.get(node.func), "__name__", "") if node.func else ""


def take_back(node: Node, a: Any, shape: torch.Size | None, precise: bool = False) -> tuple[Tensor, Tensor] | None:
    """A (R, ...) at the value of `node` -> A at the one value it used, of this shape (R, ...), and the constants A c
    (R,), `precise` in double precision. None for what is no common layer: `Rows` do that."""
    if len(node.refs) != 1 or shape is None or not isinstance(a, Tensor):
        return None
    if node.func in _RESHAPING:
        return a.reshape(shape), a.new_zeros(len(a))
    if not node.args or node.args[0] != Ref(node.refs[0]):
        return None
    if node.func is F.linear and not node.kwargs:
        weight, bias = node.args[1], node.args[2] if len(node.args) > 2 else None
        return a @ weight, _constants(a.movedim(-1, 1), bias, precise)
    return _conv2d(node, a, shape, precise) if node.func in _CONV2D else None


def _constants(a: Tensor, bias: Tensor | None, precise: bool) -> Tensor:
    """A c (R,) for A (R, C, ...) and one number per channel (C,)."""
    if bias is None:
        return a.new_zeros(len(a))
    dtype = torch.float64 if precise else a.dtype
    return (a.to(dtype) if a.dim() == 2 else a.flatten(2).sum(2, dtype=dtype)) @ bias.to(dtype)


def _conv2d(node: Node, a: Tensor, shape: torch.Size, precise: bool) -> tuple[Tensor, Tensor] | None:
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
    return back, _constants(a, bias, precise)


def _pair(value: Any) -> tuple[int, int]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * 2 if len(values) == 1 else values


class Rows:
    """A network recorded anew for so many rows, which any of its affine operations then takes back."""

    def __init__(
        self, tape: Tape, record: Callable[[Tensor], Tape], constants: dict[int, Any], x: Tensor, rows: int
    ) -> None:
        """tape: of the network on a batch; record: makes one for another batch; constants: of its values those that do
        not depend on the input; x (B, ...): some images."""
        self._tape, self._constants = tape, constants
        points = x[:1].expand(rows, *x.shape[1:])
        try:
            self._own = record(points)
        except UserError as error:
            unsupported(f"a network that takes {len(x)} images, but not {rows}, has no linear bounds ({error})")
        if [node.func for node in self._own.nodes] != [node.func for node in tape.nodes]:
            unsupported("a network that does other things to another number of images has no linear bounds")
        self._inputs, self._own_constants = {0: _zeros(points)}, {}
        for index, value in self._own.trace(points):
            if self._own.nodes[index].from_input:
                self._inputs[index] = map_leaves(value, _zeros)
            else:
                self._own_constants[index] = map_leaves(value, copied)
        self._rows, self._images = rows, len(x)
        self._checked: set[int] = set()

    def take_back(self, number: int, a: Any, precise: bool = False) -> tuple[dict[int, Any], Tensor]:
        """A at the value of a node -> A at each value it used, and the constants A c (R,)."""
        if number not in self._checked:
            self._check(number)
            self._checked.add(number)
        node = self._own.nodes[number]
        inputs = {i: self._inputs[i] for i in node.refs if i in self._inputs}
        return take_back_by_autograd(node, a, inputs, self._own_constants, precise)

    @torch.no_grad()
    def _check(self, number: int) -> None:
        """Refuse what does not do the same to every image and to every row, as by constants of their own.

        Tried on one image, repeated: an operation that is affine, and keeps images apart, gives itself away.
        """
        node, own = self._tape.nodes[number], self._own.nodes[number]
        one = {i: map_leaves(self._inputs[i], _some_image) for i in own.refs if i in self._inputs}
        results = [
            list(leaves_of(n.run({**constants, **map_leaves(one, lambda t, k=k: t.repeat(k, *[1] * (t.dim() - 1)))})))  # type: ignore[misc]
            for n, constants, k in ((node, self._constants, self._images), (own, self._own_constants, self._rows))
        ]
        for ours, theirs in zip(*results, strict=True):
            first = ours[:1]
            close = 1e-5 * float(first.abs().max()) if first.numel() else 0.0
            for each, count in ((ours, self._images), (theirs, self._rows)):
                same = each.shape == (count, *first.shape[1:])
                if not same or not bool(((each - first).abs() <= close).all()):
                    unsupported(
                        f"{self._tape.name(number)} does not treat all images alike, so it has no linear bounds",
                        "let it depend neither on their number nor on their place in the batch.",
                    )


def take_back_by_autograd(
    node: Node, a: Any, inputs: dict[int, Any], constants: dict[int, Any], precise: bool = False
) -> tuple[dict[int, Any], Tensor]:
    """`take_back` for any affine operation: its backward pass, at zero, where its value is c.

    `inputs` holds zeros of the shape (R, ...) of each value that depends on the network's input, `constants` what
    else it needs. Differentiable in A and in weights.
    """
    further = torch.is_grad_enabled()
    moving = {i: map_leaves(zeros, lambda t: t.clone().requires_grad_()) for i, zeros in inputs.items()}
    with torch.enable_grad():
        # Copies, for the operation may write to its input.
        offset = replace(node, gradient=True).run({**constants, **map_leaves(moving, torch.clone)})
    wanted, outputs, rows = list(leaves_of(moving)), list(leaves_of(offset)), list(leaves_of(a))
    back = iter(torch.autograd.grad(outputs, wanted, rows, create_graph=further, materialize_grads=True))
    offsets = [c if further else c.detach() for c in outputs]
    if precise:
        rows, offsets = ([t.double() for t in tensors] for tensors in (rows, offsets))
    constant = sum((r * c).reshape(len(r), -1).sum(1) for r, c in zip(rows, offsets, strict=True))
    return map_leaves(moving, lambda _: next(back)), constant


def copied(value: Any) -> Any:
    """A constant as it is now: the network may write to it later."""
    return value.clone() if isinstance(value, Tensor) else value


def _zeros(value: Any) -> Any:
    """Zeros of a value's shape that take no memory."""
    return value.new_zeros(()).expand(value.shape) if isinstance(value, Tensor) else value


def _some_image(value: Tensor) -> Tensor:
    """Numbers of no special kind, in the shape (1, ...) of one row; not by chance, which belongs to the user."""
    shape = (1, *value.shape[1:])
    return torch.sin(torch.arange(1.0, 1 + torch.Size(shape).numel(), device=value.device)).view(shape).to(value.dtype)
