"""Shapes as the operations of ONNX change them, with all the ways in which its versions write that down."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from advibp.vnncomp.onnx.onnx_graph import Node, Shape


def reshaped(node: Node, shape: Shape, target: object = None) -> Shape:
    """0 copies an axis, -1 is what remains."""
    wanted = list(node.whole(target, "shape"))
    if node.integer("allowzero", 0) and 0 in wanted:
        node.refuse("makes an axis of size 0; the file is damaged, export it again.")
    wanted = [shape[i] if size == 0 and i < len(shape) else size for i, size in enumerate(wanted)]
    known, total = math.prod(size for size in wanted if size != -1), math.prod(shape)
    if wanted.count(-1) > 1 or any(size < -1 for size in wanted) or known == 0 or total % known:
        node.refuse(f"can't turn shape {shape} into {tuple(wanted)}; export it again, for a batch of 1.")
    result = tuple(total // known if size == -1 else size for size in wanted)
    if math.prod(result) != total:
        node.refuse(f"can't turn shape {shape} into {result}; export it again, for a batch of 1.")
    return result


def flattened(node: Node, shape: Shape) -> Shape:
    """Two axes: what comes before `axis`, and the rest."""
    axis = node.integer("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        node.refuse(f"names axis {axis} of a value of shape {shape}; the file is damaged, export it again.")
    axis += len(shape) if axis < 0 else 0
    return math.prod(shape[:axis]), math.prod(shape[axis:])


def squeezed(node: Node, shape: Shape, axes: object = None) -> Shape:
    given = node.integers_at("axes", axes)
    gone = {i for i, size in enumerate(shape) if size == 1} if given is None else distinct(node, given, len(shape))
    if any(shape[axis] != 1 for axis in gone):
        node.refuse(f"squeezes an axis of shape {shape} that is not of size 1; export it again, for a batch of 1.")
    return tuple(size for i, size in enumerate(shape) if i not in gone)


def unsqueezed(node: Node, shape: Shape, axes: object = None) -> Shape:
    given = node.integers_at("axes", axes) or ()
    new = distinct(node, given, len(shape) + len(given))
    rest = iter(shape)
    return tuple(1 if i in new else next(rest) for i in range(len(shape) + len(given)))


def permutation(node: Node, shape: Shape) -> Shape:
    """The order of the axes; by default they are reversed."""
    given = node.integers("perm")
    order = tuple(reversed(range(len(shape)))) if given is None else given
    if sorted(order) != list(range(len(shape))):
        node.refuse(f"has the order {order} for the {len(shape)} axes of its input; export it again.")
    return order


def ranges(
    node: Node, shape: Shape, starts: object = None, ends: object = None, axes: object = None, steps: object = None
) -> dict[int, range]:
    """What a Slice takes of each axis that it cuts."""
    begin, end = node.integers_at("starts", starts) or (), node.integers_at("ends", ends) or ()
    named = node.integers_at("axes", axes)
    cut = tuple(range(len(begin))) if named is None else named
    step = (1,) * len(begin) if steps is None else node.whole(steps, "steps")
    if not len(begin) == len(end) == len(cut) == len(step) or 0 in step:
        node.refuse("has starts, ends, axes and steps that do not fit together; export it again.")
    distinct(node, cut, len(shape))
    places = [node.axis(axis, len(shape)) for axis in cut]
    limits = zip(begin, end, step, strict=True)
    return {a: range(*slice(*ends).indices(shape[a])) for a, ends in zip(places, limits, strict=True)}


def indices(taken: range) -> Tensor:
    return torch.arange(len(taken)) * taken.step + taken.start


def positions(node: Node, size: int, given_at: object) -> tuple[Tensor, Shape]:
    """What a Gather takes of an axis of this size (N,), and the shape in which it lays it out."""
    given = node.constant(given_at, "indices")
    if given.is_floating_point() or bool(((given < -size) | (given >= size)).any()):
        node.refuse(f"takes elements that an axis of size {size} does not have; the file is damaged, export it again.")
    return given.reshape(-1).long() % max(size, 1), tuple(given.shape)


def reduced(node: Node, shape: Shape, axes: object = None) -> tuple[Shape, Shape]:
    """The axes that a mean or sum is taken over, and the shape of the result."""
    given = node.integers_at("axes", axes)
    if not given and node.integer("noop_with_empty_axes", 0):
        return (), shape
    over = distinct(node, given, len(shape)) if given else set(range(len(shape)))
    if node.integer("keepdims", 1):
        return tuple(sorted(over)), tuple(1 if i in over else size for i, size in enumerate(shape))
    return tuple(sorted(over)), tuple(size for i, size in enumerate(shape) if i not in over)


def distinct(node: Node, axes: Shape, count: int) -> set[int]:
    found = {node.axis(axis, count) for axis in axes}
    if len(found) != len(axes):
        node.refuse(f"names an axis twice, in {axes}; the file is damaged, export it again.")
    return found
