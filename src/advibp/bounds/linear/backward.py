"""The backward pass of CROWN (Zhang et al. 2018) over a recorded network.

A lower bound of a linear function of a value is carried back, node by node, as a linear function of earlier values:
exactly through affine operations, and by the relaxation of each activation, whose lower line is used for positive
coefficients and whose upper line for negative ones. At the input, a linear function a x + b over the box |x - c| <= r
has the minimum a c + b - |a| r.

Many functions are carried back together: A (R, ...) has one function per row, and `images` tells to which image of the
batch each row belongs. The matrices of the layers are never built.

For a `Box` the bounds are those of a network of real numbers, computed without regard to rounding. For a `Rounded` box
they hold for the network as it runs. The result of every operation is then perturbed by at most its rounding error e,
so a row of coefficients A of this result loses at most |A| e. The rounding errors of the backward pass have the same
form and are part of e (docs/arithmetic.md).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from advibp.bounds.box import Box
from advibp.bounds.domain import unsupported, without_autocast
from advibp.bounds.graph.nodes import Node, leaves_of, map_leaves
from advibp.bounds.graph.tape import Tape
from advibp.bounds.linear.activations import backward_max_pool, backward_relaxation, dot
from advibp.bounds.linear.patches import Patches, backward_patch_activation, backward_patches
from advibp.bounds.linear.relaxation import (
    ACTIVATIONS,
    POOLS,
    LinearRelaxation,
    MaxPoolRelaxation,
    SShaped,
    cover_rounding,
    curve_error,
    max_pool2d,
)
from advibp.bounds.linear.rounding_losses import RoundingErrors
from advibp.bounds.linear.rows import add_any, count_coefficients, with_negatives
from advibp.bounds.linear.transpose import (
    ChannelRule,
    RowTape,
    backward_affine,
    copy_constant,
    folded_convolution,
    is_affine,
    per_channel,
)
from advibp.bounds.rounded import Rounded
from advibp.bounds.rounding import Rounding, size
from advibp.bounds.zonotope import Zonotope

#: Activation (node) -> its free slopes (R, ...) or (R, 2, ...), see `LinearRelaxation.free_slopes`.
Slopes = dict[int, Tensor]
#: Activation (node), rows of its output and their images -> rows of its input, and constants (R,).
ActivationBackward = Callable[[int, Any, Tensor | slice], tuple[Any, Tensor]]

SUPPORTED = (
    "linear bounds support convolutions, linear layers, BatchNorm in evaluation, pooling, sums, reshaping, ReLU, leaky "
    "ReLU, sigmoid and tanh; certify by ibp instead."
)


class BackwardResult(NamedTuple):
    """The result of a backward pass: a x + constant - lost is a lower bound for every input x.

    Attributes:
        a: coefficients (R, ...) of the input; patches if they are zero outside of a window.
        constant: constants (R,).
        lost: the maximal effect of rounding errors (R,); 0 in real arithmetic.
        size: sum of the magnitudes of all terms of `constant`, (R,); 0 in real arithmetic.
    """

    a: Any
    constant: Tensor
    lost: Tensor
    size: Tensor


class BackwardPass:
    """Carries rows back through a network that was recorded over a box of inputs.

    The intermediate bounds are computed by intervals.

    `LinearBounds` describes the arguments.

    Attributes:
        tape: the recorded network.
        activations: nodes of the activations.
        intermediate_bounds: bounds (lower, upper), (B, ...) each, of every pre-activation, by node.
    """

    def __init__(
        self, net: nn.Module, inputs: Box | Rounded, *, at_once: int = 512, wide: torch.dtype | None = None
    ) -> None:
        self.net, self.inputs, self.at_once, self.wide = net, inputs, at_once, wide
        self.rounding: Rounding | None = inputs.rounding if isinstance(inputs, Rounded) else None
        box = self.box = inputs.box if isinstance(inputs, Rounded) else inputs
        # A row belongs to one image. A zonotope raises if the network moves elements between images. Five are enough.
        Tape.record(net, Zonotope.from_box(Box(center=box.center[:5].to(wide or box.dtype), radius=0.0)))
        self.tape = self._record(box.center)
        self.nodes = [i for i in self.tape.needed(0, self.tape.output) if self.tape.nodes[i].from_input]
        self.activations = [i for i in self.nodes if self.tape.nodes[i].func in ACTIVATIONS.keys() | POOLS]
        self.intermediate_bounds: dict[int, tuple[Tensor, Tensor]] = {}
        self._relaxations: dict[int, LinearRelaxation | MaxPoolRelaxation] = {}
        self._constants: dict[int, Any] = {}
        self._row_tapes: dict[int, RowTape] = {}
        self._channel_rules: dict[int, ChannelRule | None] = {}
        self._folded: dict[int, Node] = {}  # BatchNorm behind a convolution, as one convolution
        self._errors = RoundingErrors(self.tape, self.rounding)
        self._relaxation_errors: dict[int, Tensor] = {}  # rounding errors of activations and their relaxations
        # The maximal effect of rounding on the margins of each image (B,), and on the rows of the last `lower` (R,).
        self.lost = self._lost = box.center.new_zeros(len(box))
        self.row_size = (
            1  # the largest number of coefficients at a node in the last backward pass, per row at its start
        )
        self._boxes: dict[int, tuple[Tensor, Tensor]] = {}  # center and radius by node, see `_box_at`
        self._check()
        self._propagate()

    def _record(self, x: Tensor) -> Tape:
        """Record the network on a batch."""
        return Tape.record(self.net, x) if self.wide is None else Tape.record_wide(self.net, x, self.wide)

    def _check(self) -> None:
        """Raise if an operation has no linear bounds."""
        for index in self.nodes:
            node = self.tape.nodes[index]
            if index not in self.activations and not is_affine(node):
                unsupported(f"{self.tape.name(index)} has no linear bounds", SUPPORTED)
            if node.after or node.state:
                unsupported(
                    f"{self.tape.name(index)} reads memory that was written in place through another view", SUPPORTED
                )

    def _propagate(self) -> None:
        """Compute interval bounds of every value, and keep those of the pre-activations."""
        pre_activations = {self._pre_activation_of(index) for index in self.activations}
        inputs = self.inputs.keeping_errors() if isinstance(self.inputs, Rounded) else self.inputs
        uses, box_type = [ref for index in self.nodes for ref in self.tape.nodes[index].refs], self.box.dtype
        for index, value in itertools.chain([(0, inputs)], self.tape.trace(inputs)):
            if index in pre_activations:  # read now, because an activation may write to it
                self.intermediate_bounds[index] = value.lower, value.upper
            if isinstance(value, Rounded):
                if value.dtype != box_type:
                    unsupported(
                        f"{self.tape.name(index)} continues in {value.dtype}, so it has no linear bounds", SUPPORTED
                    )
                self._errors.note(index, value, uses.count(index))
            if not self.tape.nodes[index].from_input:
                self._constants[index] = map_leaves(value, copy_constant)
        self._output: Box | Rounded = value
        for index in self.activations:  # raises if there is no relaxation
            self.relaxation(index)

    def _pre_activation_of(self, activation: int) -> int:
        """Return the node of an activation's input."""
        return self.tape.nodes[activation].refs[0]

    def lower(self, index: int, a: Tensor, image: Tensor | None = None, slopes: Slopes | None = None) -> Tensor:
        """Compute lower bounds of linear functions of a node's value.

        Args:
            index: the node.
            a: coefficients A (R, ...) of its value.
            image: image of each row (R,). Default: every image has the same number of rows, in order.
            slopes: free slopes of each row, by activation. They need `image`. Default: CROWN's.

        Returns:
            Lower bounds (R,).
        """
        per_image = max(1, len(a) // len(self.box))
        rows_at_once = self.at_once if image is not None else max(1, self.at_once // per_image) * per_image
        bounds, lost = [], []
        for start in range(0, len(a), rows_at_once):
            part = slice(start, start + rows_at_once)
            images: Tensor | slice = slice(start // per_image, (start + rows_at_once) // per_image)
            if image is not None:
                images = image[part]
            part_slopes = {i: s[part] for i, s in slopes.items()} if slopes else {}
            with without_autocast(a.device.type):
                back = self.backward(index, a[part], self.through_relaxations(part_slopes), images)
                bounds.append(self.minimize(back, images).to(a.dtype))
                lost.append(back.lost.detach())
        self._lost = torch.cat(lost) if lost else a.new_zeros(0)
        return torch.cat(bounds) if bounds else a.new_zeros(0)

    def minimize(self, back: BackwardResult, images: Tensor | slice, at: int = 0) -> Tensor:
        """Return the minima (R,) of linear functions of the input, or of a pre-activation, over its box."""
        center, radius = self._box_at(at)
        if isinstance(back.a, Patches):
            center, radius = (back.a.gather(v, images).unsqueeze(1) for v in (center, radius))
            a = back.a.a.unsqueeze(1)
        else:
            center, radius = center[images].unsqueeze(1), radius[images].unsqueeze(1)
            a = back.a.view(len(center), -1, *center.shape[2:])
        middle, spread = dot(a, center).flatten(), dot(a.abs(), radius).flatten()
        if self.rounding is None:
            return back.constant + middle - spread
        # In float64: the error of the sums is below 2^-45 of their terms, that of the last cast below 2 w.
        spread = (1 + self.rounding.bounds_sum(a[0, 0].numel())) * spread.double()
        lower = back.constant + middle.double() - spread - back.lost
        lower = lower - 2.0**-45 * (back.size + middle.double().abs() + spread + back.lost)
        return lower - 2 * self.rounding.w * lower.abs() - self.rounding.tiny

    def _box_at(self, index: int) -> tuple[Tensor, Tensor]:
        """Return center and radius (B, ...) of the input, or of a pre-activation.

        The radius is wide enough to cover the rounding of a dot product with the center.
        """
        if index not in self._boxes:
            inside = self.inputs if index == 0 else self._set_within(index)
            box = inside.box if isinstance(inside, Rounded) else inside
            radius = box.radius
            if self.rounding is not None:
                radius = radius + size(box) * self.rounding.bounds_sum(box.center[0].numel())
            self._boxes[index] = box.center, radius
        return self._boxes[index]

    def is_finite(self, index: int) -> bool:
        """Return whether all bounds of a pre-activation are finite. They are not if the network may overflow."""
        return all(bool(bounds.isfinite().all()) for bounds in self.intermediate_bounds[index])

    def _set_within(self, index: int) -> Box | Rounded:
        """Return the finite bounds of a pre-activation as a set."""
        lower, upper = self.intermediate_bounds[index]
        if self.rounding is None:
            return Box.from_bounds(lower, upper)
        return Rounded.between(lower.double(), upper.double(), self.rounding)

    def backward(
        self,
        index: int,
        a: Tensor | Patches,
        through: ActivationBackward,
        images: Tensor | slice = slice(None),
        undecided: Callable[[int, BackwardResult, Tensor | slice], Tensor | None] | None = None,
        both_signs: bool = False,
    ) -> BackwardResult:
        """Carry rows back to the input.

        Args:
            index: the node.
            a: coefficients A (R, ...) of its value.
            through: carries rows of some images back through an activation.
            images: the images of the rows, as indices (R,) or a slice.
            undecided: called with the linear functions of each pre-activation, and their images, if no other value is
                involved. It returns the indices of the rows to carry on; None for all of them. It is not called before
                the rows have passed two activations: over the bounds of the layer before they are not better than
                intervals.
            both_signs: whether the negatives of the rows are carried back too, as the last R of 2 R rows. Affine
                operations before the first activation are computed once for both.

        Returns:
            The linear functions of the input.
        """
        pending: dict[int, Any] = {index: a}
        rounds = self.rounding is not None
        constant = self.box.center.new_zeros(len(a), dtype=torch.float64 if rounds else self.box.dtype)
        sizes, lost, self.row_size, passed = constant, constant, 1, 0
        rows, twice = max(1, len(a)), both_signs
        for number in range(index, 0, -1):
            if number not in pending:
                continue
            if twice and number in self.activations:
                pending, constant, lost, sizes = with_negatives(pending, constant, lost, sizes)
                images, twice = images.repeat(2) if isinstance(images, Tensor) else images, False
            a, node = self._stored(pending.pop(number), images), self.tape.nodes[number]
            self.row_size = max(self.row_size, count_coefficients(a) // rows)
            if number in self.activations:
                passed += 1
                before, more = through(number, a, images)
                earlier = {node.refs[0]: before}
            else:
                earlier, more = self._backward_affine(number, a)
            constant = constant + more
            if rounds:
                sizes = sizes + more.abs()
                lost = lost + self._errors.loss(a, self._error_of(number), images)
            for ref, before in earlier.items():
                if ref in pending:
                    pending[ref] = add_any(pending[ref], before)
                    if rounds:  # the sum is rounded
                        lost = lost + self._errors.loss(pending[ref], self._errors.of_sums.get(ref), images)
                else:
                    pending[ref] = before
            if undecided is not None and number in self.activations and passed > 1 and len(pending) == 1:
                ((ref, a),) = pending.items()
                keep = undecided(ref, BackwardResult(a, constant, lost, sizes), images)
                if keep is not None:
                    pending[ref] = a.take(keep) if isinstance(a, Patches) else a[keep]
                    constant, lost, sizes = constant[keep], lost[keep], sizes[keep]
                    images = images if isinstance(images, slice) else images[keep]
                    if not len(keep):
                        return BackwardResult(self.box.center.new_zeros(0, *self.box.shape[1:]), constant, lost, sizes)
        if twice:
            pending, constant, lost, sizes = with_negatives(pending, constant, lost, sizes)
        a = pending.get(0, self.box.center.new_zeros(len(constant), *self.box.shape[1:]))
        return BackwardResult(a, constant, lost, sizes)

    def _stored(self, a: Any, images: Tensor | slice) -> Any:
        """Return rows in the form in which they are carried back fastest."""
        if isinstance(a, Patches) and a.is_large:
            a = a.dense()
        if isinstance(a, Tensor) and a.dim() == 4 and isinstance(images, slice) and not torch.is_grad_enabled():
            return a.contiguous(memory_format=torch.channels_last)
        return a

    def _error_of(self, number: int) -> Tensor | None:
        """Return the rounding error (B, ...) at a node, or None if it is exact."""
        if number not in self.activations:
            return self._errors.of_nodes.get(number)
        self.relaxation(number)
        return self._relaxation_errors[number]

    def through_relaxations(self, slopes: Slopes | None = None) -> ActivationBackward:
        """Return a function that carries rows back through the relaxation of an activation."""
        return lambda number, a, images: self._backward_activation(
            number, a, images, slopes.get(number) if slopes else None
        )

    def _backward_affine(self, number: int, a: Any) -> tuple[dict[int, Any], Tensor]:
        """Carry rows back through an affine operation."""
        node, precise = self.tape.nodes[number], self.rounding is not None
        rule = None if torch.is_grad_enabled() else self._channel_rule(number)  # it has no gradient
        if rule is not None and number in self._folded:
            node, rule = self._folded[number], None
        if isinstance(a, Patches):
            back = backward_patches(node, a, rule, self.tape.nodes[node.refs[0]].shape, precise)
            if back is not None:
                return back
            a = a.dense()
        if rule is not None:
            return rule.backward(a, precise)
        shape = self.tape.nodes[node.refs[0]].shape
        rows = len(next(leaves_of(a)))
        result = backward_affine(node, a, None if shape is None else torch.Size((rows, *shape[1:])), precise)
        if result is not None:
            return {node.refs[0]: result[0]}, result[1]
        return self._row_tape(rows).backward(number, a, precise)

    def _channel_rule(self, number: int) -> ChannelRule | None:
        """Return the numbers of an elementwise operation, if they depend only on the channel."""
        if number not in self._channel_rules:
            node = self.tape.nodes[number]
            shapes = {ref: self.tape.nodes[ref].shape for ref in node.refs if self.tape.nodes[ref].from_input}
            rule = self._channel_rules[number] = per_channel(node, shapes, self._constants, self.box.center)
            if rule is not None:
                self._row_tape(len(self.box) + 1).check(number)
                # Errors of the network's own operations are needed where proofs cover rounding.
                folded = folded_convolution(self.tape.nodes[node.refs[0]], rule) if self.rounding is None else None
                if folded is not None and len(node.refs) == 1:
                    self._folded[number] = folded
        return self._channel_rules[number]

    def _row_tape(self, rows: int) -> RowTape:
        """Return the network recorded for a number of rows."""
        if rows not in self._row_tapes:
            self._row_tapes[rows] = RowTape(self.tape, self._record, self._constants, self.box.center, rows)
        return self._row_tapes[rows]

    def _backward_activation(
        self, number: int, a: Any, images: Tensor | slice, slopes: Tensor | None
    ) -> tuple[Any, Tensor]:
        """Carry rows back through the relaxation of an activation."""
        relaxation = self.relaxation(number)
        if isinstance(a, Patches):
            assert slopes is None
            return backward_patch_activation(relaxation, a, images)
        if isinstance(relaxation, MaxPoolRelaxation):
            indices = torch.arange(len(self.box), device=a.device)[images]
            return backward_max_pool(relaxation.take(indices.repeat_interleave(len(a) // len(indices))), a)
        if slopes is not None and relaxation.curve is not None:
            of_rows = self._curve_lines(number, relaxation.curve, slopes, images)
        else:
            of_rows = LinearRelaxation(*(None if v is None else v[images].unsqueeze(1) for v in relaxation[:4]))  # type: ignore[arg-type]
            if slopes is not None:
                of_rows = of_rows._replace(lower_slope=slopes.unsqueeze(1))
        before, constant = backward_relaxation(of_rows, a.view(len(of_rows.upper_slope), -1, *a.shape[1:]))
        return before.view(a.shape), constant.flatten()

    def _curve_lines(self, number: int, curve: SShaped, slopes: Tensor, images: Tensor | slice) -> LinearRelaxation:
        """Return the lines (R, 1, ...) of a curve with the given slopes (R, 2, ...)."""
        lower, upper = (end[images] for end in self.intermediate_bounds[self._pre_activation_of(number)])
        lines = curve.with_slopes(slopes, lower, upper)
        if self.rounding is not None:
            sizes = torch.maximum(lower.abs(), upper.abs())
            lines = lines.widened(curve_error(sizes, self.rounding.w))
        return LinearRelaxation(*(part.unsqueeze(1) for part in lines[:4]))  # type: ignore[arg-type, union-attr]

    def relaxation(self, index: int) -> LinearRelaxation | MaxPoolRelaxation:
        """Return the relaxation of an activation over the bounds of its input."""
        if index not in self._relaxations:
            node = self.tape.nodes[index]
            lower, upper = self.intermediate_bounds[node.refs[0]]
            constants, options = node.args[1:], {k: v for k, v in node.kwargs.items() if k not in ("input", "inplace")}
            if lower.dim() == 4 and not torch.is_grad_enabled():  # as the rows, see `_stored`
                lower, upper = (b.contiguous(memory_format=torch.channels_last) for b in (lower, upper))
            self._relaxations[index] = ACTIVATIONS.get(node.func, max_pool2d)(lower, upper, *constants, **options)
            if self.rounding is not None:
                self._relaxations[index], error = cover_rounding(self._relaxations[index], lower, upper, self.rounding)
                network = self._errors.of_nodes.get(index)
                self._relaxation_errors[index] = error if network is None else error + network
        return self._relaxations[index]
