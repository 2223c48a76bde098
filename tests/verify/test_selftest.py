"""Networks that are not a function of one image are refused before anything is certified; others pass."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from advibp import Attack, Box, UserError, certify
from advibp.bounds.domain import UnsupportedOperation
from advibp.data import Split
from advibp.verify import largest_proved_eps
from advibp.verify.precision import check_types
from advibp.verify.radius import radii
from advibp.verify.selftest import check_function

torch.set_num_threads(1)
QUICK = Attack(steps=1)


class Net(nn.Module):
    """Logits of what a function makes of the input."""

    def __init__(self, first: Callable[[nn.Module, Any], Any] = lambda net, x: x, batchnorm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = first
        self.conv, self.linear = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(64, 3)
        self.norm = nn.BatchNorm2d(4) if batchnorm else nn.Identity()
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        x = self.first(self, x)
        return self.linear(self.dropout(F.relu(self.norm(self.conv(x)))).flatten(1))


def images(count: int = 5) -> Tensor:
    return torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(1))


def counting(net: nn.Module, x: Any) -> Any:
    net.calls += 1
    return x + 0.1 * net.calls.sin()


def replacing(net: nn.Module, x: Any) -> Any:
    net.calls = net.calls + 1
    return x


def ticking(net: nn.Module, x: Any) -> Any:
    """A counter that is no buffer."""
    net.ticks = getattr(net, "ticks", 0) + 1
    return x * (1 + 0.01 * net.ticks)


def seeded(net: nn.Module, x: Any) -> Any:
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    return x + 0.5 * noise


REFUSED: dict[str, tuple[Callable[[nn.Module, Any], Any], str]] = {
    "noise": (lambda net, x: x + 0.5 * torch.randn(x.shape), "draws random numbers"),
    "little noise": (lambda net, x: x + 1e-7 * torch.rand(x.shape), "draws random numbers"),
    "python's noise": (lambda net, x: x + 0.5 * random.random(), "draws random numbers"),
    "noise of its own": (lambda net, x: x + torch.randn((), generator=OWN), "same images again"),
    "a counter": (counting, "'calls'"),
    "a counter that is replaced": (replacing, "'calls'"),
    "a counter of Python": (ticking, "same images again"),
    "the mean": (lambda net, x: x - x.mean(0), "other images of the batch"),
    "the size of the batch": (lambda net, x: x / len(x), "other images of the batch"),
    "the place": (lambda net, x: x + torch.arange(len(x)).view(-1, 1, 1, 1), "on its position"),
    "noise of each place": (seeded, "on its position"),
    "a branch": (lambda net, x: x if isinstance(x, Tensor) else 0 * x, "on a set of images"),
    "a branch on sets with width": (
        lambda net, x: x if isinstance(x, Tensor) or not bool((x.radius > 0).any()) else 0.5 * x,
        "on a set of images",
    ),
    "the middle of a set": (lambda net, x: x if isinstance(x, Tensor) else x.center, "on a set of images"),
    "a narrower set": (
        lambda net, x: x if isinstance(x, Tensor) else Box(center=x.center, radius=0.1 * x.radius),
        "on a set of images",
    ),
}
OWN = torch.Generator().manual_seed(0)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("count", [1, 5])
def test_a_network_that_is_not_a_function_of_one_image_is_refused(name: str, count: int) -> None:
    first, why = REFUSED[name]
    x = images(count)
    with pytest.raises(UserError, match=why) as refused:
        certify(Net(first), x, torch.zeros(count, dtype=torch.long), 0.01, attack=QUICK)
    assert str(refused.value).count(". ") == 0


@pytest.mark.parametrize("name", ["noise", "a counter", "the mean", "a branch"])
def test_radii_and_predictions_refuse_it_too(name: str) -> None:
    first, why = REFUSED[name]
    x, y = images(2), torch.zeros(2, dtype=torch.long)
    with pytest.raises(UserError, match=why):
        radii(Net(first), Split(x, y), attack=QUICK)
    with pytest.raises(UserError, match=why):
        largest_proved_eps(Net(first), x, y)


def test_dependence_on_the_batch_shows_for_equal_images() -> None:
    x = images(1).expand(4, -1, -1, -1)
    with pytest.raises(UserError, match="other images"):
        check_function(Net(REFUSED["the mean"][0]).eval(), x)


FINE: dict[str, Callable[[nn.Module, Any], Any]] = {
    "as it is": lambda net, x: x,
    "a shape that is read": lambda net, x: x.view(len(x), -1).view(x.shape[0], 1, 4, 4),
    "written to": lambda net, x: x.mul_(0.5).sub_(0.1),
    "large numbers": lambda net, x: (x + 1e6) - 1e6,
    "a constant": lambda net, x: x + torch.linspace(0, 1, 4),
}


@pytest.mark.parametrize("name", FINE)
@pytest.mark.parametrize("count", [1, 5])
def test_functions_of_one_image_pass(name: str, count: int) -> None:
    net = Net(FINE[name], batchnorm=True).train()
    x = images(count)
    y = torch.zeros(count, dtype=torch.long)
    torch.manual_seed(3)
    chance, dice = torch.get_rng_state(), random.getstate()
    state = {key: value.clone() for key, value in net.state_dict().items()}
    found = certify(net, x, y, 0.01, attack=Attack(steps=1))
    assert len(found.records) == count
    assert torch.equal(torch.get_rng_state(), chance)
    assert random.getstate() == dice
    assert all(module.training for module in net.modules())
    assert all(torch.equal(net.state_dict()[key], value) for key, value in state.items())


def test_rounding_of_large_numbers_is_not_taken_for_a_dependence() -> None:
    """Sums of 1e8 in float32: alone and in a batch the logits differ by far more than 1e-4 of them."""
    torch.manual_seed(0)
    first, second = nn.Linear(16, 256), nn.Linear(256, 3)
    with torch.no_grad():
        first.bias.add_(1e7)
        second.bias.copy_(-second.weight.double().sum(1) * 1e7)
    check_function(nn.Sequential(nn.Flatten(), first, nn.ReLU(), second).eval(), images())


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_pass(value: float) -> None:
    net = Net()
    with torch.no_grad():
        net.linear.bias.fill_(value)
    check_function(net.eval(), images())


def test_the_self_test_takes_few_passes() -> None:
    net = Net().eval()
    sizes: list[int] = []
    net.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0])))
    check_function(net, images(100))
    assert len(sizes) <= 16
    assert sum(sizes) <= 120


def test_an_operation_without_a_rule_is_still_named() -> None:
    net = Net(lambda net, x: x.sort(dim=-1).values)
    with pytest.raises(UnsupportedOperation, match="sort"):
        certify(net, images(), torch.zeros(5, dtype=torch.long), 0.01, attack=QUICK)


def test_a_network_for_one_image_is_refused() -> None:
    net = Net(lambda net, x: x.view(1, 1, 4, 4))
    with pytest.raises(UserError, match="images at once"):
        check_function(net.eval(), images(1))


def _halfway(net: nn.Module, x: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return net.conv(x).float()[:, :1]


def _default(net: nn.Module, x: Any) -> Any:
    torch.set_default_dtype(torch.float16)
    try:
        return x + torch.full((4,), 0.1)
    finally:
        torch.set_default_dtype(torch.float32)


LOW: dict[str, Callable[[nn.Module, Any], Any]] = {
    "half": lambda net, x: x.half().float(),
    "bfloat16": lambda net, x: x.bfloat16().float(),
    "to": lambda net, x: x.to(torch.float16).to(torch.float32),
    "type": lambda net, x: x.type(torch.half).float(),
    "float8": lambda net, x: x.to(torch.float8_e4m3fn).float(),
    "sum": lambda net, x: x + x.sum(dim=3, keepdim=True, dtype=torch.half).float(),
    "mean": lambda net, x: x + x.mean(dim=3, keepdim=True, dtype=torch.bfloat16).float(),
    "cumsum": lambda net, x: x.cumsum(3, dtype=torch.half).float(),
    "autocast": _halfway,
    "default dtype": _default,
}


@pytest.mark.parametrize("name", LOW)
@pytest.mark.parametrize("by", ["ibp", "complete"])
def test_low_precision_inside_of_a_network_is_refused(name: str, by: str) -> None:
    x, y = images(), torch.zeros(5, dtype=torch.long)
    with pytest.raises(UserError, match=r"float16|float8|autocast|Tensor.type ") as refused:
        certify(Net(LOW[name]), x, y, 0.01, by=[by], attack=QUICK)
    assert "Net.forward" in str(refused.value) or "'conv'" in str(refused.value)
    with pytest.raises(UserError, match=r"float16|float8|autocast"):
        largest_proved_eps(Net(LOW[name]), x, y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_network_of_low_precision_is_refused(dtype: torch.dtype) -> None:
    x, y = images(), torch.zeros(5, dtype=torch.long)
    whole, mixed, buffers = Net().to(dtype), Net(), Net()
    mixed.linear.to(dtype)
    buffers.calls = buffers.calls.to(dtype)
    for net in (whole, mixed, buffers):
        for given in (x, x.to(dtype)):
            with pytest.raises(UserError, match=rf"{dtype}.*net\.float"):
                certify(net, given, y, 0.01, attack=QUICK)
        with pytest.raises(UserError, match="float16"):
            radii(net, Split(x, y), attack=QUICK)
        with pytest.raises(UserError, match="float16"):
            largest_proved_eps(net, x, y)


def test_an_autocast_around_it_is_refused() -> None:
    x, y, net = images(), torch.zeros(5, dtype=torch.long), Net()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for call in (
            lambda: certify(net, x, y, 0.01, attack=QUICK),
            lambda: radii(net, Split(x, y), attack=QUICK),
            lambda: largest_proved_eps(net, x, y),
        ):
            with pytest.raises(UserError, match=r"outside of torch\.autocast"):
                call()
        with torch.autocast("cpu", enabled=False):
            check_types(net)
            certify(net, x, y, 0.01, attack=QUICK)


def test_a_refused_network_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="random"):
        certify(Net(REFUSED["noise"][0]), images(), torch.zeros(5, dtype=torch.long), 0.01, out=tmp_path / "out")
    assert not (tmp_path / "out" / "records.jsonl").exists()


def test_a_default_of_low_precision_is_refused() -> None:
    net, x, y = Net(), images(), torch.zeros(5, dtype=torch.long)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with pytest.raises(UserError, match="set_default_dtype"):
            certify(net, x, y, 0.01, attack=QUICK)
    finally:
        torch.set_default_dtype(torch.float32)
