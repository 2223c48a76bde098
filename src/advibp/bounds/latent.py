"""LatentZonotope: the latent set of COLT (Balunovic & Vechev 2020), a zonotope whose generators are never built.

DeepZ encloses the latent values of a box of images in a zonotope {c + G e : |e| <= 1}. Each of its points is the result
of a forward pass in which the input is center + radius e_0, and the k-th ReLU is an affine function of its input z:

    z  ->  lambda_k z + mu_k + mu_k e_k,      lambda = u / (u - l),  mu = -lambda l / 2   where l < 0 < u,

and lambda = 1 or 0, mu = 0 where the sign of z is known. An attack on the zonotope is therefore an attack on its noise
e in a box, for example `attacks.linf_fgsm_random(latent, zeros, y, 1.0, within=None)` with zeros (B, latent.symbols).

Only the bounds l, u = c -+ |G|_1 need G. They are estimated by Cauchy random projections. If the elements of C are
independent standard Cauchy variables, then each element of G C is |G|_1 times a standard Cauchy variable, and the
logarithm of the absolute value of a standard Cauchy variable has mean 0. So m such vectors C are propagated together
with e = 0 in one batch. The estimated radius at a ReLU is the geometric mean of |z_j - z_0| over j, and the estimated
bounds are clipped to interval bounds.

About half of these estimates are too small, so the set may miss outputs of the network. It is for training and gives no
certificates. With projections=0 only the interval bounds are used, and the set is sound.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from advibp.bounds.box import Box
from advibp.bounds.domain import Func, Rules, name_of, unsupported, without_autocast
from advibp.bounds.graph.nodes import map_leaves
from advibp.bounds.graph.pre_activations import RELUS, record_pre_activations
from advibp.bounds.zonotope import RULES
from advibp.errors import UserError
from advibp.execution.image_gradient import as_image

_EXACT_RULES = (
    "convolution linear matmul batch_norm add sub rsub neg mul div positive pad join view same dropout metadata"
)


class LatentZonotope:
    """The latent zonotope of a box of images, as a function of its noise e (B, n) in [-1, 1].

    Calling it with e returns the network's output at the latent point of e.

    Args:
        before: the part of the network before the cut; see `Cut`. Its activations must be ReLUs.
        after: the part after the cut.
        box: images (B, ...).
        projections: the number m of Cauchy projections. A forward pass of (1 + m) B images must fit into memory. 0 uses
            interval bounds only. Default: 32.
        generator: random generator of the projections. Default: torch's global one.

    Attributes:
        symbols: n, the number of pixels of an image plus the number of neurons of all ReLUs in `before`.
        bounds: for each ReLU in `before` the bounds (l, u) of its input, (B, ...) each. None for a ReLU of a constant,
            which is not relaxed.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> from advibp import Box
        >>> from advibp.bounds.latent import LatentZonotope
        >>> before, after = nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nn.Linear(4, 2)
        >>> latent = LatentZonotope(before, after, Box.ball(torch.rand(5, 3), 0.1))
        >>> latent.symbols, latent(torch.zeros(5, latent.symbols)).shape
        (7, torch.Size([5, 2]))
    """

    @torch.no_grad()
    def __init__(
        self, before: Func, after: Func, box: Box, *, projections: int = 32, generator: torch.Generator | None = None
    ) -> None:
        if projections < 0:
            raise UserError(f"projections must not be negative, got {projections}; use 0 for interval bounds only.")
        self._before, self._after, self._box = before, after, box
        self._projections, self._generator = projections, generator
        with record_pre_activations() as pre_activations:
            self._latent_box: Box = _run_watched(before, box.clone())  # the network may write to it
        self._shapes = [box.shape, *(z.shape for z in pre_activations if isinstance(z, Box))]
        self.symbols = sum(shape[1:].numel() for shape in self._shapes)
        self.bounds = [(z.lower, z.upper) if isinstance(z, Box) else None for z in pre_activations]
        self._relus: list[Func | None] = [None] * len(pre_activations)
        relax = [b and partial(_OnAllRows.apply, partial(self._relax, k, *b)) for k, b in enumerate(self.bounds)]
        x = torch.addcmul(box.center, box.radius, self._noise(box.shape))
        self._rows = torch.vmap(partial(self._run, relax))(x)  # (1 + m, B, ...): c, and c + G C

    def point(self, e: Tensor) -> Tensor:
        """Compute the latent value c + G e.

        Args:
            e: noise (B, n).

        Returns:
            (B, ...). It has a gradient with respect to e only; weights are constants here.
        """
        if e.shape != (expected := (len(self._box), self.symbols)):
            raise UserError(
                f"e must have the shape {expected}, not {tuple(e.shape)}; linf_pgd drops rows unless "
                "stop_on_success=False."
            )
        parts = e.split([shape[1:].numel() for shape in self._shapes], 1)
        noise = (part.reshape(shape) for part, shape in zip(parts, self._shapes, strict=True))
        x = torch.addcmul(self._box.center, self._box.radius, next(noise))
        return self._run([relu and partial(relu, next(noise)) for relu in self._relus], as_image(x))

    def __call__(self, e: Tensor) -> Any:
        """Return the network's output at the latent value of the noise e (B, n)."""
        return self._after(self.point(e))

    def next_pre_activation_bounds(self) -> tuple[Tensor, Tensor] | None:
        """Estimate bounds of the first pre-activation in `after`.

        Returns:
            (l, u), (B, ...) each, with a gradient with respect to the weights of `after`; None if `after` has no ReLU.
        """
        box = _run_watched(self._after, self._latent_box.clone(), until_relu=True)
        if box is None:
            return None
        # Boxes of radius 0: on tensors, BatchNorm in training mode would use the statistics of this noise.
        pre_activations = torch.vmap(
            lambda row: _run_watched(self._after, Box(center=row, radius=0.0), until_relu=True).center
        )
        return _estimate(pre_activations(self._rows), box.lower, box.upper)

    def _relax(self, k: int, lower: Tensor, upper: Tensor, z: Tensor) -> Tensor:
        """Relax the k-th ReLU on rows z (1 + m, B, ...). Its bounds are tightened by the estimate from z."""
        unstable = (lower < 0) & (upper > 0)  # other neurons are stable
        lower[unstable], upper[unstable] = _estimate(z[:, unstable], lower[unstable], upper[unstable])
        still_unstable = (lower < 0) & (upper > 0)
        slope = torch.where(still_unstable, upper / (upper - lower), (lower >= 0).to(z))
        shift = torch.where(still_unstable, -slope * lower / 2, 0.0)
        relu = self._relus[k] = lambda noise, z: torch.addcmul(shift, z, slope).addcmul(shift, noise)
        return relu(self._noise(lower.shape), z)

    def _noise(self, shape: torch.Size) -> Tensor:
        """Return (1 + m, 1, ...) for values (B, ...): zeros and m Cauchy samples, the same for all images."""
        noise = self._box.center.new_zeros(1 + self._projections, 1, *shape[1:])
        noise[1:].cauchy_(generator=self._generator).clamp_(-1e6, 1e6)  # infinite values would spread
        return noise

    def _run(self, relus: list[Any], x: Tensor) -> Tensor:
        """Run `before` with these functions in place of its ReLUs."""
        with without_autocast(x.device.type), _ReplacedRelus(relus) as replaced:
            latent: Tensor = self._before(x)
        if replaced.count != len(relus):
            raise UserError(
                f"{len(relus)} ReLUs ran on a box but {replaced.count} on points; let the network run the same layers "
                f"on both."
            )
        return latent


def _estimate(z: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Estimate bounds within [lower, upper], (...) each, from the rows z (1 + m, ...), which are c and c + G C."""
    if len(z) == 1:
        return lower, upper
    projected, count = (z[1:] - z[0]).abs().clamp(min=1e-30), len(z) - 1
    # The expectation of the geometric mean of m samples is too large by 1 / cos(pi / 2m)^m; for m = 1 it is infinite.
    # The median is as precise but ten times slower.
    correction = math.cos(math.pi / (2 * count)) ** count if count > 1 else 1.0
    radius = correction * projected.log().mean(0).exp()
    # Not clamp: it has no gradient where lower == upper and rounding moves the estimate outside.
    return (z[0] - radius).maximum(lower).minimum(upper), (z[0] + radius).maximum(lower).minimum(upper)


class _ReplacedRelus(TorchFunctionMode):
    """Replace the k-th ReLU by relus[k], unless that is None, and detach parameters."""

    def __init__(self, relus: list[Any]) -> None:
        super().__init__()
        self.relus, self.count = relus, 0

    def __torch_function__(self, func: Func, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = map_leaves((args, kwargs or {}), lambda v: v.detach() if isinstance(v, nn.Parameter) else v)
        relu = self.relus[self.count] if func in RELUS and self.count < len(self.relus) else None
        self.count += func in RELUS
        if relu is None:
            return func(*args, **kwargs)
        z = args[0] if args else kwargs["input"]
        in_place = func.__name__.endswith("_") or kwargs.get("inplace") or args[1:2] == (True,)
        return z.copy_(relu(z)) if in_place else relu(z)


class _OnAllRows(torch.autograd.Function):
    """Call a function on all rows (R, ...) under vmap.

    vmap keeps batches of size B, the only size that a recorded network accepts.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, in_dims: Any, rows: Func, z: Tensor) -> tuple[Tensor, int]:
        return rows(z.movedim(in_dims[1], 0)), 0


def first_pre_activation(net: Func, box: Box) -> Box | None:
    """Return the input of a network's first ReLU for a box, or None without a ReLU. The rest is not run."""
    result: Box | None = _run_watched(net, box, until_relu=True)
    return result


class _Reached(Exception):
    """Raised at a ReLU, with its input as the argument."""


def _run_watched(net: Func, box: Box, until_relu: bool = False) -> Any:
    """Return net(box), or the input of its first ReLU without running the rest. Other nonlinear operations raise."""

    def watch(func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if until_relu and func in RELUS:
            raise _Reached(args[0] if args else kwargs["input"])
        if func not in RELUS and getattr(RULES.get(func), "__name__", None) not in _EXACT_RULES.split():
            unsupported(f"{name_of(func)} is neither affine nor a ReLU", "cut the network before it to use a zonotope.")

    Rules.watchers.append(watch)
    try:
        output = net(box)
    except _Reached as reached:
        return reached.args[0]
    finally:
        Rules.watchers.remove(watch)
    return None if until_relu else output
