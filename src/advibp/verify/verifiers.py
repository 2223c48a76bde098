"""Who can prove an image robust, cheapest first, and what they proved of a batch so far.

Each answer is the maximum, class by class, of all provers asked so far, and linear bounds start from interval bounds:
what a cheaper prover proved stays proved. Searches, which take one image at a time, are asked about the classes that
are left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from advibp.bounds import Box
from advibp.bounds.linear.alpha_crown import alpha_margins
from advibp.bounds.linear.crown import LinearBounds
from advibp.bounds.rounded import Rounded
from advibp.bounds.zonotope import Zonotope
from advibp.errors import UserError
from advibp.execution.own_copy import run_on_copy
from advibp.verify.exact.branch_and_bound import branch
from advibp.verify.exact.milp import milp
from advibp.verify.exact.question import Answer, Question
from advibp.verify.exact.refinezono import refinezono
from advibp.verify.ibp_margins import worst


class Proof:
    """Lower bounds of the margins (B, K) over a box of images, and what they were computed from."""

    def __init__(self, net: nn.Module, inputs: Box | Rounded, y: Tensor) -> None:
        """
        Args:
            net: the network, in evaluation mode.
            inputs: the sets of images (B, ...): Rounded for a proof about the network as it runs.
            y: labels (B,).
        """
        self.net, self.inputs, self.y = net, inputs, y
        self.margins = run_on_copy(net, inputs).lower_margins(y)  # what every prover starts from
        self._linear: LinearBounds | None = None
        self._refined = False

    def ask(self, prover: str) -> Tensor:
        """The smallest margin of each image (B,) as far as `prover` and those before it can tell; robust iff > 0."""
        PROVERS[prover](self)
        return worst(self.margins, self.y)

    def take(self, keep: Tensor) -> Proof:
        """The same for some of the images, by their numbers."""
        taken = object.__new__(Proof)
        taken.net, taken.inputs, taken.y = self.net, _take(self.inputs, keep), self.y[keep]
        taken.margins, taken._refined = self.margins[keep], self._refined
        taken._linear = self._linear.take(keep) if self._linear and len(keep) else None
        return taken

    def _improve(self, margins: Tensor) -> None:
        # A NaN proves nothing, and must not take the place of a proof.
        self.margins = torch.where(margins > self.margins, margins, self.margins)

    @property
    def lost(self) -> Tensor | float:
        """What rounding took from the linear margins of each image at most, (B,)."""
        return 0.0 if self._linear is None else self._linear.lost

    @property
    def linear(self) -> LinearBounds:
        if self._linear is None:
            self._linear = LinearBounds(self.net, self.inputs)
        return self._linear

    def ibp(self) -> None:
        """Margins by intervals: already there."""

    def crown_ibp(self) -> None:
        self._improve(self.linear.margins(self.y))

    def crown(self) -> None:
        if not self._refined:
            if self._linear is None:
                self.crown_ibp()
            self.linear.refine()
            self._refined = True
        self._improve(self.linear.margins(self.y))

    def deepz(self) -> None:
        """A zonotope of one image at a time: its symbols are many."""
        found = []
        for k in range(len(self.y)):
            one = _take(self.inputs, slice(k, k + 1))
            zonotope = one.zonotope() if isinstance(one, Rounded) else Zonotope.from_box(one)
            found.append(self.net(zonotope).lower_margins(self.y[k : k + 1]))
        self._improve(torch.cat(found))

    def alpha_crown(self) -> None:
        self.crown()
        self._improve(alpha_margins(self.linear, self.y))


def _take(inputs: Box | Rounded, keep: Tensor | slice) -> Box | Rounded:
    """The sets of some of the images."""
    return inputs.take(keep) if isinstance(inputs, Rounded) else Box(inputs.center[keep], inputs.radius[keep])


#: Of whole batches; cheapest first.
PROVERS: dict[str, Callable[[Proof], None]] = {
    "ibp": Proof.ibp,
    "crown-ibp": Proof.crown_ibp,
    "crown": Proof.crown,
    "deepz": Proof.deepz,
    "alpha-crown": Proof.alpha_crown,
}


class Search(Protocol):
    """Takes its time for one image; `bab` and `milp` may find a counterexample, and given time they find out."""

    def __call__(self, question: Question, *, seconds: float) -> Answer: ...


#: Of one image at a time; cheapest first.
SEARCHES: dict[str, Search] = {"refinezono": refinezono, "bab": branch, "milp": milp}

VERIFIERS = (*PROVERS, *SEARCHES)
#: Who is asked by the name `complete`: nothing stays open but for time.
COMPLETE = ("ibp", "crown-ibp", "crown", "alpha-crown", "bab", "milp")


def in_order(names: str | Sequence[str], among: Sequence[str] = VERIFIERS) -> list[str]:
    """The verifiers that are asked for, cheapest first."""
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, Collection) or not all(isinstance(name, str) for name in names) or not len(names):
        raise UserError(f"by is {names!r}, but must name verifiers; choose from {', '.join(among)}.")
    names = [name for given in names for name in (COMPLETE if given == "complete" else [given])]
    for name in names:
        if name in VERIFIERS and name not in among:
            raise UserError(f"'{name}' takes one image at a time, too long for this; choose from {', '.join(among)}.")
        if name not in among:
            raise UserError(f"There is no verifier '{name}'; choose from {', '.join(among)}.")
    return [name for name in among if name in names]
