"""Whether a network is what a proof is about: a function of one image, the same for points and for sets of them.

Found out by a dozen passes over a few images, before anything is certified. What fails is refused, in one sentence that
says why. A pass proves nothing: a network that behaves while it is looked at, or for the first hundred calls, or in
small batches, is not caught.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from advibp.bounds import Box
from advibp.bounds.domain import FULL_PRECISION, Func, is_low, name_of, unsupported
from advibp.bounds.graph.nodes import leaves_of
from advibp.errors import UserError
from advibp.execution.own_copy import run_on_copy
from advibp.verify.exact.question import doubled, like
from advibp.verify.precision import autocasts

#: Images that are looked at, besides one of noise.
FEW = 3
#: How often they are repeated in a larger batch.
MANY = 8
#: Of boxes that must hold the logits of their points. The wider, the more a wrong set shows; the tighter, the looser
#: bounds hide.
RADII = (0.0, 1e-3, 0.1)
#: How far logits may be apart by rounding, as a share of the largest.
ROUNDING = 1e-4

Range = tuple[float, float] | None


@torch.no_grad()
def check_function(net: nn.Module, x: Tensor, within: Range = (0.0, 1.0)) -> None:
    """Refuse what is no function of one image. x (B, ...): some images, of which the first few are used. `net` is in
    evaluation mode; torch's random numbers go on as if nothing had happened."""
    x = _with_noise(x[:FEW].to(like(net).device))
    with _chance_kept(x.device):
        _check_repeats(net, x)
        if _fails(_mixes, net, x):
            raise UserError(
                "The network's logits of an image depend on the other images of the batch, or on its place among them, "
                "so they are no function of the image; let each image be computed by itself (no x.mean(0), no "
                "statistics of the batch)."
            )
        if _fails(lambda net, x: _escapes(net, x, within), net, x):
            raise UserError(
                "On a set of images the network does not compute what it does on images: the logits of some lie "
                "outside of the bounds; let forward do the same for every kind of input (no isinstance(x, Tensor))."
            )


def _with_noise(x: Tensor) -> Tensor:
    """The images and one of noise: among images that are all the same, no dependence would show."""
    noise = torch.rand(1, *x.shape[1:], generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    return torch.cat([x, noise.to(x.device)])


def _check_repeats(net: nn.Module, x: Tensor) -> None:
    """The same images twice: the same logits, no random numbers, nothing written to the network, no low precision."""
    state, chance = _state(net), _chance(x.device)
    with _Watching(x.device.type):
        first = _logits(net, x)
    second = _logits(net, x)
    if not all(torch.equal(now, then) for now, then in zip(_chance(x.device), chance, strict=True)):
        raise UserError(
            "The network draws random numbers as it runs, so it is no function of its input; leave them out in "
            "evaluation mode."
        )
    found = _state(net)
    changed = [name for name in state.keys() | found.keys() if not _same(state.get(name), found.get(name))]
    if changed:
        raise UserError(
            f"The network changes '{min(changed)}' as it runs, so its next run is another function; keep buffers and "
            f"parameters as they are in evaluation mode."
        )
    with torch.enable_grad():
        third = _logits(net, x.clone().requires_grad_()).detach()
    with torch.inference_mode():
        fourth = _logits(net, x)
    strided = _strided(net, x)
    if strided is not None and not _close(first, strided):
        raise UserError(
            "The network gives other logits when the same images lie otherwise in memory, so it is not one function; "
            "let nothing but its input and its weights decide what it computes."
        )
    if not (_close(first, third) and _close(first, fourth)):
        raise UserError(
            "The network gives other logits with gradients or in inference mode, so it is not one function; let "
            "nothing but its input and its weights decide what it computes."
        )
    # Some of CUDA's sums have no order.
    if not (_same(first, second) if x.device.type == "cpu" else _close(first, second)):
        raise UserError(
            "The network gives other logits when it runs on the same images again, so it is no function of its input; "
            "let nothing but its input and its weights decide what it computes."
        )


def _strided(net: nn.Module, x: Tensor) -> Tensor | None:
    """The logits of images that are not contiguous in memory; None for a network that takes none."""
    try:
        return _logits(net, x.movedim(1, -1).contiguous().movedim(-1, 1))
    except Exception:  # such as `view` raises
        return None


def _logits(net: nn.Module, x: Tensor) -> Tensor:
    try:
        logits = run_on_copy(net, x)
    except UserError:
        raise
    except Exception as error:  # a network of one's own may raise anything
        raise UserError(f"The network can't take {len(x)} images at once: {error}") from error
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(x):
        raise UserError(f"The network does not return a row of logits for each of {len(x)} images that come together.")
    return logits


def _mixes(net: nn.Module, x: Tensor) -> bool:
    """Whether an image alone, or at another place, has other logits than in the batch."""
    together = _logits(net, x)
    if not _close(_logits(net, x[:1]), together[:1]):
        return True
    many = _logits(net, x.repeat(MANY, *[1] * (x.dim() - 1)))
    if not _close(many[: len(x)], together):
        return True
    return not _close(_logits(net, x.roll(1, 0)), together.roll(1, 0))


def _escapes(net: nn.Module, x: Tensor, within: Range) -> bool:
    """Whether points of a box have logits outside of the bounds of the box. A network that takes no box is the
    provers' to refuse."""
    for radius in RADII:
        box = Box.ball(x, radius, within)
        try:
            bounds = run_on_copy(net, box)
        except Exception:  # a network of one's own may raise anything, and will do so again
            return False
        points = _points(box) if radius else x
        logits = _logits(net, points).unflatten(0, (-1, len(x)))  # (P, B, K)
        if not isinstance(bounds, Box) or bounds.shape != logits.shape[1:]:
            return True
        beyond = torch.maximum(bounds.lower - logits, logits - bounds.upper)
        if bool((beyond > _tolerance(logits)).any()):  # bounds that are NaN prove nothing
            return True
    return False


def _points(box: Box) -> Tensor:
    """Both ends of a box (B, ...), two of its vertices and a point inside, by chance: (5 B, ...)."""
    lower, upper = box.lower, box.upper
    share = torch.rand(5, *box.shape, generator=torch.Generator().manual_seed(1), dtype=box.dtype).to(box.device)
    share[0], share[1] = 0, 1
    share[2:4] = share[2:4].round()
    return torch.lerp(lower, upper, share).flatten(0, 1)


def _fails(test: Callable[[nn.Module, Tensor], bool], net: nn.Module, x: Tensor) -> bool:
    """Whether a test fails for other reasons than rounding, which large numbers inside of a network make large: then it
    passes in double precision."""
    if not test(net, x):
        return False
    try:
        return test(doubled(net), x.double())
    except Exception:  # not every network of one's own can be copied, or run in double precision
        return True


def _tolerance(logits: Tensor) -> float:
    return ROUNDING * float(torch.nan_to_num(logits, 0.0, 0.0, 0.0).abs().max()) + 1e-6


def _close(a: Tensor, b: Tensor) -> bool:
    """Equal up to rounding, where both are finite."""
    apart = torch.where(a.isfinite() & b.isfinite(), a - b, 0.0).abs()
    return a.shape == b.shape and not bool((apart > _tolerance(b)).any())


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        return a is b
    return bool(((a == b) | ((a != a) & (b != b))).all())  # NaN is NaN


def _state(net: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in (*net.named_parameters(), *net.named_buffers())}


def _chance(device: torch.device) -> list[Tensor]:
    """The state of the random numbers that a network may draw: torch's, and Python's as a number."""
    cuda = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), torch.tensor(hash(random.getstate())), *cuda]


@contextmanager
def _chance_kept(device: torch.device) -> Iterator[None]:
    dice = random.getstate()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(dice)


class _Watching(TorchFunctionMode):
    """Refuses what is computed in low precision, which torch may do and bounds do not follow."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Func, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if autocasts(self.device):
            unsupported("the network switches autocast on, whose rounding bounds do not cover", FULL_PRECISION)
        result = func(*args, **(kwargs or {}))
        for leaf in leaves_of(result):
            if isinstance(leaf, Tensor) and is_low(leaf.dtype):
                unsupported(f"{name_of(func)} rounds to {leaf.dtype}, which bounds do not cover", FULL_PRECISION)
        return result
