"""Regression tests: networks that were wrongly certified, or whose outputs left their bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from orders import Order, outputs
from torch import Tensor, nn

import advibp
from advibp.bounds import LinearBounds
from advibp.bounds.domain import UnsupportedOperation
from advibp.bounds.rounded import Rounded

VERIFIERS = ["ibp", "crown", "deepz", "alpha-crown", "refinezono", "bab", "milp"]


def layer(weight: list[list[float]], bias: list[float]) -> nn.Linear:
    made = nn.Linear(len(weight[0]), len(weight))
    with torch.no_grad():
        made.weight.copy_(torch.tensor(weight))
        made.bias.copy_(torch.tensor(bias))
    return made


def verdict(net: nn.Module, x: Tensor, label: int, eps: float, by: str) -> str:
    attack = advibp.Attack(steps=1)
    limits = {} if by == "ibp" else {"budget": 5}
    return advibp.certify(net, x, torch.tensor([label]), eps, by=[by], attack=attack, **limits).records[0].verdict


class ComputedWeight(nn.Module):
    """A weight that is computed in forward: [-1, 0] in float32, [0, 0] in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor([[1.0], [0.0]])), nn.Parameter(torch.tensor([[2.0**-25], [0.0]]))
        self.first, self.bias = layer([[1.0]], [0.0]), nn.Parameter(torch.tensor([1.0, 0.0]))

    def forward(self, x: Any) -> Any:
        hidden = torch.relu(self.first(x.flatten(1)) - 0.5)
        weight = ((self.a + self.b) - self.a) * 2.0**25 - 1 + torch.tensor([[0.0], [1.0]]).to(self.a)
        return F.linear(hidden * 8, weight, self.bias)


class ComputedConstant(nn.Module):
    """A constant of the weight's dtype: 2^30 in float32, 2^30 + 64 in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.first = layer([[1.0]], [0.0])

    def forward(self, x: Any) -> Any:
        hidden, like = self.first(x.flatten(1)) * 128.0, self.first.weight
        constant = like.new_full((1, 1), 2.0**30 + 64).expand(len(x), 1)
        a, b = torch.cat([hidden, constant], 1).chunk(2, 1)
        return torch.cat([like.new_full((1, 1), 2.0**30).expand(len(x), 1), a + b], 1)


class CastInside(nn.Module):
    """A float64 network that casts to float32 and back."""

    def __init__(self) -> None:
        super().__init__()
        self.last = layer([[1.0], [0.0]], [0.0, 0.0]).double()

    def forward(self, x: Any) -> Any:
        hidden = torch.relu(x.flatten(1) + 1.0).float().double()
        a, b = self.last((hidden - 1.5) * 2.0**26).chunk(2, 1)
        return torch.cat([b + 0.25, a], 1)


class WrittenConstant(nn.Module):
    """A constant that is written to after its first use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.weight = layer([[-8.0], [0.0]], [5.0, 0.0]), nn.Parameter(torch.zeros(1, 2))

    def forward(self, x: Any) -> Any:
        constant = self.weight + 0
        found = self.first(torch.relu(x.flatten(1))) + constant
        constant.add_(torch.tensor([[100.0, 0.0]]))
        return found + (constant - torch.tensor([[100.0, 0.0]]))


class Divided(nn.Module):
    """The sum of a window overflows at x = 1, but the result of the division is finite."""

    def __init__(self) -> None:
        super().__init__()
        self.last = layer([[-(2.0**-108)], [0.0]], [1.0, 0.0])

    def forward(self, x: Any) -> Any:
        pooled = F.avg_pool2d(x * 2.0**126, 3, divisor_override=2**20)
        return self.last(pooled.flatten(1))


class Normalized(nn.Module):
    """BatchNorm whose (x - mean) / std overflows, while its result does not."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(1, eps=1e-26), layer([[1.0], [-1.0]], [0.0, 0.0])
        with torch.no_grad():
            assert self.norm.running_var is not None
            self.norm.running_var.fill_(1e-26)
            self.norm.weight.fill_(2e-38)

    def forward(self, x: Any) -> Any:
        return self.last(self.norm(x.flatten(1) * 1e26))


SMALL = nn.Sequential(
    nn.Flatten(), layer([[1e8]], [-5e7]), nn.ReLU(), layer([[9e-13]], [-1e-6]), nn.ReLU(),
    layer([[-1e6], [0.0]], [10.0, 0.0]),
)  # fmt: skip
FLUSHED = nn.Sequential(nn.Flatten(), layer([[-1e31]], [0.0]), nn.LeakyReLU(1e-39), layer([[-1e8], [0.0]], [-0.1, 0.0]))

BROKEN: dict[str, tuple[Callable[[], nn.Module], Tensor, int, float]] = {
    "computed weight": (ComputedWeight, torch.full((1, 1, 1, 1), 0.5), 0, 0.4),
    "computed constant": (ComputedConstant, torch.full((1, 1, 1, 1), 0.6), 1, 0.3),
    "cast": (CastInside, torch.full((1, 1, 1, 1), 0.5 + 2.0**-23, dtype=torch.float64), 1, 2.0**-24 * 1.5),
    "written constant": (WrittenConstant, torch.full((1, 1, 1, 1), 0.5), 0, 0.4),
    "divided": (Divided, torch.full((1, 1, 3, 3), 0.4), 0, 0.6),
    "normed": (Normalized, torch.full((1, 1, 1, 1), 0.5), 0, 0.1),
    "small coefficients": (lambda: SMALL, torch.full((1, 1, 1, 1), 0.3), 0, 0.6),
    "flushed slope": (lambda: FLUSHED, torch.full((1, 1, 1, 1), 0.6), 0, 0.1),
}


@pytest.mark.parametrize("by", VERIFIERS)
@pytest.mark.parametrize("name", BROKEN)
def test_no_verifier_returns_robust(name: str, by: str) -> None:
    make, x, label, eps = BROKEN[name]
    try:
        assert verdict(make(), x, label, eps, by) != "robust"
    except UnsupportedOperation as error:
        assert "linear bounds" in str(error)  # noqa: PT017  (refusing is also correct)


@pytest.mark.parametrize("by", VERIFIERS)
def test_casts_to_the_same_dtype_are_ignored(by: str) -> None:
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = layer([[1.0], [-1.0]], [0.0, 0.3]), layer([[1.0, 0.0], [0.0, 1.0]], [0.5, 0.0])

        def forward(self, x: Any) -> Any:
            hidden = torch.relu(self.first(x.flatten(1).float()).to(self.last.weight.dtype))
            return self.last(hidden * torch.tensor([1, 2]))

    assert verdict(Cast(), torch.full((1, 1, 1, 1), 0.5), 0, 0.1, by) == "robust"


def test_mean_whose_sum_may_overflow_has_infinite_bounds() -> None:
    sign = torch.tensor([1.0, -1.0]).repeat_interleave(32).repeat(16)

    def mean(x: Any) -> Any:
        return (x * sign * 2.0**124).mean(1, keepdim=True)

    x = torch.full((1, 1024), 0.5)
    assert not bool(outputs(mean, x, Order(block=2)).isfinite().all())
    assert not bool(mean(Rounded.ball(x, 0.0)).lower.isfinite().all())


def test_backward_pass_covers_replicate_padding() -> None:
    """The gradient of replicate padding adds up 48^2 coefficients at a corner."""
    net = nn.Sequential(
        nn.ReplicationPad2d(48), nn.AvgPool2d(4), nn.AvgPool2d(26), nn.Flatten(), layer([[0.7], [-0.7]], [0.0, 0.0])
    )
    x, y = torch.full((1, 1, 8, 8), 0.5), torch.tensor([0])
    with torch.no_grad():
        margin = float(LinearBounds(net, Rounded.ball(x, 0.2)).margins(y)[0, 1])
    assert margin <= 1.4 * 0.3


def test_variance_close_to_zero_is_refused() -> None:
    norm = nn.BatchNorm1d(1, eps=1e-5 * (1 + 3e-7)).eval()
    with torch.no_grad():
        norm.running_var.fill_(-1e-5)
    with pytest.raises(UnsupportedOperation, match="variance"):
        norm(Rounded.ball(torch.full((1, 1), 0.5), 0.0))


FORMS: dict[str, Callable[[Any], Any]] = {
    "index": lambda x: x[:, 1:],
    "transposed": lambda x: x.mT,
    "named operand": lambda x: torch.mul(x, other=0.5),
    "named operands": lambda x: torch.add(input=x, other=1.0),
    "mask": lambda x: x + torch.tensor([True, False, True]),
    "integers": lambda x: x * torch.tensor([1, 2, 3]) - torch.tensor([3, 2, 1]),
    "type": lambda x: x.to(torch.float32).float(),
    "named tensors": lambda x: torch.cat(tensors=[x, x], dim=1),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_a_call_is_supported(name: str) -> None:
    x = torch.rand(2, 3, 3)
    result, value = FORMS[name](Rounded.ball(x, 0.0)), FORMS[name](x)
    assert result.shape == value.shape
    assert bool(((result.lower <= value) & (value <= result.upper)).all())
