"""Divides parts of a box into groups of neighbors, so that the box around each group is small."""

from __future__ import annotations

import torch
from torch import Tensor

from advibp.bounds.linear.part_bounds import Parts


def neighbors(parts: Parts, widths: Tensor, most: int) -> list[Tensor]:
    """Divide parts into groups, at the median of the input in which their centers differ most, as a k-d tree does.

    Args:
        parts: parts of a box.
        widths: widths (N,) of the whole box, the unit of differences.
        most: largest size of a group.

    Returns:
        The indices (D,) of the parts of each group. Every part is in one of them.
    """
    centers = torch.lerp(parts.low, parts.high, 0.5) / torch.where(widths > 0, widths, 1.0)
    waiting, groups = [torch.arange(len(centers), device=centers.device)], []
    while waiting:
        some = waiting.pop()
        if len(some) <= most:
            groups += [some] if len(some) else []
            continue
        mine = centers[some]
        order = mine[:, (mine.amax(0) - mine.amin(0)).argmax()].argsort()
        waiting += some[order].tensor_split(2)
    return groups
