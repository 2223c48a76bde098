"""Linear bounds of a network: CROWN-IBP and CROWN.

Both compute margins by a backward pass (backward.py). They differ in the intermediate bounds, on which the relaxations
depend:

    CROWN-IBP     intermediate bounds by intervals; one backward pass, for the margins (Zhang et al. 2020)
    CROWN         neurons that are unstable by interval bounds get bounds by backward passes, layer by layer (Zhang et
                  al. 2018)
    alpha-CROWN   the slopes of the lower lines in the last backward pass are optimized (alpha_crown.py)
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from advibp.bounds.box import Box
from advibp.bounds.domain import unsupported
from advibp.bounds.graph.nodes import Node, Ref, leaves_of
from advibp.bounds.labels import checked_labels, smallest_margin
from advibp.bounds.linear.backward import BackwardPass
from advibp.bounds.linear.neuron_bounds import neuron_bounds
from advibp.bounds.linear.relaxation import PIECEWISE_LINEAR, is_unstable
from advibp.bounds.linear.transpose import mixes_elements
from advibp.bounds.rounded import Rounded


class LinearBounds(BackwardPass):
    """Linear bounds of a network over a box of inputs (B, ...).

    Intermediate bounds are at least as tight as interval bounds. Margins need not be, so a verifier uses the better of
    both.

    Args:
        net: the network, in the dtype of `inputs`.
        inputs: the set of inputs (B, ...). For a Rounded set the bounds hold for the network as it runs.
        at_once: maximal number of rows per backward pass, which limits the memory. Default: 512.
        wide: dtype of the network, if `inputs` and the bounds are in float64 and the network is not.

    Attributes:
        intermediate_bounds: bounds (lower, upper), (B, ...) each, of every pre-activation, by node of the tape.
        lost: the maximal effect of rounding on the margins of each image (B,); 0 in real arithmetic.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> from advibp import Box
        >>> from advibp.bounds import LinearBounds
        >>> net = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 2, bias=False)).requires_grad_(False)
        >>> _ = net[0].weight.copy_(torch.tensor([[1.0], [1.0]]))
        >>> _ = net[1].weight.copy_(torch.tensor([[1.0, -1.0], [0.0, 0.0]]))
        >>> box, y = Box(center=torch.tensor([[0.5]]), radius=0.5), torch.tensor([0])
        >>> net(box).lower_margins(y)[0, 1], LinearBounds(net, box).margins(y)[0, 1]  # the output is x - x
        (tensor(-1.), tensor(0.))
    """

    def margins(self, y: Tensor) -> Tensor:
        """Compute lower bounds of the margins z_y - z_k.

        Args:
            y: labels (B,).

        Returns:
            Lower bounds (B, K); 0 for k = y.
        """
        rows, others, _ = self.margin_rows(y)
        lower = self.lower(self.tape.output, rows).view(others.shape)
        if self.rounding is not None:
            self.lost = self._lost.view(others.shape).amax(1).to(lower.dtype)
        return lower.new_zeros(self._output.shape).scatter(1, others, lower)

    def proved(self, y: Tensor) -> Tensor:
        """Return for which inputs (B,) the linear bounds or the intervals prove the labels y (B,)."""
        return smallest_margin(torch.maximum(self.margins(y), self.interval_margins(y)), y) > 0

    def interval_margins(self, y: Tensor) -> Tensor:
        """Return lower bounds (B, K) of the margins by intervals, which are already known."""
        return self._output.lower_margins(y)

    def interval_margin_box(self, y: Tensor) -> Box:
        """Return the box (B, K) of the margins by intervals. There is none if the bounds cover rounding."""
        if isinstance(self._output, Rounded):
            unsupported("a Rounded set has no box of its margins", "use a Box.")
        return self._output.margins(y)

    def margin_rows(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the margins as linear functions of the output.

        Args:
            y: labels (B,).

        Returns:
            Rows e_y - e_k for k != y, (B (K - 1), K), image by image; the classes k (B, K - 1); the image of each row
            (B (K - 1),).
        """
        y = checked_labels(y, self._output.shape)
        count, classes = self._output.shape
        others = torch.arange(classes - 1, device=y.device).expand(count, -1)
        others = others + (others >= y.unsqueeze(1))
        identity = torch.eye(classes, dtype=self._output.dtype, device=y.device)
        rows = (identity[y].unsqueeze(1) - identity[others]).flatten(0, 1)
        return rows, others, torch.arange(count, device=y.device).repeat_interleave(classes - 1)

    def output(self) -> Box:
        """Return a box (B, ...) of the network's output: linear bounds intersected with interval bounds."""
        box = self._output
        linear = neuron_bounds(
            self, self.tape.output, torch.ones_like(box.center, dtype=torch.bool), until_stable=False
        )
        return Box.from_bounds(*_intersected((box.lower, box.upper), linear))

    def take(self, keep: Tensor) -> LinearBounds:
        """Return the bounds of some images, given by their indices. Known intermediate bounds are kept."""
        box = Box._of(self.box.center[keep], self.box.radius[keep])
        inputs = box if self.rounding is None else Rounded(box, self.rounding)
        part = LinearBounds(self.net, inputs, at_once=self.at_once, wide=self.wide)
        part.intermediate_bounds = {
            index: (lower[keep], upper[keep]) for index, (lower, upper) in self.intermediate_bounds.items()
        }
        part._relaxations.clear()
        part._relaxation_errors.clear()
        part.lost = self.lost[keep]
        return part

    def where(self, boxes: dict[int, tuple[Tensor, Tensor]]) -> LinearBounds:
        """Return the bounds over the part of the input box in which pre-activations lie in these boxes (by node)."""
        part = copy.copy(self)
        part.intermediate_bounds = self.intermediate_bounds | boxes
        part._relaxations, part._relaxation_errors, part._boxes = {}, {}, {}
        return part

    def refine(self) -> LinearBounds:
        """Tighten the bounds of every unstable neuron by backward passes, from the first layer on: CROWN.

        Intervals are propagated again from the tightened bounds. They prove many neurons of the next layer to be
        stable, so that these need no backward pass. The values are smaller too, and so are their rounding errors.
        """
        activations_of: dict[int, list[int]] = {}
        for index in self.activations:
            activations_of.setdefault(self._pre_activation_of(index), []).append(index)

        def tightened(index: int, value: Any) -> Any:
            if tightened_before and isinstance(value, Rounded):
                self._errors.note(index, value, uses.count(index))
            if index not in activations_of:
                return value
            bounds = self.intermediate_bounds[index]
            piecewise_linear = all(self.tape.nodes[i].func in PIECEWISE_LINEAR for i in activations_of[index])
            if tightened_before and piecewise_linear:
                stable = ~is_unstable(value.lower, value.upper)
                bounds = (
                    torch.where(stable, value.lower, bounds[0]),
                    torch.where(stable, value.upper, bounds[1]),
                )
                self.tighten(index, *bounds)
            wanted = is_unstable(*bounds) if piecewise_linear else torch.ones_like(bounds[0], dtype=torch.bool)
            if bool(wanted.any()) and not self.exact(index):
                self.tighten(index, *neuron_bounds(self, index, wanted, until_stable=piecewise_linear))
                tightened_before.append(index)
            if not tightened_before or not self.is_finite(index):
                return value
            within = self._set_within(index)
            return within.keeping_errors() if isinstance(within, Rounded) else within

        tightened_before: list[int] = []
        value = self._output  # of a network without operations
        inputs = self.inputs.keeping_errors() if isinstance(self.inputs, Rounded) else self.inputs
        uses = [ref for index in self.nodes for ref in self.tape.nodes[index].refs]
        for _, value in self.tape.trace(inputs, change=tightened):  # noqa: B007
            pass
        self._output = value
        self._relaxations.clear()  # they contain rounding errors
        self._relaxation_errors.clear()
        return self

    def tighten(self, pre_activation: int, lower: Tensor, upper: Tensor) -> None:
        """Intersect the bounds of a pre-activation with other bounds.

        Args:
            pre_activation: its node.
            lower: lower bounds (B, ...).
            upper: upper bounds (B, ...).
        """
        self.intermediate_bounds[pre_activation] = _intersected(
            self.intermediate_bounds[pre_activation], (lower, upper)
        )
        for index in self.activations:
            if self._pre_activation_of(index) == pre_activation:
                self._relaxations.pop(index, None)
                self._relaxation_errors.pop(index, None)
        self._boxes.pop(pre_activation, None)

    def exact(self, index: int) -> bool:
        """Return whether intervals bound a value exactly: a chain with at most one mixing operation computes it."""
        nodes = [self.tape.nodes[i] for i in self.tape.needed(0, index) if self.tape.nodes[i].from_input]
        return sum(map(mixes_elements, nodes)) <= 1 and all(self._uses(node) == 1 for node in nodes)

    def _uses(self, node: Node) -> int:
        """Return how often a node uses values that depend on the input."""
        leaves = leaves_of((node.args, node.kwargs))
        return sum(isinstance(leaf, Ref) and self.tape.nodes[leaf.index].from_input for leaf in leaves)


def _intersected(bounds: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the tighter of two pairs of bounds. NaN is ignored. Bounds that cross by rounding are swapped."""
    lower, upper = torch.fmax(bounds[0], others[0]), torch.fmin(bounds[1], others[1])
    return torch.minimum(lower, upper), torch.maximum(lower, upper)


def intermediate(bounds: LinearBounds) -> Iterator[tuple[str, Box]]:
    """Iterate over the intermediate bounds.

    Args:
        bounds: linear bounds of a network.

    Yields:
        The name of the layer that computes a pre-activation, and its box (B, ...).

    Examples:
        >>> import torch
        >>> from advibp import Box, nets
        >>> from advibp.bounds import crown, intermediate
        >>> bounds = crown(nets.build("FC 8", (1, 3, 3), 3), Box.ball(torch.rand(2, 1, 3, 3), 0.1))
        >>> [(name, box.shape) for name, box in intermediate(bounds)]
        [("layer '1' (linear)", torch.Size([2, 8]))]
    """
    for index, (lower, upper) in bounds.intermediate_bounds.items():
        yield bounds.tape.name(index), Box.from_bounds(lower, upper)


def crown_ibp(net: nn.Module, box: Box) -> LinearBounds:
    """Compute CROWN-IBP bounds: linear bounds whose intermediate bounds come from intervals.

    Args:
        net: the network.
        box: inputs (B, ...).

    Examples:
        >>> import torch
        >>> from advibp import Box, nets
        >>> from advibp.bounds import crown_ibp
        >>> bounds = crown_ibp(nets.build("FC 8", (1, 3, 3), 3), Box.ball(torch.rand(2, 1, 3, 3), 0.1))
        >>> bounds.margins(torch.tensor([0, 1])).shape
        torch.Size([2, 3])
    """
    return LinearBounds(net, box)


def crown(net: nn.Module, box: Box, *, at_once: int = 512) -> LinearBounds:
    """Compute CROWN bounds: linear bounds whose intermediate bounds are linear bounds. Tighter than CROWN-IBP, and much
    slower.

    Args:
        net: the network.
        box: inputs (B, ...).
        at_once: maximal number of rows per backward pass, which limits the memory. Default: 512.

    Examples:
        >>> import torch
        >>> from advibp import Box, nets
        >>> from advibp.bounds import crown
        >>> bounds = crown(nets.build("FC 8, FC 8", (1, 3, 3), 3), Box.ball(torch.rand(2, 1, 3, 3), 0.1))
        >>> bounds.output().shape
        torch.Size([2, 3])
    """
    return LinearBounds(net, box, at_once=at_once).refine()
