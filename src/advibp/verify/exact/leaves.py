"""Parts of a box with few kinks left to decide, solved exactly as mixed integer programs."""

from __future__ import annotations

from torch import Tensor

from advibp.bounds.linear.kinks import Bends, Kinks
from advibp.verify.exact.integer_program import Program, Split
from advibp.verify.exact.milp import settled
from advibp.verify.exact.question import Answer, Question


class Leaves:
    """Parts of the box of a question, by the signs (V,) of what enters its kinks: 0 where they are unknown."""

    def __init__(self, question: Question, kinks: Kinks) -> None:
        self._question, self._kinks = question, kinks
        self._places = {  # of the ReLUs: node and element that enter
            column: (found.entering, element)
            for number, found in kinks.of.items()
            if isinstance(found, Bends)
            for column, element in enumerate(found.elements.tolist(), kinks.columns(number).start)
        }

    def solve(self, k: int, signs: Tensor, deadline: float) -> Answer:
        """Whether a part reaches the k-th conjunction; without a point in it the margin is infinite."""
        splits = [
            Split(*self._places[column], bool(signs[column] > 0)) for column in signs.nonzero().flatten().tolist()
        ]
        kinks = Kinks(self._kinks.bounds.where(self._boxes(splits)))
        output = kinks.bounds.tape.output
        rows, offsets = self._question.conjunction(k)
        linear, one = kinks.linear(output, rows, offsets), len(rows) == 1
        program = Program(kinks, output, integer=True, splits=splits, largest_of=None if one else linear)
        return settled(self._question, program, linear if one else None, deadline)

    def _boxes(self, splits: list[Split]) -> dict[int, tuple[Tensor, Tensor]]:
        """The boxes of what enters activations, cut at 0 where a split says so."""
        found = {}
        for split in splits:
            if split.entering not in found:
                lower, upper = self._kinks.bounds.boxes[split.entering]
                found[split.entering] = lower.clone(), upper.clone()
            lower, upper = (end.view(-1) for end in found[split.entering])
            end = lower if split.positive else upper
            end[split.element] = 0.0
        return found
