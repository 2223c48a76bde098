"""The table of verifiers, and the bounds that they compute for a batch of images.

`VERIFIERS` is the only list of verifiers. It is ordered by cost. The cascade, the records, the summary, the command
line, `reproduce` and the report page read it. To add a verifier, add a row.

Every verifier keeps, class by class, the maximum of its margins and those of the verifiers that ran before it, and
linear bounds start from interval bounds. A later verifier therefore never loses a proof of an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor, nn

from advibp.bounds import Box
from advibp.bounds.labels import smallest_margin
from advibp.bounds.linear.alpha_crown import alpha_margins
from advibp.bounds.linear.crown import LinearBounds
from advibp.bounds.rounded import Rounded
from advibp.bounds.zonotope import Zonotope
from advibp.errors import UserError, suggestion
from advibp.execution.own_copy import run_on_copy
from advibp.verify.attack_options import Kind
from advibp.verify.exact.milp import milp
from advibp.verify.exact.portfolio import search
from advibp.verify.exact.question import Answer, Question
from advibp.verify.exact.refinezono import refinezono
from advibp.verify.precision import ARITHMETICS


class Proof:
    """Lower bounds of the margins (B, K) of a batch of images, and the bounds that they were computed from."""

    def __init__(self, net: nn.Module, inputs: Box | Rounded, y: Tensor) -> None:
        """
        Args:
            net: The network, in evaluation mode.
            inputs: The balls around the images (B, ...). `Rounded` for a proof that covers rounding errors.
            y: Labels (B,).
        """
        self.net, self.inputs, self.y = net, inputs, y
        self.margins = run_on_copy(net, inputs).lower_margins(y)
        self._linear: LinearBounds | None = None
        self._refined = False

    def tighten(self, verifier: str) -> Tensor:
        """Tighten the margins by a verifier of `bounding_verifiers()`.

        Returns:
            The smallest margin of each image (B,). The image is robust if it is above 0.
        """
        bounding_verifiers()[verifier](self)
        return smallest_margin(self.margins, self.y)

    def take(self, keep: Tensor) -> Proof:
        """Select images by their positions `keep`."""
        taken = object.__new__(Proof)
        taken.net, taken.inputs, taken.y = self.net, _take(self.inputs, keep), self.y[keep]
        taken.margins, taken._refined = self.margins[keep], self._refined
        taken._linear = self._linear.take(keep) if self._linear and len(keep) else None
        return taken

    def _improve(self, margins: Tensor) -> None:
        # A comparison with NaN is false, so a NaN never replaces a margin.
        self.margins = torch.where(margins > self.margins, margins, self.margins)

    @property
    def lost(self) -> Tensor | float:
        """For each image (B,), the most by which rounding errors can have lowered the linear margins."""
        return 0.0 if self._linear is None else self._linear.lost

    @property
    def linear(self) -> LinearBounds:
        """Linear bounds, recorded on first use."""
        if self._linear is None:
            self._linear = LinearBounds(self.net, self.inputs)
        return self._linear

    def ibp(self) -> None:
        """IBP margins, which the constructor has computed."""

    def crown_ibp(self) -> None:
        """CROWN margins from the intermediate bounds of IBP."""
        self._improve(self.linear.margins(self.y))

    def crown(self) -> None:
        """CROWN margins from the intermediate bounds of CROWN."""
        if not self._refined:
            if self._linear is None:
                self.crown_ibp()
            self.linear.refine()
            self._refined = True
        self._improve(self.linear.margins(self.y))

    def deepz(self) -> None:
        """Zonotope margins, one image at a time because a zonotope has many noise symbols."""
        margins = []
        for k in range(len(self.y)):
            one = _take(self.inputs, slice(k, k + 1))
            zonotope = one.zonotope() if isinstance(one, Rounded) else Zonotope.from_box(one)
            margins.append(self.net(zonotope).lower_margins(self.y[k : k + 1]))
        self._improve(torch.cat(margins))

    def alpha_crown(self) -> None:
        """CROWN margins with optimized slopes."""
        self.crown()
        self._improve(alpha_margins(self.linear, self.y))


def _take(inputs: Box | Rounded, keep: Tensor | slice) -> Box | Rounded:
    """Select the balls of some images."""
    return (
        inputs.take(keep)
        if isinstance(inputs, Rounded)
        else Box(center=inputs.center[keep], radius=inputs.radius[keep])
    )


class Search(Protocol):
    """A verifier for one image with a time limit. It may return a counterexample."""

    def __call__(self, question: Question, *, seconds: float) -> Answer: ...


@dataclass(frozen=True, kw_only=True)
class Verifier:
    """A row of the table of verifiers.

    Attributes:
        label: Name in tables and on the report page. Options and records use the key in `VERIFIERS`.
        cost: "batch" if all images of a batch are bounded together, "image" if they are bounded one by one, "search" if
            each image may take up to `budget` seconds.
        before_attack: Whether it runs before the attack, because it costs less.
        in_complete: Whether `by="complete"` includes it.
        arithmetics: What its proofs can cover: rounding in float32 or float64, or real numbers.
        tighten: Tightens the margins of a `Proof`. None for a search.
        search: Decides one image. None for the other verifiers.
    """

    label: str
    cost: Literal["batch", "image", "search"] = "batch"
    before_attack: bool = False
    in_complete: bool = False
    arithmetics: tuple[str, ...] = ARITHMETICS
    tighten: Callable[[Proof], None] | None = None
    search: Search | None = None


#: All verifiers, cheapest first. Those that run before the attack come first.
VERIFIERS: dict[str, Verifier] = {
    "ibp": Verifier(label="IBP", before_attack=True, in_complete=True, tighten=Proof.ibp),
    "crown-ibp": Verifier(label="CROWN-IBP", before_attack=True, in_complete=True, tighten=Proof.crown_ibp),
    "crown": Verifier(label="CROWN", in_complete=True, tighten=Proof.crown),
    "deepz": Verifier(label="DeepZ", cost="image", tighten=Proof.deepz),
    "alpha-crown": Verifier(label="alpha-CROWN", in_complete=True, tighten=Proof.alpha_crown),
    "refinezono": Verifier(label="RefineZono", cost="search", search=refinezono),
    "bab": Verifier(label="branch and bound", cost="search", in_complete=True, search=search),
    "milp": Verifier(label="MILP", cost="search", in_complete=True, search=milp),
}
#: Names of the attacks in records.
ATTACKS: tuple[str, ...] = get_args(Kind)


def bounding_verifiers() -> dict[str, Callable[[Proof], None]]:
    """Verifiers that tighten the margins of a `Proof`, cheapest first."""
    return {name: row.tighten for name, row in VERIFIERS.items() if row.tighten}


def searches() -> dict[str, Search]:
    """Verifiers that search one image at a time, cheapest first."""
    return {name: row.search for name, row in VERIFIERS.items() if row.search}


def complete_verifiers() -> list[str]:
    """The verifiers of `by="complete"`: together they decide every image, given enough time."""
    return [name for name, row in VERIFIERS.items() if row.in_complete]


def labels_of_checks() -> dict[str, str]:
    """Labels of all checks of the cascade, in the order in which they run."""
    before = {name: row.label for name, row in VERIFIERS.items() if row.before_attack}
    attacks = {name: f"{name.upper()} attack" for name in ATTACKS}
    after = {name: row.label for name, row in VERIFIERS.items() if not row.before_attack}
    return {"clean": "clean pass", **before, **attacks, **after}


def cascade_position(check: str | None) -> int:
    """Position of a check in the cascade. None, for images that no check decided, comes last."""
    names = list(labels_of_checks())
    return names.index(check) if check in names else len(names)


def check_arithmetic(names: Sequence[str], arithmetic: str) -> None:
    """Raise a UserError if the proofs of a verifier can't cover an arithmetic."""
    for name in names:
        if arithmetic not in VERIFIERS[name].arithmetics:
            covered = " or ".join(VERIFIERS[name].arithmetics)
            raise UserError(f"'{name}' proves in {covered} arithmetic, not in {arithmetic}; remove it from `by`.")


def in_order(names: str | Sequence[str], among: Sequence[str] = ()) -> list[str]:
    """Check the names of verifiers and sort them by cost.

    Args:
        names: One name or several. "complete" stands for `complete_verifiers()`.
        among: The verifiers to choose from. Default: all.

    Raises:
        UserError: If a name is unknown, or not in `among`.
    """
    among = among or list(VERIFIERS)
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, Collection) or not all(isinstance(name, str) for name in names) or not len(names):
        raise UserError(f"by is {names!r}, but must name verifiers; choose from {', '.join(among)}.")
    names = [name for each in names for name in (complete_verifiers() if each == "complete" else [each])]
    for name in names:
        if name in VERIFIERS and name not in among:
            raise UserError(
                f"'{name}' bounds one image at a time, which takes too long here; choose from {', '.join(among)}."
            )
        if name not in among:
            raise UserError(f"There is no verifier '{name}'; {suggestion(name, among)}")
    return [name for name in among if name in names]
