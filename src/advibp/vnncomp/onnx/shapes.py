"""Output shapes of ONNX operators that reshape, slice or reduce, for all supported opsets."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from advibp.vnncomp.onnx.onnx_graph import Node, Shape


def reshaped(node: Node, shape: Shape, target: object = None) -> Shape:
    """Return the shape after Reshape: 0 copies the size of an axis, -1 is inferred."""
    sizes = list(node.integers_of(target, "shape"))
    if node.integer("allowzero", 0) and 0 in sizes:
        node.refuse("has an axis of size 0; the file is damaged, export it again.")
    sizes = [shape[i] if size == 0 and i < len(shape) else size for i, size in enumerate(sizes)]
    known, total = math.prod(size for size in sizes if size != -1), math.prod(shape)
    if sizes.count(-1) > 1 or any(size < -1 for size in sizes) or known == 0 or total % known:
        node.refuse(f"can't reshape {shape} to {tuple(sizes)}; export it again for a batch of 1.")
    result = tuple(total // known if size == -1 else size for size in sizes)
    if math.prod(result) != total:
        node.refuse(f"can't reshape {shape} to {result}; export it again for a batch of 1.")
    return result


def flattened(node: Node, shape: Shape) -> Shape:
    """Return the two sizes after Flatten: of the axes before `axis`, and of the others."""
    axis = node.integer("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        node.refuse(f"refers to axis {axis} of a value of shape {shape}; the file is damaged, export it again.")
    axis += len(shape) if axis < 0 else 0
    return math.prod(shape[:axis]), math.prod(shape[axis:])


def squeezed(node: Node, shape: Shape, axes: object = None) -> Shape:
    """Return the shape after Squeeze; without axes, all axes of size 1 are removed."""
    listed = node.integers_at("axes", axes)
    removed = {i for i, size in enumerate(shape) if size == 1} if listed is None else distinct(node, listed, len(shape))
    if any(shape[axis] != 1 for axis in removed):
        node.refuse(f"squeezes an axis of shape {shape} whose size is not 1; export it again for a batch of 1.")
    return tuple(size for i, size in enumerate(shape) if i not in removed)


def unsqueezed(node: Node, shape: Shape, axes: object = None) -> Shape:
    """Return the shape after Unsqueeze."""
    listed = node.integers_at("axes", axes) or ()
    new = distinct(node, listed, len(shape) + len(listed))
    sizes = iter(shape)
    return tuple(1 if i in new else next(sizes) for i in range(len(shape) + len(listed)))


def permutation(node: Node, shape: Shape) -> Shape:
    """Return the order of the axes after Transpose; by default it is reversed."""
    perm = node.integers("perm")
    order = tuple(reversed(range(len(shape)))) if perm is None else perm
    if sorted(order) != list(range(len(shape))):
        node.refuse(f"has the order {order} for the {len(shape)} axes of its input; export it again.")
    return order


def ranges(
    node: Node, shape: Shape, starts: object = None, ends: object = None, axes: object = None, steps: object = None
) -> dict[int, range]:
    """Return the range of indices that Slice selects on each sliced axis."""
    begin, end = node.integers_at("starts", starts) or (), node.integers_at("ends", ends) or ()
    listed = node.integers_at("axes", axes)
    sliced = tuple(range(len(begin))) if listed is None else listed
    step = (1,) * len(begin) if steps is None else node.integers_of(steps, "steps")
    if not len(begin) == len(end) == len(sliced) == len(step) or 0 in step:
        node.refuse("has starts, ends, axes and steps of different lengths, or a step of 0; export it again.")
    distinct(node, sliced, len(shape))
    positive = [node.axis(axis, len(shape)) for axis in sliced]
    limits = zip(begin, end, step, strict=True)
    return {a: range(*slice(*ends).indices(shape[a])) for a, ends in zip(positive, limits, strict=True)}


def indices(selected: range) -> Tensor:
    """Return a range as a tensor (N,)."""
    return torch.arange(len(selected)) * selected.step + selected.start


def positions(node: Node, size: int, operand: object) -> tuple[Tensor, Shape]:
    """Return the indices (N,) that Gather selects on an axis of this size, and the shape that replaces the axis."""
    index = node.constant(operand, "indices")
    if index.is_floating_point() or bool(((index < -size) | (index >= size)).any()):
        node.refuse(f"has indices outside an axis of size {size}; the file is damaged, export it again.")
    return index.reshape(-1).long() % max(size, 1), tuple(index.shape)


def reduced(node: Node, shape: Shape, axes: object = None) -> tuple[Shape, Shape]:
    """Return the axes of a mean or sum, and the shape of the result."""
    listed = node.integers_at("axes", axes)
    if not listed and node.integer("noop_with_empty_axes", 0):
        return (), shape
    over = distinct(node, listed, len(shape)) if listed else set(range(len(shape)))
    if node.integer("keepdims", 1):
        return tuple(sorted(over)), tuple(1 if i in over else size for i, size in enumerate(shape))
    return tuple(sorted(over)), tuple(size for i, size in enumerate(shape) if i not in over)


def distinct(node: Node, axes: Shape, count: int) -> set[int]:
    """Return the axes as a set of 0 ... count - 1; refuse the node if an axis occurs twice."""
    result = {node.axis(axis, count) for axis in axes}
    if len(result) != len(axes):
        node.refuse(f"lists an axis twice in {axes}; the file is damaged, export it again.")
    return result
