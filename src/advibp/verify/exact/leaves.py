"""Solves subproblems with few unstable neurons exactly, as mixed integer programs."""

from __future__ import annotations

from torch import Tensor

from advibp.bounds.linear.kinks import Kinks, UnstableRelus
from advibp.verify.exact.integer_program import Program, Split
from advibp.verify.exact.milp import solve_margin
from advibp.verify.exact.question import Answer, Question


class Leaves:
    """Solver of subproblems, given by the signs (V,) of pre-activations of unstable neurons: 0 if undecided."""

    def __init__(self, question: Question, kinks: Kinks) -> None:
        self._question, self._kinks = question, kinks
        self._places = {  # column of a ReLU -> node and element of its pre-activation
            column: (found.pre_activation, element)
            for number, found in kinks.of.items()
            if isinstance(found, UnstableRelus)
            for column, element in enumerate(found.elements.tolist(), kinks.columns(number).start)
        }

    def solve(self, k: int, signs: Tensor, deadline: float) -> Answer:
        """Decide whether the k-th conjunction can hold in a subproblem. An empty subproblem has an infinite margin."""
        splits = [
            Split(*self._places[column], bool(signs[column] > 0)) for column in signs.nonzero().flatten().tolist()
        ]
        kinks = Kinks(self._kinks.bounds.where(self._boxes(splits)))
        output = kinks.bounds.tape.output
        rows, offsets = self._question.conjunction(k)
        linear, one = kinks.linear(output, rows, offsets), len(rows) == 1
        program = Program(kinks, output, integer=True, splits=splits, largest_of=None if one else linear)
        return solve_margin(self._question, program, linear if one else None, deadline)

    def _boxes(self, splits: list[Split]) -> dict[int, tuple[Tensor, Tensor]]:
        """Intermediate bounds, cut at 0 by the splits."""
        boxes = {}
        for split in splits:
            if split.entering not in boxes:
                lower, upper = self._kinks.bounds.intermediate_bounds[split.entering]
                boxes[split.entering] = lower.clone(), upper.clone()
            lower, upper = (end.view(-1) for end in boxes[split.entering])
            end = lower if split.positive else upper
            end[split.element] = 0.0
        return boxes
