"""Attacks every image, including those that a verifier has proved."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from advibp.bounds import Perturbation
from advibp.data.user_data import Images
from advibp.execution.own_copy import run_on_copy
from advibp.verify.arguments import parse_perturbation
from advibp.verify.attack_options import Attack, start_generator
from advibp.verify.certification import Progress


@dataclass(frozen=True)
class Attacks:
    """Result of `attack_all`.

    Attributes:
        x_adv: For each image the point with the largest loss that was found (N, ...).
        broken: Which images are misclassified, there or without a change (N,).
        wrong: Which images are misclassified without a change (N,).
    """

    x_adv: Tensor
    broken: Tensor
    wrong: Tensor


def attack_all(
    net: nn.Module,
    images: Images,
    eps: float,
    attack: Attack,
    *,
    batch_size: int = 500,
    seed: int = 0,
    progress: Progress | None = None,
    perturbation: Perturbation | None = None,
) -> Attacks:
    """Attack all images, with the same random starts as `certify`. The arguments are those of `certify`."""
    around = parse_perturbation(images, perturbation)
    batches: list[tuple[Tensor, Tensor, Tensor]] = []
    device = next(net.parameters()).device
    for start in range(0, len(images), batch_size):
        x, y = images.batch(torch.arange(start, min(start + batch_size, len(images))))
        x, y = x.to(device), y.to(device)
        generators = [start_generator(seed, i, eps) for i in range(start, start + len(x))]
        attacked = attack(net, x, y, eps, generators, perturbation=around)
        with torch.no_grad():
            wrong = run_on_copy(net, x).argmax(1) != y
        attacked.x_adv[wrong] = x[wrong]
        batches.append((attacked.x_adv.cpu(), (attacked.broken | wrong).cpu(), wrong.cpu()))
        if progress:
            progress(eps, start + len(x), len(images))
    return Attacks(*(torch.cat(parts) for parts in zip(*batches, strict=True)))
