"""The attack of exact verifiers: what it returns is a counterexample, also in small regions."""

from __future__ import annotations

import torch
from torch import nn

from advibp.verify.exact.falsify import falsify
from advibp.verify.exact.question import Question


def test_a_small_region_without_slope_around_it() -> None:
    """The output is 1 except close to (0.8, 0.2, 0.3), so gradient descent has no direction elsewhere."""
    inner, center = 3, torch.tensor([0.8, 0.2, 0.3]).double()
    net = nn.Sequential(nn.Linear(inner, 2 * inner), nn.ReLU(), nn.Linear(2 * inner, 1), nn.ReLU(), nn.Linear(1, 1))
    net = net.double()
    with torch.no_grad():
        net[0].weight.copy_(torch.cat([torch.eye(inner), -torch.eye(inner)]))  # |x - c|, summed
        net[0].bias.copy_(torch.cat([-center, center]))
        net[2].weight.fill_(-10.0)
        net[2].bias.fill_(2.0)
        net[4].weight.fill_(-1.0)
        net[4].bias.fill_(0.5)
    unsafe = [(torch.ones(1, 1).double(), torch.zeros(1).double())]
    asked = Question(net, torch.zeros(1, inner).double(), torch.ones(1, inner).double(), unsafe)
    found = falsify(asked)
    assert found is not None
    assert float(net(found).detach()) <= 0
    assert falsify(Question(net, torch.zeros(1, 3).double(), 0.1 * torch.ones(1, 3).double(), unsafe)) is None
