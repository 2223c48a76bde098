"""The attack of a certification and its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from advibp import attacks
from advibp.bounds import Perturbation
from advibp.bounds.perturbation import PIXELS
from advibp.errors import UserError
from advibp.execution.keywords import known_keywords
from advibp.execution.seeds import mix, mix_number
from advibp.verify.argument_checks import is_finite, shortened

#: Stream of the random starts, see `execution.seeds`.
ATTACK_STREAM = 5

Kind = Literal["pgd", "apgd"]
Loss = Literal["ce", "margin", "dlr"]


@known_keywords
@dataclass(frozen=True, kw_only=True)
class Attack:
    """PGD or APGD with a random start. The defaults are the paper's PGD-200.

    Examples:
        >>> print(Attack(steps=40, restarts=2))
        pgd steps=40 step=0.1eps restarts=2 loss=ce random start

    Attributes:
        kind: "pgd", or "apgd", which adapts its step size and breaks more images with as many steps.
        steps: Gradient steps per restart. Default: 200.
        step: Step size of PGD as a share of eps. Default: 0.1 for "pgd"; "apgd" takes none.
        restarts: Random starts per image. Default: 1.
        loss: The loss that the attack maximizes: "ce", "margin", or "dlr" (for "apgd" only). Default: "ce" for "pgd",
            "margin" for "apgd".
    """

    kind: Kind = "pgd"
    steps: int = 200
    step: float | None = None
    restarts: int = 1
    loss: Loss | None = None

    def __post_init__(self) -> None:
        if self.kind == "apgd" and self.step is not None:
            raise UserError(f"step is {shortened(self.step)}, but apgd adapts its step size; leave step out.")
        if self.kind == "pgd" and self.step is None:
            object.__setattr__(self, "step", 0.1)
        if self.loss is None:
            object.__setattr__(self, "loss", "margin" if self.kind == "apgd" else "ce")
        losses = get_args(Loss) if self.kind == "apgd" else ("ce", "margin")
        if (
            self.kind not in get_args(Kind)
            or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in (self.steps, self.restarts))
            or not (self.step is None or (is_finite(self.step) and self.step > 0))
            or self.loss not in losses
        ):
            raise UserError(
                f"{shortened(self)} is not an attack; kind must be pgd or apgd, steps and restarts whole numbers above "
                f"0, step a number above 0, loss ce or margin (for apgd also dlr)."
            )

    def __str__(self) -> str:
        step = f" step={self.step:g}eps" if self.kind == "pgd" else ""
        return f"{self.kind} steps={self.steps}{step} restarts={self.restarts} loss={self.loss} random start"

    def __call__(
        self,
        net: nn.Module,
        x: Tensor,
        y: Tensor,
        eps: float | Tensor,
        generators: Sequence[torch.Generator] | None = None,
        required_margin: float | Tensor = 0.0,
        perturbation: Perturbation = PIXELS,
    ) -> attacks.AttackResult:
        """Attack a batch of images.

        Args:
            net: The network, in evaluation mode.
            x: Inputs (B, ...), within the range of the perturbation.
            y: Labels (B,).
            eps: Radius, or a tensor of radii that broadcasts to x.
            generators: A generator for the random starts of each image. Default: torch's global generator.
            required_margin: How much larger than the label's logit another logit must be for the image to count as
                broken: a number, or (B,). Default: 0.
            perturbation: The set of allowed changes. Default: that of images in [0, 1].
        """
        options: dict[str, Any] = {
            "steps": self.steps,
            "restarts": self.restarts,
            "loss": self.loss,
            "generators": generators,
            "required_margin": required_margin,
            "within": perturbation.on(x).within,
        }
        eps = perturbation.inner_radius(eps, x)
        if self.step is None:
            return attacks.linf_apgd(net, x, y, eps, **options)
        return attacks.linf_pgd(net, x, y, eps, rel_stepsize=self.step, **options)


def start_generator(seed: int, index: int, eps: float) -> torch.Generator:
    """The generator for the random starts of one image.

    It depends on the seed, the number of the image and eps only, not on the other images of the batch.
    """
    return torch.Generator().manual_seed(mix_number(mix(seed, ATTACK_STREAM, index), ATTACK_STREAM, eps))


def check_attack(attack: object) -> None:
    """Raise a UserError unless `attack` is an Attack or None."""
    if attack is not None and not isinstance(attack, Attack):
        raise UserError(f"attack is {shortened(attack)}, but must be an Attack, such as advibp.Attack(kind='apgd').")
