"""Cuts: both parts together equal the network, for points and sets, and `frozen` has the parameters before the cut."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from programs import SETS_TOO, Program, programs
from torch import Tensor, nn

from advibp.bounds import Box
from advibp.bounds.graph.cut import Cut, cuts
from advibp.errors import UserError


class Net(nn.Module):
    """Some layers, with a forward that the test provides."""

    def __init__(self, body: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c, self.d = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.norm, self.scale = nn.BatchNorm1d(6), nn.Parameter(torch.rand(6) + 0.5)
        self.body = body
        self.double().eval()

    def forward(self, x: Any) -> Any:
        return self.body(self, x)


def smooth(x: Any) -> Any:
    """An activation whose derivative is nonzero everywhere."""
    return torch.tanh(x)


def chain() -> nn.Sequential:
    inner = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True))
    head = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3))
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), inner, nn.Dropout(), head).double().eval()


def point(*shape: int) -> Tensor:
    return torch.randn(shape or (3, 6), dtype=torch.float64)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Box):
        return bool(torch.equal(a.lower, b.lower) and torch.equal(a.upper, b.upper) and a.elided == b.elided)
    return torch.equal(a, b)


def check(net: nn.Module, cut: Cut, shape: tuple[int, ...]) -> None:
    """Check that after(before(x)) equals the network, and that the bounds are the same and contain sampled points."""
    x = point(*shape)
    latent = cut.before(x.clone())
    kept = latent.clone()
    assert same(cut.after(latent), net(x.clone()))
    assert same(latent, kept)
    box = Box(center=x, radius=torch.rand(shape, dtype=x.dtype) * 0.3)
    try:
        expected = net(box.clone())
        expected.lower  # noqa: B018  (a box that was written through a view raises when it is read)
    except UserError:
        return
    inner = cut.before(box.clone())
    found = cut.after(inner)
    assert same(found, expected)
    for _ in range(5):
        member = box.center + box.radius * (2 * torch.rand_like(x) - 1)
        output = net(member)
        assert bool(((found.lower - 1e-9 <= output) & (output <= found.upper + 1e-9)).all())
        inside = inner.center + inner.radius * (2 * torch.rand_like(inner.center) - 1)
        output = cut.after(inside)
        assert bool(((found.lower - 1e-9 <= output) & (output <= found.upper + 1e-9)).all())


@settings(max_examples=60)
@given(programs(SETS_TOO, training=False))
def test_both_parts_equal_the_network(net: Program) -> None:
    found, refused = cuts(net, point(4, 8))
    for cut in found:
        check(net, cut, (4, 8))
        assert cut.frozen
        assert {id(p) for p in net.parameters()} > {id(p) for p in cut.frozen}
    assert all("can't be cut at" in sentence and "(a skip connection)" in sentence for sentence in refused)
    assert len(set(refused)) == len(refused)


def test_sequential_is_sliced_at_every_layer() -> None:
    net = chain()
    found, refused = cuts(net, point(3, 1, 6, 6))
    assert [cut.layer for cut in found] == ["2.0", "4.1", "4.3"]
    assert [len(cut.frozen) for cut in found] == [2, 6, 8]
    assert not refused
    for cut in found:
        check(net, cut, (3, 1, 6, 6))
        check(net, cut, (2, 1, 6, 6))  # slices take batches of any size


@pytest.mark.parametrize("nest", [False, True])
def test_recorded_and_sliced_cuts_agree(nest: bool) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = chain()

        def forward(self, x: Any) -> Any:
            return self.inner(x)

    net: nn.Module = nn.Sequential(Wrapped()) if nest else Wrapped()
    found, refused = cuts(net, point(3, 1, 6, 6))
    sliced, _ = cuts(chain(), point(3, 1, 6, 6))
    assert [len(cut.frozen) for cut in found] == [len(cut.frozen) for cut in sliced]
    assert all(s.layer in cut.layer for cut, s in zip(found, sliced, strict=True))
    assert not refused
    for cut in found:
        check(net, cut, (3, 1, 6, 6))


def test_sequential_with_hooks_is_recorded() -> None:
    net = chain()
    net[2].register_forward_hook(lambda module, args, output: output + 1)
    found, _ = cuts(net, point(3, 1, 6, 6))
    assert len(found) == 3
    for cut in found:
        check(net, cut, (3, 1, 6, 6))


EXACT: dict[str, tuple[Callable[[Any, Any], Any], list[set[str]]]] = {
    # forward -> the frozen layers of each cut
    "chain": (lambda n, x: n.d(smooth(n.b(smooth(n.a(x))))), [{"a"}, {"a", "b"}]),
    "residual": (lambda n, x: n.d(smooth(n.b(smooth(n.a(x))) + n.c(x))), [{"a", "b", "c"}]),
    "parallel": (lambda n, x: (lambda h: n.d(n.b(h) + n.c(h)))(smooth(n.a(x))), [{"a"}, {"a", "b", "c"}]),
    "shared": (lambda n, x: n.d(smooth(n.a(smooth(n.a(x))))), [{"a"}, {"a"}]),
    "dead branch": (lambda n, x: (n.b(x).relu_(), n.d(smooth(n.a(x))))[1], [{"a"}]),
    "dead branch across": (lambda n, x: _dead_across(n, x), [{"a"}]),
    "functional": (lambda n, x: F.linear(input=smooth(x @ n.a.weight.t()), weight=n.d.weight), [{"a.weight"}]),
    "computed weights": (
        lambda n, x: F.linear(smooth(F.linear(x, n.a.weight * n.scale)), n.d.weight * n.scale),
        [{"a.weight", "scale"}],
    ),
    "one computed weight": (lambda n, x: _tied(n, x), [{"a.weight", "scale"}]),
    "norm": (lambda n, x: n.d(smooth(n.norm(n.a(x)))), [{"a", "norm"}]),
    "a written view": (lambda n, x: _written_view(n, x), [{"a"}]),
    "a written part": (lambda n, x: _written_part(n, x), [{"a"}, {"a", "b"}]),
}


def _tied(n: Any, x: Any) -> Any:
    weight = n.a.weight * n.scale
    return F.linear(smooth(F.linear(x, weight)), weight, n.b.bias)


def _dead_across(n: Any, x: Any) -> Any:
    """A value from before the cut that is written in place after it, but never used, does not cross the cut."""
    other = n.b(x)
    h = smooth(n.a(x))
    F.relu_(other)
    return n.d(h)


def _written_view(n: Any, x: Any) -> Any:
    y = smooth(n.a(x))
    y.view(-1).tanh_()
    return n.d(y)


def _written_part(n: Any, x: Any) -> Any:
    y = n.a(x)
    y[:, :2] = smooth(n.b(y))[:, :2]
    return n.d(y)


@pytest.mark.parametrize(("body", "expected"), EXACT.values(), ids=EXACT.keys())
def test_frozen_parameters_are_those_before_the_cut(body: Any, expected: list[set[str]]) -> None:
    net = Net(body)
    found, _ = cuts(net, point())
    x = point()
    for cut in found:
        frozen = {id(p) for p in cut.frozen}
        assert len(frozen) == len(cut.frozen)
        value = cut.before(x)
        for name, p in net.named_parameters():
            kept = p.detach().clone()
            with torch.no_grad():
                p.add_(torch.rand_like(p))
            assert torch.equal(cut.before(x), value) != (id(p) in frozen), name
            with torch.no_grad():
                p.copy_(kept)
        assert torch.equal(cut.after(cut.before(x)), net(x))
    names = [{n for n, p in net.named_parameters() if any(p is q for q in cut.frozen)} for cut in found]
    listed = [{n for n, _ in net.named_parameters() if n in part or n.split(".")[0] in part} for part in expected]
    assert names == listed


def test_skip_connection_is_refused_by_name() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Any) -> Any:
            return F.relu(self.two(F.relu(self.one(x))) + x)

    net = nn.Sequential(nn.Linear(6, 6), Block(), nn.Linear(6, 2)).double()
    found, refused = cuts(net, point())
    assert [cut.layer for cut in found] == ["layer '1.one' (linear)", "layer '2' (linear)"]
    assert refused == [
        "The network can't be cut at layer '1' (relu): layer '1' (add), which comes later, also uses a value from "
        "before it (a skip connection); cut it before or after the connection."
    ]


def test_no_cut_without_trainable_parameters() -> None:
    layer = nn.Linear(6, 6)
    assert cuts(nn.Sequential(layer, nn.ReLU(), layer), torch.rand(2, 6)) == ([], [])
    assert cuts(Net(lambda n, x: n.a(smooth(n.a(x)))), point()) == ([], [])
    net = Net(lambda n, x: n.d(smooth(n.a(x))))
    net.d.requires_grad_(False)
    assert cuts(net, point()) == ([], [])
    assert cuts(nn.Sequential(nn.Flatten(), nn.Linear(6, 2)), torch.rand(2, 6)) == ([], [])


def test_only_the_part_after_the_cut_gets_gradients() -> None:
    net = Net(lambda n, x: n.d(smooth(n.b(smooth(n.a(x))))))
    original = copy.deepcopy(net)
    (cut, _), _ = cuts(net, point())
    x = point()
    with torch.no_grad():
        latent = cut.before(Box(center=x, radius=0.1))
    loss = cut.after(latent).upper.sum() + cut.after(latent.center).sum()
    trained = [p for p in net.parameters() if not any(p is q for q in cut.frozen)]
    step = torch.autograd.grad(loss, trained, allow_unused=True)
    assert [g is not None for g in step] == [n[0] in "bd" for n, _ in net.named_parameters() if n[0] != "a"]
    with torch.no_grad():
        for p in trained:
            p.add_(1)
    assert torch.equal(cut.before(x), smooth(original.a(x)))
    assert torch.equal(cut.after(cut.before(x)), net(x))  # weights are held by reference
