"""Linear bounds: CROWN (Zhang et al. 2018) backwards over a recorded network.

A lower bound of a linear function of the network's output is carried back, node by node, as a linear function of ever
earlier values: through affine operations exactly, through activations by one of the two lines around each neuron,
whichever is sound for the sign of its coefficient. At the input it is smallest at a vertex of the box.

    CROWN-IBP     the lines come from interval bounds; one way back, for the margins
    CROWN         neurons that these leave unstable get bounds by a way back of their own, layer by layer
    alpha-CROWN   the slopes of the lower lines of the last way back are optimised, and the best bound is kept

Rows travel together: A (R, ...) holds one linear function per row, and `image` (R,) says whose. No matrix is built.

Over a `Box` the bounds are those of a network of real numbers, computed without regard to rounding. Over a `Rounded`
box they hold for the network as it runs. Every operation then adds noise of at most its error e to what it computes,
and a row of coefficients A that passes it on the way back loses |A| e. The errors of the way back itself have the same
form, so they are part of e (docs/arithmetic.md).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from advibp.bounds.box import Box
from advibp.bounds.domain import unsupported, without_autocast
from advibp.bounds.graph.nodes import Node, Ref, leaves_of, map_leaves
from advibp.bounds.graph.tape import Tape
from advibp.bounds.labels import checked_labels
from advibp.bounds.linear.activations import dot, through_lines, through_windows
from advibp.bounds.linear.relaxation import ACTIVATIONS, KINKED, POOLS, Lines, Windows, crossing, max_pool2d, widened
from advibp.bounds.linear.transpose import Rows, copied, is_affine, mixes, rule_of, take_back
from advibp.bounds.rounded import Rounded
from advibp.bounds.rounding import Rounding, size
from advibp.bounds.rules.rounding_errors import COPIES
from advibp.bounds.zonotope import Zonotope

Slopes = dict[int, Tensor]  # node -> slopes of its lower lines (R, ...)
#: Rows of A at the value of an activation -> those at what enters it, and constants (R,).
Through = Callable[[int, Tensor], tuple[Tensor, Tensor]]

SUPPORTED = (
    "linear bounds know convolutions, linear layers, BatchNorm in evaluation, pooling, sums, reshaping, ReLU, leaky "
    "ReLU, sigmoid and tanh; certify by ibp instead."
)


class Backward(NamedTuple):
    """Where rows of coefficients arrived: the function a x + constant - lost of the input is a lower bound.

    Attributes:
        a: coefficients (R, ...) of the input.
        constant: (R,).
        lost: what rounding errors take at most, (R,); 0 in real arithmetic.
        size: the sizes of all that was added up in `constant`, (R,); 0 in real arithmetic.
    """

    a: Tensor
    constant: Tensor
    lost: Tensor
    size: Tensor


class LinearBounds:
    """Linear bounds of a network over a box of inputs (B, ...).

    `boxes` holds lower and upper bounds (B, ...) of every value that enters an activation, by node of the tape. They
    are at least as tight as interval bounds; margins need not be, so a prover takes the better of both.
    """

    def __init__(
        self, net: nn.Module, inputs: Box | Rounded, *, at_once: int = 512, wide: torch.dtype | None = None
    ) -> None:
        """
        Args:
            net: the network, in the type of `inputs`.
            inputs: the set of inputs (B, ...). A Rounded one asks for bounds of the network as it runs.
            at_once: how many rows go back together, which bounds the memory.
            wide: the network's type, if `inputs` are in double precision, and so are to be the bounds.
        """
        self.net, self.inputs, self.at_once, self.wide = net, inputs, at_once, wide
        self.rounding: Rounding | None = inputs.rounding if isinstance(inputs, Rounded) else None
        box = self.box = inputs.box if isinstance(inputs, Rounded) else inputs
        # A zonotope refuses to move elements between images: a row belongs to one of them. A few will do.
        Tape.record(net, Zonotope.from_box(Box(box.center[:5].to(wide or box.dtype), 0.0)))
        self.tape = self._record(box.center)
        self.nodes = [i for i in self.tape.needed(0, self.tape.output) if self.tape.nodes[i].from_input]
        self.activations = [i for i in self.nodes if self.tape.nodes[i].func in ACTIVATIONS.keys() | POOLS]
        self.boxes: dict[int, tuple[Tensor, Tensor]] = {}
        self._lines: dict[int, Lines | Windows] = {}
        self._constants: dict[int, Any] = {}
        self._rows: dict[int, Rows] = {}
        self._errors: dict[int, Tensor] = {}  # of operations that round, (B, ...)
        self._line_errors: dict[int, Tensor] = {}  # of activations and their lines
        #: What rounding took from the margins of each image at most, (B,); of all rows that went back last, (R,).
        self.lost = self._lost = box.center.new_zeros(len(box))
        self._sizes: dict[int, Tensor] = {}  # of values that several operations use
        #: The radius of the input, wide enough for the rounding of the last dot product.
        self._reach = box.radius
        if self.rounding is not None:
            self._reach = box.radius + size(box) * self.rounding.bounds_sum(box.center[0].numel())
        self._check()
        self._propagate()

    def _record(self, x: Tensor) -> Tape:
        return Tape.record(self.net, x) if self.wide is None else Tape.record_wide(self.net, x, self.wide)

    # ------------------------------------------------------------------------------------------ intervals first

    def _check(self) -> None:
        for index in self.nodes:
            node = self.tape.nodes[index]
            if index not in self.activations and not is_affine(node):
                unsupported(f"{self.tape.name(index)} has no linear bounds", SUPPORTED)
            if node.after or node.state:
                unsupported(f"{self.tape.name(index)} reads what was written in place through another view", SUPPORTED)

    def _propagate(self) -> None:
        """Interval bounds of every value, of which those that enter an activation are kept."""
        entering = {self._entering(index) for index in self.activations}
        inputs = self.inputs.keeping_errors() if isinstance(self.inputs, Rounded) else self.inputs
        uses = [ref for index in self.nodes for ref in self.tape.nodes[index].refs]
        for index, value in itertools.chain([(0, inputs)], self.tape.trace(inputs)):
            if index in entering:  # read now: an activation may write to it
                self.boxes[index] = value.lower, value.upper
            if isinstance(value, Rounded):
                self._note_errors(index, value, uses.count(index))
            if not self.tape.nodes[index].from_input:
                self._constants[index] = map_leaves(value, copied)
        self._output: Box | Rounded = value
        for index in self.activations:  # what has none is refused at once
            self.lines(index)

    def _note_errors(self, index: int, value: Rounded, uses: int) -> None:
        """Keep the error of the operation that made a value, and of its transpose."""
        assert self.rounding is not None
        if value.dtype != self.box.dtype:
            unsupported(f"{self.tape.name(index)} goes on in {value.dtype}, so it has no linear bounds", SUPPORTED)
        error, node = value.error, self.tape.nodes[index]
        if uses > 1:
            self._sizes[index] = size(value.box) * (2 * self.rounding.w)
        copies = self._copies(node, value)
        if copies > 1:  # on the way back their coefficients are added up
            own = self.rounding.bounds_sum(copies)
            error = size(value.box) * own if error is None else error * (1 + own / (32 * self.rounding.w))
        if error is not None:
            self._errors[index] = error

    def _copies(self, node: Node, value: Rounded) -> int:
        """How often an element of an operand is used by elementwise operations and copies, at most."""
        if node.func is None or rule_of(node) in ("affine", "linear", "matmul"):
            return 1
        count = max(1, value.center[0].numel())
        name = getattr(node.func, "__name__", "")
        picks = name in COPIES - {"clone", "flip", "roll"} or (name == "__getitem__" and not _basic(node.args[1]))
        if picks or rule_of(node) in ("pad", "interpolate"):  # a border may repeat one element many times
            return count
        shapes = [self.tape.nodes[ref].shape for ref in node.refs if self.tape.nodes[ref].from_input]
        return max([1, *(-(-count // max(1, shape[1:].numel())) for shape in shapes if shape is not None)])

    def _entering(self, activation: int) -> int:
        return self.tape.nodes[activation].refs[0]

    # ------------------------------------------------------------------------------------------ what is asked for

    def margins(self, y: Tensor) -> Tensor:
        """Lower bounds (B, K) of z_y - z_k for labels y (B,); 0 for k = y."""
        rows, others, _ = self.margin_rows(y)
        found = self.lower(self.tape.output, rows).view(others.shape)
        if self.rounding is not None:
            self.lost = self._lost.view(others.shape).amax(1).to(found.dtype)
        return found.new_zeros(self._output.shape).scatter(1, others, found)

    def interval_margins(self, y: Tensor) -> Tensor:
        """The same by intervals, which are known already."""
        return self._output.lower_margins(y)

    def margin_rows(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A (B (K - 1), K) of rows e_y - e_k, k != y, image by image; those k (B, K - 1); and whose rows they are."""
        y = checked_labels(y, self._output.shape)
        count, classes = self._output.shape
        others = torch.arange(classes - 1, device=y.device).expand(count, -1)
        others = others + (others >= y.unsqueeze(1))
        one = torch.eye(classes, dtype=self._output.dtype, device=y.device)
        rows = (one[y].unsqueeze(1) - one[others]).flatten(0, 1)
        return rows, others, torch.arange(count, device=y.device).repeat_interleave(classes - 1)

    def output(self) -> Box:
        """Bounds of the network's output, intersected with the interval ones."""
        box = self._output
        found = self._bounds_of(self.tape.output, torch.ones_like(box.center, dtype=torch.bool))
        return Box.from_bounds(*_intersected((box.lower, box.upper), found))

    def take(self, keep: Tensor) -> LinearBounds:
        """The same for some images of the batch, by their numbers; what is known of them stays known."""
        box = Box._of(self.box.center[keep], self.box.radius[keep])
        inputs = box if self.rounding is None else Rounded(box, self.rounding)
        taken = LinearBounds(self.net, inputs, at_once=self.at_once, wide=self.wide)
        taken.boxes = {index: (lower[keep], upper[keep]) for index, (lower, upper) in self.boxes.items()}
        taken._lines.clear()
        taken._line_errors.clear()
        taken.lost = self.lost[keep]
        return taken

    def where(self, boxes: dict[int, tuple[Tensor, Tensor]]) -> LinearBounds:
        """The same for the part of the box of inputs in which values that enter activations lie in these boxes."""
        part = copy.copy(self)
        part.boxes, part._lines, part._line_errors = self.boxes | boxes, {}, {}
        return part

    def refine(self) -> LinearBounds:
        """CROWN: tighter bounds for every neuron that the bounds so far leave unstable, from the first layer on."""
        users: dict[int, list[int]] = {}
        for index in self.activations:
            users.setdefault(self._entering(index), []).append(index)
        for entering, indices in sorted(users.items()):
            bounds = self.boxes[entering]
            kinked = all(self.tape.nodes[index].func in KINKED for index in indices)
            wanted = crossing(*bounds) if kinked else torch.ones_like(bounds[0], dtype=torch.bool)
            if bool(wanted.any()) and not self.exact(entering):
                self.tighten(entering, *self._bounds_of(entering, wanted))
        return self

    def tighten(self, entering: int, lower: Tensor, upper: Tensor) -> None:
        """Take note of bounds (B, ...) of what enters an activation, where they are tighter than those known."""
        self.boxes[entering] = _intersected(self.boxes[entering], (lower, upper))
        for index in self.activations:
            if self._entering(index) == entering:
                self._lines.pop(index, None)
                self._line_errors.pop(index, None)

    def exact(self, index: int) -> bool:
        """Whether interval bounds of a value are exact: a chain leads to it in which one operation at most mixes."""
        way = [self.tape.nodes[i] for i in self.tape.needed(0, index) if self.tape.nodes[i].from_input]
        return sum(map(mixes, way)) <= 1 and all(self._uses(node) == 1 for node in way)

    def _uses(self, node: Node) -> int:
        """How often a node uses values that depend on the input."""
        leaves = leaves_of((node.args, node.kwargs))
        return sum(isinstance(leaf, Ref) and self.tape.nodes[leaf.index].from_input for leaf in leaves)

    def _bounds_of(self, index: int, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds of the elements of a value that are wanted (B, ...); +-inf for the others."""
        image, element = torch.nonzero(wanted.reshape(len(wanted), -1), as_tuple=True)
        shape = wanted.shape[1:]
        ends = []
        for sign in (1.0, -1.0):
            found = self.box.center.new_full((len(wanted), shape.numel()), -torch.inf)
            for some, where in zip(image.split(self.at_once), element.split(self.at_once), strict=True):
                rows = found.new_zeros(len(some), found.shape[1])
                rows[torch.arange(len(some), device=some.device), where] = sign
                found[some, where] = self.lower(index, rows.view(-1, *shape), some)
            ends.append(found.view(wanted.shape) * sign)
        return ends[0], ends[1]

    # ------------------------------------------------------------------------------------------ the way back

    def lower(self, index: int, a: Tensor, image: Tensor | None = None, slopes: Slopes | None = None) -> Tensor:
        """Lower bounds (R,) of the rows of A (R, ...) at a node's value; `image` (R,) are their images in the batch.

        Without `image` each image has the same number of rows, in order. `slopes` (R, ...) need `image`.
        """
        per_image = max(1, len(a) // len(self.box))
        size = self.at_once if image is not None else max(1, self.at_once // per_image) * per_image
        ways, lost = [], []
        for start in range(0, len(a), size):
            part = slice(start, start + size)
            whose: Tensor | slice = slice(start // per_image, (start + size) // per_image)
            if image is not None:
                whose = image[part]
            own = {i: s[part] for i, s in slopes.items()} if slopes else {}
            with without_autocast(a.device.type):
                back = self.take_back(index, a[part], self.relaxed(whose, own), whose)
                ways.append(self._lowest(back, whose).to(a.dtype))
                lost.append(back.lost.detach())
        self._lost = torch.cat(lost) if lost else a.new_zeros(0)
        return torch.cat(ways) if ways else a.new_zeros(0)

    def _lowest(self, back: Backward, whose: Tensor | slice) -> Tensor:
        """The smallest values (R,) of linear functions of the input over the box."""
        center, radius = self.box.center[whose].unsqueeze(1), self._reach[whose].unsqueeze(1)
        a = back.a.view(len(center), -1, *center.shape[2:])
        middle, spread = dot(a, center).flatten(), dot(a.abs(), radius).flatten()
        if self.rounding is None:
            return back.constant + middle - spread
        # In double precision; the sums' own errors are below 2^-45 of their terms, that of the last cast below 2 w.
        spread = (1 + self.rounding.bounds_sum(a[0, 0].numel())) * spread.double()
        lower = back.constant + middle.double() - spread - back.lost
        lower = lower - 2.0**-45 * (back.size + middle.double().abs() + spread + back.lost)
        return lower - 2 * self.rounding.w * lower.abs() - self.rounding.tiny

    def take_back(self, index: int, a: Tensor, through: Through, whose: Tensor | slice = slice(None)) -> Backward:
        """Carry rows of A (R, ...) at a node's value back to the input. `through` passes activations, `whose` are the
        rows' images."""
        pending: dict[int, Any] = {index: a}
        exact = self.rounding is not None
        constant = a.new_zeros(len(a), dtype=torch.float64 if exact else a.dtype)
        sizes, lost = constant, constant
        for number in range(index, 0, -1):
            if number not in pending:
                continue
            a, node = pending.pop(number), self.tape.nodes[number]
            if number in self.activations:
                before, more = through(number, a)
                found = {node.refs[0]: before}
            else:
                found, more = self._through_affine(number, a)
            constant = constant + more
            if exact:
                sizes = sizes + more.abs()
                lost = lost + self._loss(a, self._error(number), whose)
            for ref, before in found.items():
                if ref in pending:
                    pending[ref] = _added(pending[ref], before)
                    if exact:  # and round the sum
                        lost = lost + self._loss(pending[ref], self._sizes.get(ref), whose)
                else:
                    pending[ref] = before
        a = pending.get(0, self.box.center.new_zeros(len(a), *self.box.shape[1:]))
        return Backward(a, constant, lost, sizes)

    def _error(self, number: int) -> Tensor | None:
        if number not in self.activations:
            return self._errors.get(number)
        self.lines(number)
        return self._line_errors[number]

    def _loss(self, a: Any, error: Tensor | None, whose: Tensor | slice) -> Tensor | float:
        """|A| e (R,): what noise of at most e (B, ...) takes from rows of A (R, ...)."""
        if error is None:
            return 0.0
        assert self.rounding is not None
        own = error[whose].unsqueeze(1)
        share = 1 + 2 * self.rounding.bounds_sum(a[0].numel())
        return share * dot(a.abs().view(len(own), -1, *a.shape[1:]), own).flatten().double()

    def relaxed(self, whose: Tensor | slice, slopes: Slopes | None = None) -> Through:
        """Past an activation by the line that is sound for the sign of a coefficient. `whose` are the rows' images."""
        return lambda number, a: self._through(number, a, whose, slopes.get(number) if slopes else None)

    def _through_affine(self, number: int, a: Any) -> tuple[dict[int, Any], Tensor]:
        node = self.tape.nodes[number]
        shape = self.tape.nodes[node.refs[0]].shape
        rows = len(next(leaves_of(a)))
        precise = self.rounding is not None
        found = take_back(node, a, None if shape is None else torch.Size((rows, *shape[1:])), precise)
        if found is not None:
            return {node.refs[0]: found[0]}, found[1]
        if rows not in self._rows:
            self._rows[rows] = Rows(self.tape, self._record, self._constants, self.box.center, rows)
        return self._rows[rows].take_back(number, a, precise)

    def _through(self, number: int, a: Tensor, whose: Tensor | slice, slopes: Tensor | None) -> tuple[Tensor, Tensor]:
        lines = self.lines(number)
        if isinstance(lines, Windows):
            images = torch.arange(len(self.box), device=a.device)[whose]
            return through_windows(lines.take(images.repeat_interleave(len(a) // len(images))), a)
        own = Lines(*(None if v is None else v[whose].unsqueeze(1) for v in lines[:4]))  # type: ignore[arg-type]
        if slopes is not None:
            own = own._replace(low_slope=slopes.unsqueeze(1))
        before, constant = through_lines(own, a.view(len(own.up_slope), -1, *a.shape[1:]))
        return before.view(a.shape), constant.flatten()

    def lines(self, index: int) -> Lines | Windows:
        """The lines around an activation over the bounds of its input."""
        if index not in self._lines:
            node = self.tape.nodes[index]
            bounds = self.boxes[node.refs[0]]
            rest, named = node.args[1:], {k: v for k, v in node.kwargs.items() if k not in ("input", "inplace")}
            self._lines[index] = ACTIVATIONS.get(node.func, max_pool2d)(*bounds, *rest, **named)
            if self.rounding is not None:
                self._lines[index], error = widened(self._lines[index], *bounds, self.rounding)
                network = self._errors.get(index)
                self._line_errors[index] = error if network is None else error + network
        return self._lines[index]


def _intersected(bounds: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The tighter of two pairs of bounds, of which a NaN is none. Rounding may let bounds cross that meet."""
    lower, upper = torch.fmax(bounds[0], others[0]), torch.fmin(bounds[1], others[1])
    return torch.minimum(lower, upper), torch.maximum(lower, upper)


def _basic(index: Any) -> bool:
    """Whether an index takes no element twice."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or part is Ellipsis or isinstance(part, (int, slice)) for part in parts)


def _added(a: Any, b: Any) -> Any:
    """Sums of rows of a value, which may be several: (R, ...) each."""
    others = leaves_of(b)
    return map_leaves(a, lambda x: x + next(others))


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
