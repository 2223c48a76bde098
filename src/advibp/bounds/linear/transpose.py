"""The backward pass through affine operations.

A row of A is a linear function sum_j A_j z_j of a value z. If z = M x + c, it is the function A M of x plus the
constant A c. The matrix M is never built: A M is computed by the transposed operation.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.bounds.box import RULES
from advibp.bounds.domain import spellings, unsupported
from advibp.bounds.graph.nodes import Node, Ref, leaves_of, map_leaves
from advibp.bounds.graph.tape import Tape
from advibp.errors import UserError

#: Names of Box's rules for affine operations whose result may depend on several elements of the input.
_MIXING_RULES = {"affine", "linear", "matmul", "positive", "interpolate"}
_AFFINE_RULES = _MIXING_RULES | {
    "batch_norm", "add", "sub", "rsub", "neg", "mul", "div", "pad", "join", "view", "to", "dropout",
}  # fmt: skip
#: Operations that keep the order of the elements.
_RESHAPING = frozenset(spellings("flatten reshape view unflatten squeeze unsqueeze contiguous detach data"))
#: Names of Box's rules for elementwise affine operations that keep the dtype.
_ELEMENTWISE = {"batch_norm", "add", "sub", "rsub", "neg", "mul", "div", "dropout"}
_CONV2D = frozenset(spellings("conv2d"))
_FEW_CHANNELS = 4


def is_affine(node: Node) -> bool:
    """Return whether a node is an affine operation."""
    return node.func is operator.getitem or rule_of(node) in _AFFINE_RULES


def mixes_elements(node: Node) -> bool:
    """Return whether an element of the result may depend on several elements of the input."""
    return rule_of(node) in _MIXING_RULES or not is_affine(node)


def has_few_channels(node: Node) -> bool:
    """Return whether a node is a 2d convolution of few channels, whose transpose is fast."""
    convolution = convolution_arguments(node) if node.func in _CONV2D else None
    return convolution is not None and convolution.groups == 1 and convolution.weight.shape[1] <= _FEW_CHANNELS


def rule_of(node: Node) -> str:
    """Return the name of Box's rule for a node's operation."""
    return getattr(RULES.get(node.func), "__name__", "") if node.func else ""


def backward_affine(
    node: Node, a: Any, shape: torch.Size | None, precise: bool = False
) -> tuple[Tensor, Tensor] | None:
    """Carry coefficients back through a common layer.

    Args:
        node: the operation.
        a: coefficients A (R, ...) of its value.
        shape: shape (R, ...) of the value that it used.
        precise: whether constants are computed in float64.

    Returns:
        Coefficients (R, ...) of the value that it used, and the constants A c (R,). None if the operation is not a
        reshape, a linear layer or a 2d convolution; `RowTape` handles those.
    """
    if len(node.refs) != 1 or shape is None or not isinstance(a, Tensor):
        return None
    if node.func in _RESHAPING:
        return a.reshape(shape), a.new_zeros(len(a))
    if not node.args or node.args[0] != Ref(node.refs[0]):
        return None
    if node.func is F.linear and not node.kwargs:
        weight, bias = node.args[1], node.args[2] if len(node.args) > 2 else None
        return a @ weight, constants_of_channels(a.movedim(-1, 1), bias, precise)
    return _conv2d(node, a, shape, precise) if node.func in _CONV2D else None


def constants_of_channels(a: Tensor, bias: Tensor | None, precise: bool) -> Tensor:
    """Return A c (R,) for A (R, C, ...) and one number per channel (C,)."""
    if bias is None:
        return a.new_zeros(len(a))
    dtype = torch.float64 if precise else a.dtype
    return (a.to(dtype) if a.dim() == 2 else a.sum(tuple(range(2, a.dim())), dtype=dtype)) @ bias.to(dtype)


class Convolution(NamedTuple):
    """The arguments of F.conv2d."""

    weight: Tensor
    bias: Tensor | None
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int


def convolution_arguments(node: Node) -> Convolution | None:
    """Return the arguments of a node with F.conv2d. None if its padding is a word."""
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    if isinstance(given.get("padding"), str):
        return None
    stride, padding, dilation = (
        pair(given.get("stride", 1)),
        pair(given.get("padding", 0)),
        pair(given.get("dilation", 1)),
    )
    return Convolution(given["weight"], given.get("bias"), stride, padding, dilation, given.get("groups", 1))


def _conv2d(node: Node, a: Tensor, shape: torch.Size, precise: bool) -> tuple[Tensor, Tensor] | None:
    """Carry coefficients back through a 2d convolution by a transposed convolution."""
    arguments = convolution_arguments(node)
    if arguments is None:
        return None
    weight, bias, stride, padding, dilation, _ = arguments
    # Pixels at the end that no kernel covers get zeros.
    missing = [
        shape[d + 2] - ((a.shape[d + 2] - 1) * stride[d] - 2 * padding[d] + dilation[d] * (weight.shape[d + 2] - 1) + 1)
        for d in (0, 1)
    ]
    return transposed_convolution(a, arguments, missing), constants_of_channels(a, bias, precise)


def transposed_convolution(a: Tensor, convolution: Convolution, missing: Sequence[int] = (0, 0)) -> Tensor:
    """Return the transposed convolution of coefficients, without its bias.

    F.conv_transpose2d is slow for a convolution with few input channels, which is the first one of most networks. A
    matrix product, whose result is a plane for each pixel of the kernel, and shifted sums of these planes are then four
    to six times as fast. Where a gradient is needed, F.fold computes the sums, which is half as fast.

    Args:
        a: coefficients (R, C, h, w).
        convolution: the convolution.
        missing: numbers of pixels (vertical, horizontal) at the end that no kernel covers.
    """
    weight, _, stride, padding, dilation, groups = convolution
    if weight.shape[2:] == (1, 1) and groups == 1 and not any(padding) and not torch.is_grad_enabled():
        return _single_pixels(a, convolution, missing)
    if groups > 1 or weight.shape[1] > _FEW_CHANNELS or missing[0] < 0 or missing[1] < 0:
        return F.conv_transpose2d(a, weight, None, stride, padding, missing, groups, dilation)
    kernel = weight.shape[2:]
    if not torch.is_grad_enabled():
        return _shifted_sums(a, convolution, missing)
    columns = (a.permute(0, 2, 3, 1).flatten(1, 2) @ weight.flatten(1)).transpose(1, 2)  # (R, C k k, h w)
    height, width = (
        (a.shape[d + 2] - 1) * stride[d] - 2 * padding[d] + dilation[d] * (kernel[d] - 1) + 1 + missing[d]
        for d in (0, 1)
    )
    return F.fold(columns, (height, width), kernel, dilation, padding, stride)


def _single_pixels(a: Tensor, convolution: Convolution, missing: Sequence[int]) -> Tensor:
    """Return the transposed convolution with a kernel of one pixel, in channels_last: a matrix product and zeros."""
    weight, _, stride, _, _, _ = convolution
    product = a.permute(0, 2, 3, 1) @ weight.flatten(1)
    if stride == (1, 1) and not any(missing):
        return product.permute(0, 3, 1, 2)
    height, width = ((a.shape[d + 2] - 1) * stride[d] + 1 + missing[d] for d in (0, 1))
    whole = a.new_zeros(len(a), height, width, weight.shape[1])
    whole[:, : height - missing[0] : stride[0], : width - missing[1] : stride[1]] = product
    return whole.permute(0, 3, 1, 2)


def _shifted_sums(a: Tensor, convolution: Convolution, missing: Sequence[int]) -> Tensor:
    """Return the transposed convolution by a matrix product and sums of its planes."""
    weight, _, stride, padding, dilation, _ = convolution
    rows, _, height, width = a.shape
    kernel = weight.shape[2:]
    # (C k k, out) @ (out, R h w)
    planes = weight.permute(1, 2, 3, 0).flatten(0, 2) @ a.permute(0, 2, 3, 1).flatten(0, 2).T
    planes = planes.view(-1, *kernel, rows, height, width)
    inside = [(a.shape[d + 2] - 1) * stride[d] + dilation[d] * (kernel[d] - 1) + 1 for d in (0, 1)]
    size = [inside[d] - 2 * padding[d] + missing[d] for d in (0, 1)]
    whole = a.new_zeros(len(planes), rows, *(max(inside[d], padding[d] + size[d]) for d in (0, 1)))
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            lines = slice(i * dilation[0], i * dilation[0] + (height - 1) * stride[0] + 1, stride[0])
            columns = slice(j * dilation[1], j * dilation[1] + (width - 1) * stride[1] + 1, stride[1])
            whole[:, :, lines, columns] += planes[:, i, j]
    part = whole[:, :, padding[0] : padding[0] + size[0], padding[1] : padding[1] + size[1]]
    return part.transpose(0, 1).contiguous()


def pair(value: Any) -> tuple[int, int]:
    """Return a number twice, or a pair as it is."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * 2 if len(values) == 1 else values


class ChannelRule(NamedTuple):
    """An elementwise operation sum_i scale_i x_i + offset whose numbers depend only on the channel.

    Attributes:
        scales: scale (1, C, 1, ...) of each value that depends on the network's input, by node.
        offset: offset (1, C, 1, ...).
        unit: the values whose scale is 1.
    """

    scales: dict[int, Tensor]
    offset: Tensor
    unit: frozenset[int] = frozenset()

    def backward(self, a: Tensor, precise: bool) -> tuple[dict[int, Tensor], Tensor]:
        """Return the coefficients of each value, and the constants (R,), for coefficients A (R, C, ...)."""
        before = {ref: a if ref in self.unit else a * scale for ref, scale in self.scales.items()}
        return before, constants_of_channels(a, self.offset.flatten() if bool(self.offset.any()) else None, precise)


@torch.no_grad()
def per_channel(
    node: Node, shapes: dict[int, torch.Size | None], constants: dict[int, Any], like: Tensor
) -> ChannelRule | None:
    """Return the numbers of an elementwise operation whose constants are numbers or tensors with a number per channel.

    The operation runs on one pixel. Its numbers are those of every pixel.

    Args:
        node: the operation.
        shapes: shapes (B, C, ...) of the values that it uses and that depend on the input, by node.
        constants: the other values that it uses, by node.
        like: a tensor of the dtype and device of the values.

    Returns:
        The numbers, or None for every other operation.
    """
    whole = node.shape
    if rule_of(node) not in _ELEMENTWISE or whole is None or len(whole) < 2:
        return None
    if any(shape is None or shape[1:] != whole[1:] for shape in shapes.values()):
        return None
    known = [constants[ref] for ref in node.refs if ref not in shapes]
    tensors = [leaf for leaf in leaves_of((node.args, node.kwargs, known)) if isinstance(leaf, Tensor)]
    channels, ones = whole[1], (1,) * (len(whole) - 2)
    shaped = ((channels, *ones), (1, channels, *ones)) if ones else ((1, channels),)
    if rule_of(node) != "batch_norm" and any(t.numel() != 1 and t.shape not in shaped for t in tensors):
        return None
    pixel = like.new_zeros(1, channels, *ones)
    back, _ = backward_by_autograd(node, torch.ones_like(pixel), dict.fromkeys(shapes, pixel), constants)
    offset = node.run({**constants, **{ref: pixel.clone() for ref in shapes}})
    if offset.shape != pixel.shape:
        return None
    return ChannelRule(back, offset, frozenset(ref for ref, scale in back.items() if bool((scale == 1).all())))


def folded_convolution(node: Node, rule: ChannelRule) -> Node | None:
    """Return a 2d convolution and an elementwise operation on its result as one convolution.

    Args:
        node: the operation that computes the value of the elementwise operation.
        rule: the elementwise operation, with one value.

    Returns:
        The convolution with other weights, or None if `node` is no convolution of one value.
    """
    if node.func not in _CONV2D or len(node.refs) != 1 or not node.args or node.args[0] != Ref(node.refs[0]):
        return None
    convolution = convolution_arguments(node)
    if convolution is None or len(rule.scales) != 1:
        return None
    scale, offset = next(iter(rule.scales.values())).flatten(), rule.offset.flatten()
    bias = offset if convolution.bias is None else torch.addcmul(offset, convolution.bias, scale)
    weight = convolution.weight * scale.view(-1, 1, 1, 1)
    return replace(node, args=(node.args[0], weight, bias, *convolution[2:]), kwargs={})


class RowTape:
    """A network recorded for a batch of R rows, which carries coefficients back through any affine operation.

    Args:
        tape: recording of the network on its batch.
        record: records the network on another batch.
        constants: the values of `tape` that do not depend on the input, by node.
        x: images (B, ...).
        rows: R.
    """

    def __init__(
        self, tape: Tape, record: Callable[[Tensor], Tape], constants: dict[int, Any], x: Tensor, rows: int
    ) -> None:
        self._tape, self._constants = tape, constants
        points = x[:1].expand(rows, *x.shape[1:])
        try:
            self._row_tape = record(points)
        except UserError as error:
            unsupported(f"a network that accepts {len(x)} images but not {rows} has no linear bounds ({error})")
        if [node.func for node in self._row_tape.nodes] != [node.func for node in tape.nodes]:
            unsupported("a network whose operations depend on the number of images has no linear bounds")
        self._inputs, self._row_constants = {0: _zeros(points)}, {}
        for index, value in self._row_tape.trace(points):
            if self._row_tape.nodes[index].from_input:
                self._inputs[index] = map_leaves(value, _zeros)
            else:
                self._row_constants[index] = map_leaves(value, copy_constant)
        self._rows, self._images = rows, len(x)
        self._checked: set[int] = set()

    def backward(self, number: int, a: Any, precise: bool = False) -> tuple[dict[int, Any], Tensor]:
        """Return the coefficients of each value that a node used, and the constants A c (R,), for A at its value."""
        self.check(number)
        node = self._row_tape.nodes[number]
        inputs = {i: self._inputs[i] for i in node.refs if i in self._inputs}
        return backward_by_autograd(node, a, inputs, self._row_constants, precise)

    @torch.no_grad()
    def check(self, number: int) -> None:
        """Raise if an operation does not treat all images and rows alike, for example because it has constants per
        image.

        It is applied to one image, repeated: an affine operation that keeps images apart gives the same result for each
        copy. A value without one row per image, such as a mean over the batch, would be broadcast to all rows.
        """
        if number in self._checked:
            return
        self._checked.add(number)
        node, row_node = self._tape.nodes[number], self._row_tape.nodes[number]
        used = [leaf for i in row_node.refs if i in self._inputs for leaf in leaves_of(self._inputs[i])]
        if any(isinstance(leaf, Tensor) and leaf.shape[:1] != (self._rows,) for leaf in used):
            self._refuse(number)
        image = {i: map_leaves(self._inputs[i], _some_image) for i in row_node.refs if i in self._inputs}
        results = [
            list(leaves_of(n.run({**constants, **map_leaves(image, lambda t, k=k: t.repeat(k, *[1] * (t.dim() - 1)))})))  # type: ignore[misc]
            for n, constants, k in ((node, self._constants, self._images), (row_node, self._row_constants, self._rows))
        ]
        for of_images, of_rows in zip(*results, strict=True):
            first = of_images[:1]
            tolerance = 1e-5 * float(first.abs().max()) if first.numel() else 0.0
            for each, count in ((of_images, self._images), (of_rows, self._rows)):
                same = each.shape == (count, *first.shape[1:])
                if not same or not bool(((each - first).abs() <= tolerance).all()):
                    self._refuse(number)

    def _refuse(self, number: int) -> None:
        unsupported(
            f"{self._tape.name(number)} does not treat all images alike, so it has no linear bounds",
            "it must not depend on their number or on their position in the batch.",
        )


def backward_by_autograd(
    node: Node, a: Any, inputs: dict[int, Any], constants: dict[int, Any], precise: bool = False
) -> tuple[dict[int, Any], Tensor]:
    """Carry coefficients back through any affine operation by its backward pass at zero, where its value is c.

    Args:
        node: the operation.
        a: coefficients A (R, ...) of its value.
        inputs: zeros of the shape (R, ...) of each value that depends on the network's input, by node.
        constants: the other values that it needs, by node.
        precise: whether constants are computed in float64.

    Returns:
        Coefficients of each of these values, and the constants A c (R,). Both are differentiable in A and in weights.
    """
    differentiable = torch.is_grad_enabled()
    variables = {i: map_leaves(zeros, lambda t: t.clone().requires_grad_()) for i, zeros in inputs.items()}
    with torch.enable_grad():
        # Copies, because the operation may write to its input.
        offset = replace(node, gradient=True).run({**constants, **map_leaves(variables, torch.clone)})
    leaves, outputs, rows = list(leaves_of(variables)), list(leaves_of(offset)), list(leaves_of(a))
    back = iter(torch.autograd.grad(outputs, leaves, rows, create_graph=differentiable, materialize_grads=True))
    offsets = [c if differentiable else c.detach() for c in outputs]
    if precise:
        rows, offsets = ([t.double() for t in tensors] for tensors in (rows, offsets))
    constant = sum((r * c).reshape(len(r), -1).sum(1) for r, c in zip(rows, offsets, strict=True))
    return map_leaves(variables, lambda _: next(back)), constant


def copy_constant(value: Any) -> Any:
    """Copy a constant, because the network may write to it later."""
    return value.clone() if isinstance(value, Tensor) else value


def _zeros(value: Any) -> Any:
    """Return zeros of a value's shape that take no memory."""
    return value.new_zeros(()).expand(value.shape) if isinstance(value, Tensor) else value


def _some_image(value: Tensor) -> Tensor:
    """Return generic numbers in the shape (1, ...) of one row, without using the user's random state."""
    shape = (1, *value.shape[1:])
    return torch.sin(torch.arange(1.0, 1 + torch.Size(shape).numel(), device=value.device)).view(shape).to(value.dtype)
