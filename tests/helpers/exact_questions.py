"""Problems for exact verifiers."""

from __future__ import annotations

import torch
from networks import network

from advibp.verify.exact.question import Question


def question(seed: int, eps: float, kind: str = "few relus") -> tuple[Question, int]:
    """Return a float64 network with an image, and the class that it predicts."""
    made = network(seed, kind)
    x = torch.rand(1, *made.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    with torch.no_grad():
        label = int(made.net(x.clone()).argmax())
    return Question.robustness(made.net, x, label, eps, 3), label
