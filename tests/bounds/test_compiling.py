"""Compiled ReLUs of boxes: the same values and gradients as the plain ones."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import Tensor, nn

from advibp import Box
from advibp.bounds import compiling
from advibp.bounds.compiling import compiled_relus, compiles_relus
from advibp.errors import UserError

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")


def values_and_gradients(center: Tensor, radius: Tensor, *, on: bool) -> list[Tensor]:
    center, radius = center.clone().requires_grad_(), radius.clone().requires_grad_()
    with compiled_relus(on):
        box = torch.relu(Box(center=center, radius=radius))
    weights = torch.linspace(-1, 2, center.numel(), dtype=center.dtype).view(center.shape)
    loss = (box.center * weights).sum() + (box.radius * (weights.flip(0) + 0.3)).sum()
    return [box.center.detach(), box.radius.detach(), *torch.autograd.grad(loss, (center, radius))]


@needs_compiler
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "mixed", "flat", "one"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_same_values_and_gradients(layout: str, dtype: torch.dtype) -> None:
    shape = {"flat": (5, 7), "one": (1, 1)}.get(layout, (3, 4, 5, 6))
    center, radius = torch.randn(shape, dtype=dtype), torch.rand(shape, dtype=dtype)
    center.view(-1)[0], radius.view(-1)[0] = -0.5, 0.5  # an upper bound of 0
    if layout in ("channels_last", "mixed"):
        center = center.contiguous(memory_format=torch.channels_last)
        radius = radius if layout == "mixed" else radius.contiguous(memory_format=torch.channels_last)
    plain, compiled = (values_and_gradients(center, radius, on=on) for on in (False, True))
    for expected, found in zip(plain, compiled, strict=True):
        torch.testing.assert_close(found, expected)


@needs_compiler
def test_only_in_the_context_and_only_with_gradients() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    box = Box.ball(torch.rand(2, 3), 0.1)
    with compiled_relus():
        assert compiles_relus()
        with torch.no_grad():
            within = net(box).lower
    assert not compiles_relus()
    with torch.no_grad():
        assert torch.equal(net(box).lower, within)


def test_a_machine_without_a_compiler_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> object:
        raise RuntimeError("InvalidCxxCompiler: no working C++ compiler was found\nand more")

    monkeypatch.setattr(torch, "compile", broken)
    compiling._check_compiler.cache_clear()
    compiling._compiled.cache_clear()
    message = r"no working C\+\+ compiler was found\); install .* or set compile to false"
    with pytest.raises(UserError, match=message), compiled_relus():
        pass
    with compiled_relus(False):  # changes nothing
        assert not compiles_relus()
