"""Linear bounds: CROWN (Zhang et al. 2018) backwards over a recorded network.

A lower bound of a linear function of the network's output is carried back, node by node, as a linear function of ever
earlier values: through affine operations exactly, through activations by one of the two lines around each neuron,
whichever is sound for the sign of its coefficient. At the input it is smallest at a vertex of the box.

    CROWN-IBP     the lines come from interval bounds; one way back, for the margins
    CROWN         neurons that these leave unstable get bounds by a way back of their own, layer by layer
    alpha-CROWN   the slopes of the lower lines of the last way back are optimised, and the best bound is kept

Rows travel together: A (R, ...) holds one linear function per row, and `image` (R,) says whose. No matrix is built.
Bounds are computed in the usual floating-point arithmetic, as those of Box are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from advibp.bounds.box import Box
from advibp.bounds.dispatch import name_of, unsupported
from advibp.bounds.nodes import leaves_of, map_leaves
from advibp.bounds.relaxation import ACTIVATIONS, POOLS, Lines, Windows, max_pool2d
from advibp.bounds.tape import Tape
from advibp.bounds.transpose import is_affine, mixes, take_back, take_back_by_autograd

Slopes = dict[int, Tensor]  # node -> slopes of the lower lines (R, ...), or (B, ...) for all rows of an image

SUPPORTED = (
    "linear bounds know convolutions, linear layers, BatchNorm in evaluation, pooling, sums, reshaping, ReLU, leaky "
    "ReLU, sigmoid and tanh; certify by ibp instead."
)


class LinearBounds:
    """Bounds of a network over a box of inputs (B, ...), each at least as tight as interval bounds.

    `boxes` holds lower and upper bounds (B, ...) of every value that enters an activation, by node of the tape.
    """

    def __init__(self, net: nn.Module, box: Box, *, at_once: int = 512) -> None:
        """at_once: how many rows go back together, which bounds the memory."""
        self.net, self.box, self.at_once = net, box, at_once
        self.tape = Tape.record(net, box)
        self.boxes: dict[int, tuple[Tensor, Tensor]] = {}
        self._lines: dict[int, Lines | Windows] = {}
        self._rows: dict[int, _Rows] = {}
        self._output: Box | None = None
        self._kinds = set(self.activations())
        self._check()
        self._propagate()

    # ------------------------------------------------------------------------------------------ intervals first

    def _check(self) -> None:
        for index in self.tape.needed(0, self.tape.output):
            node = self.tape.nodes[index]
            if not node.from_input:
                continue
            assert node.func is not None
            if node.func not in ACTIVATIONS and node.func not in POOLS and not is_affine(node.func):
                unsupported(f"{self.tape.name(index)}: {name_of(node.func)} has no linear bounds", SUPPORTED)
            if set(node.after) - set(node.refs):
                unsupported(f"{self.tape.name(index)} reads what was written in place through another view", SUPPORTED)

    def _propagate(self) -> None:
        """Interval bounds of every value, of which those that enter an activation are kept."""
        entering = {self.tape.nodes[index].refs[0] for index in self.activations()}
        for index, value in [(0, self.box), *self.tape.trace(self.box)]:
            if index in entering:
                self.boxes[index] = value.lower, value.upper
        self._output = value

    def activations(self) -> list[int]:
        """The nodes that are no affine operations, in order."""
        return [
            index
            for index in self.tape.needed(0, self.tape.output)
            if self.tape.nodes[index].func in ACTIVATIONS or self.tape.nodes[index].func in POOLS
        ]

    # ------------------------------------------------------------------------------------------ what is asked for

    def margins(self, y: Tensor) -> Tensor:
        """Lower bounds (B, K) of z_y - z_k for labels y (B,); 0 for k = y. The way back elides the last layer."""
        rows, _ = self.margin_rows(y)
        return self.lower(self.tape.output, rows).view(len(y), -1)

    def margin_rows(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """A (B K, K) with rows e_y - e_k, image by image, and whose they are."""
        assert self._output is not None
        count, classes = self._output.shape
        one = torch.eye(classes, dtype=self._output.dtype, device=y.device)
        rows = (one[y].unsqueeze(1) - one).flatten(0, 1)
        return rows, torch.arange(count, device=y.device).repeat_interleave(classes)

    def output(self) -> Box:
        """Bounds of the network's output, intersected with the interval ones."""
        assert self._output is not None
        lower, upper = self._bounds_of(self.tape.output, torch.ones_like(self._output.center, dtype=torch.bool))
        return Box.from_bounds(
            torch.maximum(lower, self._output.lower), torch.minimum(upper, self._output.upper).clamp(min=lower)
        )

    def take(self, keep: Tensor) -> LinearBounds:
        """The same for some images of the batch, by their numbers; what is known of them stays known."""
        taken = LinearBounds(self.net, Box(self.box.center[keep], self.box.radius[keep]), at_once=self.at_once)
        taken.boxes = {index: (lower[keep], upper[keep]) for index, (lower, upper) in self.boxes.items()}
        return taken

    def refine(self) -> LinearBounds:
        """CROWN: tighter bounds for every neuron that the bounds so far leave unstable, from the first layer on."""
        for index in self.activations():
            entering = self.tape.nodes[index].refs[0]
            lower, upper = self.boxes[entering]
            unstable = (lower < 0) & (upper > 0) if index in self._piecewise else torch.ones_like(lower, dtype=torch.bool)
            if bool(unstable.any()) and not self._exact(entering):
                low, up = self._bounds_of(entering, unstable)
                lower, upper = torch.maximum(lower, low), torch.minimum(upper, up)
                # Rounding may let bounds cross that meet.
                self.boxes[entering] = torch.minimum(lower, upper), torch.maximum(lower, upper)
                self._lines.pop(index, None)
        return self

    @property
    def _piecewise(self) -> set[int]:
        """Activations with a kink at 0, where a stable neuron gains nothing from tighter bounds."""
        names = ("relu", "relu_", "leaky_relu", "leaky_relu_")
        return {i for i in self.activations() if getattr(self.tape.nodes[i].func, "__name__", "") in names}

    def _exact(self, index: int) -> bool:
        """Whether interval bounds of a value are exact: at most one operation on the way to it mixes elements."""
        way = [self.tape.nodes[i] for i in self.tape.needed(0, index)]
        return sum(node.from_input and mixes(node.func) for node in way if node.func is not None) <= 1 and all(
            len([i for i in node.refs if self.tape.nodes[i].from_input]) <= 1 for node in way
        )

    def _bounds_of(self, index: int, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds of the elements of a value that are wanted (B, ...); +-inf for the others."""
        image, element = torch.nonzero(wanted.flatten(1), as_tuple=True)
        shape = wanted.shape[1:]
        ends = []
        for sign in (1.0, -1.0):
            found = torch.full_like(self.box.center.new_empty(wanted.shape), -torch.inf).flatten(1)
            for some, where in zip(image.split(self.at_once), element.split(self.at_once), strict=True):
                rows = found.new_zeros(len(some), found.shape[1])
                rows[torch.arange(len(some)), where] = sign
                found[some, where] = self.lower(index, rows.unflatten(1, shape), some)
            ends.append(found.unflatten(1, shape) * sign)
        return ends[0], ends[1]

    # ------------------------------------------------------------------------------------------ the way back

    def lower(self, index: int, a: Tensor, image: Tensor | None = None, slopes: Slopes | None = None) -> Tensor:
        """Lower bounds (R,) of the rows of A (R, ...) at a node's value; `image` (R,) are their images in the batch.

        Without `image` each image has the same number of rows, in order; `slopes` then has to be left out.
        """
        per_image = max(1, len(a) // len(self.box))
        size = self.at_once if image is not None else max(1, self.at_once // per_image) * per_image
        ways = []
        for start in range(0, len(a), size):
            part = slice(start, start + size)
            whose: Tensor | slice = slice(start // per_image, (start + size) // per_image)
            own = {i: s[part] for i, s in slopes.items()} if slopes else {}
            ways.append(self._way_back(index, a[part], whose if image is None else image[part], own))
        return torch.cat(ways)

    def _way_back(self, index: int, a: Tensor, whose: Tensor | slice, slopes: Slopes) -> Tensor:
        pending: dict[int, Any] = {index: a}
        constant = a.new_zeros(len(a))
        for number in range(index, 0, -1):
            if number not in pending:
                continue
            a, node = pending.pop(number), self.tape.nodes[number]
            if number in self._kinds:
                before, more = self._through(number, a, whose, slopes.get(number))
                found = {node.refs[0]: before}
            else:
                found, more = self._through_affine(number, a)
            constant = constant + more
            for ref, before in found.items():
                pending[ref] = _added(pending[ref], before) if ref in pending else before
        a, center, radius = pending[0], _of(self.box.center, whose), _of(self.box.radius, whose)
        return constant + _dot(a, center) - _dot(a.abs(), radius)

    def _through_affine(self, number: int, a: Any) -> tuple[dict[int, Any], Tensor]:
        node = self.tape.nodes[number]
        shape = self.tape.nodes[node.refs[0]].shape
        rows = len(next(leaves_of(a)))
        found = take_back(node, a, None if shape is None else torch.Size((rows, *shape[1:])))
        if found is not None:
            return {node.refs[0]: found[0]}, found[1]
        if rows not in self._rows:
            self._rows[rows] = _Rows(self, rows)
        own = self._rows[rows]
        return take_back_by_autograd(own.nodes[number], a, own.zeros, own.constants)

    def _through(self, number: int, a: Tensor, whose: Tensor | slice, slopes: Tensor | None) -> tuple[Tensor, Tensor]:
        """Below its own line where a coefficient is positive, above the other where it is negative."""
        lines = self.lines(number)
        if isinstance(lines, Windows):
            image = torch.arange(len(self.box), device=a.device)[whose].repeat_interleave(len(a) // _count(whose, self.box))
            return _through_windows(lines, a, image if isinstance(whose, slice) else whose)
        rows = a.unflatten(0, (_count(whose, self.box), -1)) if isinstance(whose, slice) else a
        positive, negative = rows.clamp(min=0), rows.clamp(max=0)
        low = _of(lines.low_slope, whose) if slopes is None else slopes
        constant = _dot(negative, _of(lines.up_shift, whose))
        if lines.low_shift is not None:
            constant = constant + _dot(positive, _of(lines.low_shift, whose))
        return torch.addcmul(positive * low, negative, _of(lines.up_slope, whose)).view_as(a), constant.flatten()

    def lines(self, index: int) -> Lines | Windows:
        """The lines around an activation over the bounds of its input."""
        if index not in self._lines:
            node = self.tape.nodes[index]
            bounds = self.boxes[node.refs[0]]
            rest, named = node.args[1:], {k: v for k, v in node.kwargs.items() if k not in ("input", "inplace")}
            assert node.func is not None
            self._lines[index] = ACTIVATIONS.get(node.func, max_pool2d)(*bounds, *rest, **named)
        return self._lines[index]


def _of(value: Tensor, whose: Tensor | slice) -> Tensor:
    """Per image (B, ...) -> per row (R, ...), or (b, 1, ...) where rows are in order."""
    return value[whose].unsqueeze(1) if isinstance(whose, slice) else value[whose]


def _count(whose: Tensor | slice, box: Box) -> int:
    return len(range(len(box))[whose]) if isinstance(whose, slice) else len(whose)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Row by row: (R, ...) and (R, ...) -> (R,), or (b k, ...), or (b, k, ...), and (b, 1, ...) -> (b k,)."""
    if a.shape == b.shape:
        return (a * b).flatten(1).sum(1)
    a = a.reshape(len(b), -1, b[0].numel())
    return torch.bmm(a, b.reshape(len(b), -1, 1)).flatten()


def _through_windows(lines: Windows, a: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
    a = a.flatten(2).unsqueeze(2)  # (R, C, 1, L)
    positive, negative = a.clamp(min=0), a.clamp(max=0)
    certain = lines.certain[image]
    spread = lines.spread(positive * lines.pick[image] + negative * certain)
    above = negative.squeeze(2) * lines.ceiling[image] * (1 - certain.sum(2))
    return spread, above.flatten(1).sum(1)


class _Rows:
    """The shapes of all values for so many rows, as zeros that take no memory, and the values that are constants."""

    def __init__(self, bounds: LinearBounds, rows: int) -> None:
        tape, box = bounds.tape, bounds.box
        first = box.center[:1].expand(rows, *box.shape[1:])
        same = rows == len(box)
        own = tape if same else Tape.record(bounds.net, first)
        self.zeros: dict[int, Any] = {0: _zeros(first)}
        self.constants: dict[int, Any] = {}
        self.nodes = own.nodes
        for index, value in own.trace(first):
            kept = self.zeros if own.nodes[index].from_input else self.constants
            kept[index] = map_leaves(value, _zeros) if own.nodes[index].from_input else value


def _zeros(value: Any) -> Any:
    return value.new_zeros(()).expand(value.shape) if isinstance(value, Tensor) else value


def _added(a: Any, b: Any) -> Any:
    if isinstance(a, tuple):
        return tuple(_added(x, y) for x, y in zip(a, b, strict=True))
    return a + b


def intermediate(bounds: LinearBounds) -> Iterator[tuple[str, Box]]:
    """The bounds of every value that enters an activation, with the name of the layer that made it."""
    for index, (lower, upper) in bounds.boxes.items():
        yield bounds.tape.name(index), Box.from_bounds(lower, upper)


def crown_ibp(net: nn.Module, box: Box) -> LinearBounds:
    """Linear bounds whose lines come from interval bounds."""
    return LinearBounds(net, box)


def crown(net: nn.Module, box: Box, *, at_once: int = 512) -> LinearBounds:
    """Linear bounds with lines from linear bounds: tighter, and many times as dear."""
    return LinearBounds(net, box, at_once=at_once).refine()
