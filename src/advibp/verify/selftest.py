"""Tests whether a network is a function of one image, and computes the same function for points and for sets.

About a dozen passes over a few images run before anything is certified. A network that fails is refused in one
sentence. A network that passes may still violate the assumption, for example only in large batches or after a hundred
calls.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from advibp.bounds import Box, Perturbation
from advibp.bounds.box import Range
from advibp.bounds.domain import FULL_PRECISION, Func, is_low_precision, name_of, unsupported
from advibp.bounds.graph.nodes import leaves_of
from advibp.errors import UserError
from advibp.execution.own_copy import run_on_copy
from advibp.verify.exact.question import doubled, like
from advibp.verify.precision import autocasts

#: Number of images in the tests, besides one of noise.
FEW = 3
#: How often they are repeated in the larger batch.
MANY = 8
#: Radii of the boxes whose bounds must contain the logits of their points. Wide boxes reveal more wrong rules, but
#: loose bounds hide errors.
RADII = (0.0, 1e-3, 0.1)
#: Tolerance for rounding errors of logits, as a share of the largest.
ROUNDING = 1e-4


@torch.no_grad()
def check_function(net: nn.Module, x: Tensor, within: Range = (0.0, 1.0)) -> None:
    """Raise a UserError if the network is not a function of one image.

    Args:
        net: The network, in evaluation mode.
        x: Images (B, ...), of which the first few are used.
        within: Range of the inputs; None if there is none.

    The state of the random number generators is restored.
    """
    x = _with_noise(x[:FEW].to(like(net).device), within)
    with _random_state_kept(x.device):
        _check_repeats(net, x)
        if _fails(_depends_on_batch, net, x):
            raise UserError(
                "The network's logits of an image depend on the other images of the batch or on its position, so they "
                "are not a function of the image; compute each image by itself (no x.mean(0), no batch statistics)."
            )
        if _fails(lambda net, x: _leaves_bounds(net, x, within), net, x):
            raise UserError(
                "The network computes another function on a set of images than on single images: some logits lie "
                "outside of the bounds; let forward do the same for every type of input (no isinstance(x, Tensor))."
            )


def _with_noise(x: Tensor, within: Range) -> Tensor:
    """Append an image of noise, because equal images would not reveal a dependence on each other."""
    noise = torch.rand(1, *x.shape[1:], generator=torch.Generator().manual_seed(0), dtype=x.dtype).to(x.device)
    return torch.cat([x, spread_over(noise, Perturbation(*(within or (None, None))))])


def spread_over(noise: Tensor, around: Perturbation) -> Tensor:
    """Move noise (B, ...) in [0, 1] to the range of the inputs. Elements with one limit are within 1 of it.

    Elements without a limit stay in [0, 1].
    """
    if around.is_pixels or around.within is None:
        return noise
    low, high = (torch.as_tensor(end, dtype=noise.dtype, device=noise.device) for end in (around.low, around.high))
    bottom = torch.where(low.isfinite(), low, torch.where(high.isfinite(), high - 1, 0.0))
    top = torch.where(high.isfinite(), high, bottom + 1)
    return torch.minimum(torch.maximum(torch.lerp(bottom, top, noise), low), high)


def _check_repeats(net: nn.Module, x: Tensor) -> None:
    """Check that repeated runs give the same logits, draw no random numbers and do not change the network."""
    state, random_state = _state(net), _random_state(x.device)
    with _LowPrecisionCheck(x.device.type):
        first = _logits(net, x)
    second = _logits(net, x)
    if not all(torch.equal(now, then) for now, then in zip(_random_state(x.device), random_state, strict=True)):
        raise UserError(
            "The network draws random numbers, so it is not a function of its input; draw none in evaluation mode."
        )
    after = _state(net)
    changed = [name for name in state.keys() | after.keys() if not _same(state.get(name), after.get(name))]
    if changed:
        raise UserError(
            f"The network changes '{min(changed)}' when it runs, so it is not a function of its input; do not change "
            f"buffers and parameters in evaluation mode."
        )
    # Some sums on CUDA have no fixed order.
    if not (_same(first, second) if x.device.type == "cpu" else _close(first, second)):
        raise UserError(
            "The network's logits change when it runs on the same images again, so it is not a function of its input; "
            "make its logits depend on its input and its weights alone."
        )
    with torch.enable_grad():
        third = _logits(net, x.clone().requires_grad_()).detach()
    with torch.inference_mode():
        fourth = _logits(net, x)
    strided = _strided(net, x)
    if strided is not None and not _close(first, strided):
        raise UserError(
            "The network's logits depend on the memory layout of the images, so it is not a function of its input; "
            "make its logits depend on its input and its weights alone."
        )
    if not (_close(first, third) and _close(first, fourth)):
        raise UserError(
            "The network's logits depend on whether gradients are enabled, so it is not a function of its input; make "
            "its logits depend on its input and its weights alone."
        )


def _strided(net: nn.Module, x: Tensor) -> Tensor | None:
    """The logits of images that are not contiguous in memory; None if the network refuses such images."""
    try:
        return _logits(net, x.movedim(1, -1).contiguous().movedim(-1, 1))
    except Exception:  # such as `view` raises
        return None


def _logits(net: nn.Module, x: Tensor) -> Tensor:
    try:
        logits = run_on_copy(net, x)
    except UserError:
        raise
    except Exception as error:  # a user's network may raise anything
        raise UserError(f"The network can't take {len(x)} images at once: {error}") from error
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(x):
        raise UserError(f"The network does not return a row of logits for each image of a batch of {len(x)}.")
    return logits


def _depends_on_batch(net: nn.Module, x: Tensor) -> bool:
    """Whether an image alone, or at another position, has other logits than in the batch."""
    together = _logits(net, x)
    if not _close(_logits(net, x[:1]), together[:1]):
        return True
    many = _logits(net, x.repeat(MANY, *[1] * (x.dim() - 1)))
    if not _close(many[: len(x)], together):
        return True
    return not _close(_logits(net, x.roll(1, 0)), together.roll(1, 0))


def _leaves_bounds(net: nn.Module, x: Tensor, within: Range) -> bool:
    """Whether points of a box have logits outside of the bounds of the box.

    A network that can't run on a box passes; the verifiers raise the error.
    """
    for radius in RADII:
        box = Box.ball(x, radius * _unit(x, within), within)
        try:
            bounds = run_on_copy(net, box)
        except Exception:  # a user's network may raise anything; the verifiers report it
            return False
        points = _points(box) if radius else x
        logits = _logits(net, points).unflatten(0, (-1, len(x)))  # (P, B, K)
        if not isinstance(bounds, Box) or bounds.shape != logits.shape[1:]:
            return True
        beyond = torch.maximum(bounds.lower - logits, logits - bounds.upper)
        if bool((beyond > _tolerance(logits)).any()):  # NaN bounds are no proof, so they pass
            return True
    return False


def _unit(x: Tensor, within: Range) -> Tensor | float:
    """The unit of the radii: 1 for images. Otherwise the magnitude of the inputs, because they may be of any size."""
    if Perturbation(*(within or (None, None))).is_pixels:
        return 1.0
    return x.abs().amax(0, keepdim=True).clamp(min=1e-3)


def _points(box: Box) -> Tensor:
    """Both ends of a box (B, ...), two random vertices and a random point: (5 B, ...)."""
    lower, upper = box.lower, box.upper
    share = torch.rand(5, *box.shape, generator=torch.Generator().manual_seed(1), dtype=box.dtype).to(box.device)
    share[0], share[1] = 0, 1
    share[2:4] = share[2:4].round()
    return torch.lerp(lower, upper, share).flatten(0, 1)


def _fails(test: Callable[[nn.Module, Tensor], bool], net: nn.Module, x: Tensor) -> bool:
    """Whether a test fails, and not only because of rounding errors: then it would pass in double precision."""
    if not test(net, x):
        return False
    try:
        return test(doubled(net), x.double())
    except Exception:  # not every user's network can be copied or converted
        return True


def _tolerance(logits: Tensor) -> float:
    return ROUNDING * float(torch.nan_to_num(logits, 0.0, 0.0, 0.0).abs().max()) + 1e-6


def _close(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal up to rounding where both are finite."""
    apart = torch.where(a.isfinite() & b.isfinite(), a - b, 0.0).abs()
    return a.shape == b.shape and not bool((apart > _tolerance(b)).any())


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        return a is b
    return bool(((a == b) | ((a != a) & (b != b))).all())  # NaN is NaN


def _state(net: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in (*net.named_parameters(), *net.named_buffers())}


def _random_state(device: torch.device) -> list[Tensor]:
    """The states of the generators that a network may use: those of torch, and a hash of Python's."""
    cuda = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), torch.tensor(hash(random.getstate())), *cuda]


@contextmanager
def _random_state_kept(device: torch.device) -> Iterator[None]:
    state = random.getstate()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(state)


class _LowPrecisionCheck(TorchFunctionMode):
    """Raises an error if an operation computes in low precision, which bounds do not cover."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Func, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if autocasts(self.device):
            unsupported("the network enables autocast, whose rounding errors bounds do not cover", FULL_PRECISION)
        result = func(*args, **(kwargs or {}))
        for leaf in leaves_of(result):
            if isinstance(leaf, Tensor) and is_low_precision(leaf.dtype):
                unsupported(f"{name_of(func)} rounds to {leaf.dtype}, which bounds do not cover", FULL_PRECISION)
        return result
