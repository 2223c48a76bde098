"""MTL-IBP, CC-IBP and EXP-IBP: one loss between the adversarial loss and the IBP loss (De Palma et al. 2024).

With alpha = 0 all three are the adversarial loss, with alpha = 1 the IBP loss. In between none is a bound of the robust
loss. A pass that has no weight is not run.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from advibp.execution.own_copy import run_on_copy
from advibp.objectives.ball import Ball
from advibp.objectives.objective import DEFAULT_CONTEXT, Context, Evaluation, costs
from advibp.objectives.shi import propagate
from advibp.objectives.training_attack import adversarial_examples, ascent_cost
from advibp.objectives.upper import margin_loss

#: Smallest loss of a sample in EXP-IBP, whose gradient is not finite at 0.
_TINY = 1e-12


def _cost(context: Context, classes: int) -> float:
    alpha = context.settings.alpha
    return (3 + ascent_cost(context.settings) if alpha < 1 else 0) + (6 if alpha > 0 else 0)


@costs(_cost, bound=False, shares_attack=True)
def mtl_ibp(net: Any, inputs: Ball, y: Tensor, context: Context = DEFAULT_CONTEXT) -> Evaluation:
    """alpha L_IBP + (1 - alpha) L_adv (MTL-IBP, De Palma et al. 2024)."""
    alpha, logits, margins = context.settings.alpha, *_passes(net, inputs, y, context)
    if logits is None or margins is None:
        return _one_side(logits, margins, y)
    return Evaluation(alpha * margin_loss(margins, y) + (1 - alpha) * F.cross_entropy(logits, y))


@costs(_cost, bound=False, shares_attack=True)
def exp_ibp(net: Any, inputs: Ball, y: Tensor, context: Context = DEFAULT_CONTEXT) -> Evaluation:
    """L_IBP^alpha L_adv^(1 - alpha) of each sample (EXP-IBP, De Palma et al. 2024)."""
    alpha, logits, margins = context.settings.alpha, *_passes(net, inputs, y, context)
    if logits is None or margins is None:
        return _one_side(logits, margins, y)
    above = F.cross_entropy(-margins, y, reduction="none").clamp(min=_TINY)
    below = F.cross_entropy(logits, y, reduction="none").clamp(min=_TINY)
    return Evaluation((above**alpha * below ** (1 - alpha)).mean())


@costs(_cost, bound=False, shares_attack=True)
def cc_ibp(net: Any, inputs: Ball, y: Tensor, context: Context = DEFAULT_CONTEXT) -> Evaluation:
    """Cross-entropy of the margins alpha m_IBP + (1 - alpha) m_adv (CC-IBP, De Palma et al. 2024).

    m_adv are the margins at the adversarial example.
    """
    alpha, logits, margins = context.settings.alpha, *_passes(net, inputs, y, context)
    if logits is None or margins is None:
        return _one_side(logits, margins, y)
    at_point = logits.gather(1, y[:, None]) - logits
    return Evaluation(margin_loss(alpha * margins + (1 - alpha) * at_point, y))


def _passes(net: Any, inputs: Ball, y: Tensor, context: Context) -> tuple[Tensor | None, Tensor | None]:
    """Return the logits at the adversarial example, and the IBP margins, (B, K) each; None for those without weight."""
    alpha, logits, margins = context.settings.alpha, None, None
    if alpha < 1:
        logits = run_on_copy(net, adversarial_examples(net, inputs, y, context))
    if alpha > 0:
        margins = propagate(net, inputs.box(), context).lower_margins(y)
    return logits, margins


def _one_side(logits: Tensor | None, margins: Tensor | None, y: Tensor) -> Evaluation:
    if margins is not None:
        return Evaluation(margin_loss(margins, y))
    assert logits is not None
    return Evaluation(F.cross_entropy(logits, y))
