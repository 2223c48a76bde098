"""LatentZonotope: the latent set of COLT (Balunovic & Vechev 2020), a zonotope whose generators are never built.

DeepZ encloses what the first layers make of a box of images in a zonotope {c + G e : |e| <= 1}. Each of its points is a
forward pass in which the input is center + radius e_0 and the k-th ReLU an affine function of what enters it,

    z  ->  lambda_k z + mu_k + mu_k e_k,      lambda = u / (u - l),  mu = -lambda l / 2   where l < 0 < u,

and lambda = 1 or 0, mu = 0 where the sign of z is known. So to attack the zonotope is to attack the box of its noise,
as in `attacks.linf_fgsm_random(latent, zeros, y, 1.0, within=None)` with zeros (B, latent.symbols).

Only the bounds l, u = c -+ |G|_1 ask for G. Cauchy random projections estimate them: if the elements of C are
independent Cauchy variables then G C is, element by element, |G|_1 times another, whose logarithm of the absolute value
has the mean 0. So m such C pass along with e = 0, in one batch; a ReLU's radius is the geometric mean of |z_j - z_0|,
in interval bounds.

About half of these estimates are too small, and the network may then leave the set: it is for training and proves
nothing. Certificates come from elsewhere. With projections=0 the interval bounds are used alone, and the set is sound.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from advibp.bounds.box import Box
from advibp.bounds.domain import Func, Rules, exactly, name_of, unsupported
from advibp.bounds.graph.nodes import map_leaves
from advibp.bounds.graph.relu_inputs import RELUS, entering_relus
from advibp.bounds.zonotope import RULES
from advibp.errors import UserError
from advibp.execution.image_gradient import as_image

_EXACT = "convolution linear matmul batch_norm add sub rsub neg mul div positive pad join view same dropout metadata"


class LatentZonotope:
    """What `before` makes of a box of images (B, ...), to be attacked by its noise e (B, n) in [-1, 1].

    symbols: n, for the pixels of an image and then the neurons of every ReLU in `before`, in the order of running.
    bounds: (l, u), (B, ...) each, of what enters these ReLUs; None for one of a constant, which stays as it is.
    """

    @torch.no_grad()
    def __init__(
        self, before: Func, after: Func, box: Box, *, projections: int = 32, generator: torch.Generator | None = None
    ) -> None:
        """before, after: of a `Cut`. projections: m; it takes the memory of a forward pass of (1 + m) B images."""
        if projections < 0:
            raise UserError(f"projections must not be negative, got {projections}; 0 is for interval bounds alone.")
        self._before, self._after, self._box = before, after, box
        self._projections, self._generator = projections, generator
        with entering_relus() as entering:
            self._hull: Box = _watched(before, box.clone())  # it may write to it
        self._shapes = [box.shape, *(z.shape for z in entering if isinstance(z, Box))]
        self.symbols = sum(shape[1:].numel() for shape in self._shapes)
        self.bounds = [(z.lower, z.upper) if isinstance(z, Box) else None for z in entering]
        self._relus: list[Func | None] = [None] * len(entering)
        relax = [b and partial(_Together.apply, partial(self._relax, k, *b)) for k, b in enumerate(self.bounds)]
        x = torch.addcmul(box.center, box.radius, self._noise(box.shape))
        self._rows = torch.vmap(partial(self._run, relax))(x)  # (1 + m, B, ...): c, and c + G C

    def point(self, e: Tensor) -> Tensor:
        """The latent value c + G e, (B, ...), for e (B, n), which alone gets a gradient: weights are constants here."""
        if e.shape != (expected := (len(self._box), self.symbols)):
            raise UserError(
                f"e must be {expected}, not {tuple(e.shape)}; in attacks.linf_pgd set stop_on_success=False."
            )
        parts = e.split([shape[1:].numel() for shape in self._shapes], 1)
        noise = (part.reshape(shape) for part, shape in zip(parts, self._shapes, strict=True))
        x = torch.addcmul(self._box.center, self._box.radius, next(noise))
        return self._run([relu and partial(relu, next(noise)) for relu in self._relus], as_image(x))

    def __call__(self, e: Tensor) -> Any:
        """The network's output there."""
        return self._after(self.point(e))

    def next_relu(self) -> tuple[Tensor, Tensor] | None:
        """Such bounds (l, u) of what enters the first ReLU in `after`, if there is one, with a gradient for the weights
        of `after`."""
        box = _watched(self._after, self._hull.clone(), until_relu=True)
        if box is None:
            return None
        # As sets without a radius: from points BatchNorm in training would take statistics, here those of noise.
        enters = torch.vmap(lambda row: _watched(self._after, Box(row, 0.0), until_relu=True).center)
        return _estimate(enters(self._rows), box.lower, box.upper)

    def _relax(self, k: int, lower: Tensor, upper: Tensor, z: Tensor) -> Tensor:
        """The k-th ReLU on rows z (1 + m, B, ...), relaxed over bounds that it tightens by what these tell."""
        unknown = (lower < 0) & (upper > 0)  # elsewhere there is nothing to estimate
        lower[unknown], upper[unknown] = _estimate(z[:, unknown], lower[unknown], upper[unknown])
        crossing = (lower < 0) & (upper > 0)
        slope = torch.where(crossing, upper / (upper - lower), (lower >= 0).to(z))
        shift = torch.where(crossing, -slope * lower / 2, 0.0)
        relu = self._relus[k] = lambda noise, z: torch.addcmul(shift, z, slope).addcmul(shift, noise)
        return relu(self._noise(lower.shape), z)

    def _noise(self, shape: torch.Size) -> Tensor:
        """(1 + m, 1, ...) for values (B, ...): zeros and m times Cauchy noise, the same for all images."""
        noise = self._box.center.new_zeros(1 + self._projections, 1, *shape[1:])
        noise[1:].cauchy_(generator=self._generator).clamp_(-1e6, 1e6)  # infinity would stay
        return noise

    def _run(self, relus: list[Any], x: Tensor) -> Tensor:
        """`before`, with these in place of its ReLUs."""
        with exactly(x.device.type), _Replacing(relus) as replacing:
            latent: Tensor = self._before(x)
        if replacing.met != len(relus):
            raise UserError(f"{len(relus)} ReLUs ran on a box, {replacing.met} on points; let both take the same way.")
        return latent


def _estimate(z: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds within [lower, upper], (...) each, from the rows z (1 + m, ...): c, and c + G C."""
    if len(z) == 1:
        return lower, upper
    projected, count = (z[1:] - z[0]).abs().clamp(min=1e-30), len(z) - 1
    # The mean of a geometric mean of m is too large by 1 / cos(pi / 2m)^m. (The median is as precise, and ten times as
    # slow.) With one projection there is no mean, and no correction.
    correction = math.cos(math.pi / (2 * count)) ** count if count > 1 else 1.0
    radius = correction * projected.log().mean(0).exp()
    # (clamp has no gradient where lower == upper, and rounding puts the estimate beside them.)
    return (z[0] - radius).maximum(lower).minimum(upper), (z[0] + radius).maximum(lower).minimum(upper)


class _Replacing(TorchFunctionMode):
    """Under it the k-th ReLU that runs is relus[k], or itself where that is None, and parameters are constants."""

    def __init__(self, relus: list[Any]) -> None:
        super().__init__()
        self.relus, self.met = relus, 0

    def __torch_function__(self, func: Func, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = map_leaves((args, kwargs or {}), lambda v: v.detach() if isinstance(v, nn.Parameter) else v)
        relu = self.relus[self.met] if func in RELUS and self.met < len(self.relus) else None
        self.met += func in RELUS
        if relu is None:
            return func(*args, **kwargs)
        z = args[0] if args else kwargs["input"]
        in_place = func.__name__.endswith("_") or kwargs.get("inplace") or args[1:2] == (True,)
        return z.copy_(relu(z)) if in_place else relu(z)


class _Together(torch.autograd.Function):
    """A function of all rows (R, ...) under vmap, which spares recorded networks a batch other than their own B."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, in_dims: Any, rows: Func, z: Tensor) -> tuple[Tensor, int]:
        return rows(z.movedim(in_dims[1], 0)), 0


def entering_first_relu(net: Func, box: Box) -> Box | None:
    """What enters the first ReLU of a network that runs on a box, if it has one; the rest is not run."""
    found: Box | None = _watched(net, box, until_relu=True)
    return found


class _Reached(Exception):
    """A ReLU; its input is the argument."""


def _watched(net: Func, box: Box, until_relu: bool = False) -> Any:
    """net(box), or what enters its first ReLU, without the rest; what has no exact rule is refused."""

    def watch(func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if until_relu and func in RELUS:
            raise _Reached(args[0] if args else kwargs["input"])
        if func not in RELUS and getattr(RULES.get(func), "__name__", None) not in _EXACT.split():
            unsupported(f"{name_of(func)} is neither affine nor a ReLU", "cut the network before it for a zonotope.")

    Rules.watchers.append(watch)
    try:
        output = net(box)
    except _Reached as reached:
        return reached.args[0]
    finally:
        Rules.watchers.remove(watch)
    return None if until_relu else output
