"""Loss fusion: bound the cross-entropy itself by one backward pass per image (Xu et al. 2020).

Let m_k = z_y - z_k be the margins, a_k <= m_k <= b_k their interval bounds and w_k = b_k - a_k. The cross-entropy is

    L = log sum_k exp(-m_k),    with m_y = 0

exp is convex, so on [-b_k, -a_k] it lies below its chord, which goes through (-a_k, exp(-a_k)):

    exp(-m_k) <= exp(-a_k) - s_k (m_k - a_k),    s_k = (exp(-a_k) - exp(-b_k)) / w_k = exp(-a_k) (1 - exp(-w_k)) / w_k

The sum over k is a linear function of the margins. CROWN-IBP needs only one row for it, sum_k s_k m_k >= l, where the
margins by themselves need K - 1 rows:

    sum_k exp(-m_k) <= sum_k exp(-a_k) - g,    g = max(0, l - sum_k s_k a_k)

Intervals alone prove sum_k s_k m_k >= sum_k s_k a_k. So g >= 0 is the gain over them, and without g this is the
loss of IBP. The logarithm is monotone. CROWN-IBP's weight beta mixes the two bounds of the linear function, as it mixes
those of the margins without fusion:

    sum_k s_k m_k >= beta max(l, sum_k s_k a_k) + (1 - beta) sum_k s_k a_k

that is, g is multiplied by beta. Compared with the cross-entropy of CROWN-IBP's margins, the chords lose where the
intervals of the margins are wide, and the common row gains: the bound of a sum is at least the sum of the bounds.

All terms are divided by exp(M) with M = max_k -a_k, so that nothing overflows. M >= 0 because a_y = 0. Nothing depends
on M in exact arithmetic, so it has no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from advibp.bounds import LinearBounds

#: Below this width the slope of a chord is computed by a series, because its derivative would lose its digits.
_NARROW = 1e-2


def fused_loss(bounds: LinearBounds, y: Tensor, beta: float = 1.0) -> Tensor:
    """Compute an upper bound of the robust cross-entropy by loss fusion.

    It is at most the loss of the interval margins.

    Args:
        bounds: linear bounds of the network over the sets of inputs (B, ...).
        y: labels (B,).
        beta: weight of CROWN-IBP, 0 to 1. Default: 1.

    Returns:
        The bound of each image's loss, (B,).

    Examples:
        >>> import torch
        >>> from advibp import Box, nets
        >>> from advibp.bounds import crown_ibp
        >>> from advibp.objectives.loss_fusion import fused_loss
        >>> bounds = crown_ibp(nets.build("FC 8", (1, 3, 3), 3), Box.ball(torch.rand(2, 1, 3, 3), 0.1))
        >>> fused_loss(bounds, torch.tensor([0, 1])).shape
        torch.Size([2])
    """
    margins = bounds.interval_margin_box(y)
    lowest, label = margins.lower, y.long().unsqueeze(1)
    largest = -lowest.detach().amin(1, keepdim=True)
    terms = torch.exp(-lowest - largest)
    slopes = (terms * _relative_slope(2 * margins.radius)).scatter(1, label, 0.0)
    rows = (-slopes).scatter(1, label, slopes.sum(1, keepdim=True))  # of the outputs: sum_k s_k (z_y - z_k)
    gain = bounds.lower(bounds.tape.output, rows) - (slopes * lowest).sum(1)
    gain = torch.where(gain < torch.inf, gain.clamp(min=0), 0.0)  # not finite if the bounds overflow
    # The sum of the terms is at least 1. The bound is positive in exact arithmetic, and rounded to this number.
    total = (terms.sum(1) - beta * gain).clamp(min=torch.finfo(terms.dtype).eps)
    return largest.squeeze(1) + total.log()


def _relative_slope(width: Tensor) -> Tensor:
    """Return (1 - exp(-w)) / w, the slope of a chord of exp divided by exp at its upper end.

    The series ends with a negative term, so it is not too large. A smaller slope keeps the chord above exp.
    """
    narrow = width < _NARROW
    series = 1 - width / 2 * (1 - width / 3 * (1 - width / 4))
    safe = torch.where(narrow, 1.0, width)
    return torch.where(narrow, series, -torch.expm1(-safe) / safe)
