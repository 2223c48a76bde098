"""The attack of a certification, and all its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from advibp import attacks
from advibp.errors import UserError
from advibp.execution.seeds import mix, mix_number
from advibp.verify.argument_checks import is_finite, shortened

#: Stream of the random starts, see `execution.seeds`.
ATTACK_STREAM = 5

Kind = Literal["pgd", "apgd"]
Loss = Literal["ce", "margin", "dlr"]


@dataclass(frozen=True, kw_only=True)
class Attack:
    """PGD or APGD, and its options; the defaults are the paper's PGD-200 as we read it. APGD finds its own step."""

    kind: Kind = "pgd"
    steps: int = 200
    step: float = 0.1
    restarts: int = 1
    loss: Loss | None = None  # ce for pgd, margin for apgd

    def __post_init__(self) -> None:
        if self.loss is None:
            object.__setattr__(self, "loss", "margin" if self.kind == "apgd" else "ce")
        losses = get_args(Loss) if self.kind == "apgd" else ("ce", "margin")
        if (
            self.kind not in get_args(Kind)
            or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in (self.steps, self.restarts))
            or not (is_finite(self.step) and self.step > 0)
            or self.loss not in losses
        ):
            raise UserError(
                f"{shortened(self)} is no attack; kind must be pgd or apgd, steps and restarts whole numbers above 0, "
                f"step a number above 0, loss ce or margin (for apgd also dlr)."
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
        by: float | Tensor = 0.0,
    ) -> attacks.AttackResult:
        """x (B, ...), y (B,); eps is a number, or one for each element that broadcasts to x. `by`: how much larger than
        the label's another logit must be for an image to count as broken; a number, or (B,)."""
        options: dict[str, Any] = {
            "steps": self.steps, "restarts": self.restarts, "loss": self.loss, "generators": generators, "by": by
        }  # fmt: skip
        if self.kind == "apgd":
            return attacks.linf_apgd(net, x, y, eps, **options)
        return attacks.linf_pgd(net, x, y, eps, rel_stepsize=self.step, **options)


def start_generator(seed: int, index: int, eps: float) -> torch.Generator:
    """The generator for the random starts of one image.

    It depends on the seed, the number of the image and eps only, not on the other images of the batch.
    """
    return torch.Generator().manual_seed(mix_number(mix(seed, ATTACK_STREAM, index), ATTACK_STREAM, eps))


def check_attack(attack: object) -> None:
    """Refuse what is neither an attack nor None."""
    if attack is not None and not isinstance(attack, Attack):
        raise UserError(f"attack is {shortened(attack)}, but must be an Attack, such as advibp.Attack(kind='apgd').")
