"""A network evaluated in a chosen order of summation, with or without fused multiply-add.

`with InOrder(order): net(x)` computes every sum of products (linear layers, convolutions, pooling, BatchNorm, sums and
means) in the network's own type, one rounded operation after the other, in that order. All else is left to torch. Any
such evaluation is one that IEEE 754 hardware may make; none of them is more right than another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

#: Numbers that a step may hold at once.
_ROOM = 2**24


@dataclass(frozen=True)
class Order:
    """How a sum of n products is taken.

    Attributes:
        reverse: from the last term to the first.
        shuffle: seed of a random permutation of the terms; None keeps them.
        lanes: so many partial sums that take turns, as SIMD registers do; 0 is one per term, i.e. a tree.
        block: contiguous blocks of so many terms have a partial sum each; 0 for none.
        tree: partial sums are added pairwise, else one after the other.
        fma: products are not rounded before they are added.
        bias_last: the bias is added to the sum, instead of being its first term.
        flush: numbers below 2^-126 become 0.
    """

    reverse: bool = False
    shuffle: int | None = None
    lanes: int = 1
    block: int = 0
    tree: bool = True
    fma: bool = False
    bias_last: bool = False
    flush: bool = False

    def terms(self, n: int) -> Tensor:
        """Return the permutation (n,) of the terms."""
        terms = torch.arange(n)
        if self.shuffle is not None:
            terms = torch.randperm(n, generator=torch.Generator().manual_seed(self.shuffle))
        return terms.flip(0) if self.reverse else terms


SEQUENTIAL = Order()
ORDERS = {
    "sequential": SEQUENTIAL,
    "reversed": Order(reverse=True, bias_last=True),
    "pairwise": Order(lanes=0),
    "random": Order(shuffle=1),
    "blocked": Order(block=32, bias_last=True),
}
#: The same with fused multiply-add, and more of them.
MORE = {
    "sequential fma": Order(fma=True),
    "random fma": Order(shuffle=2, fma=True, bias_last=True),
    "eight lanes": Order(lanes=8),
    "eight lanes fma": Order(lanes=8, fma=True, bias_last=True),
    "random 2": Order(shuffle=3, reverse=True, lanes=4, tree=False),
}


def random_order(seed: int) -> Order:
    """Return a random order."""
    dice = torch.Generator().manual_seed(seed)
    coin = lambda n: int(torch.randint(n, (), generator=dice))  # noqa: E731
    shuffle = seed if coin(3) else None
    lanes, block = [(1, 0), (0, 0), (8, 0), (3, 0), (1, 16), (1, 5)][coin(6)]
    return Order(bool(coin(2)), shuffle, lanes, block, bool(coin(2)), bool(coin(2)), bool(coin(2)))


def dot(a: Tensor, b: Tensor | None, bias: Tensor | None, order: Order) -> Tensor:
    """sum_k a_k b_k + bias over the first dimension of a (n, ...) and b (n, ...), which broadcast.

    Without b the sum of a. Every product and every sum is rounded to the type of a.
    """
    n = len(a)
    shape = torch.broadcast_shapes(a.shape[1:], b.shape[1:] if b is not None else ())
    count = max(math.prod(shape), 1)
    lanes = n if order.lanes == 0 else math.ceil(n / order.block) if order.block else order.lanes
    lanes = max(1, min(lanes, n))
    along = next((d for d, size in enumerate(shape) if size > 1), None)
    if lanes * count > _ROOM and along is not None:  # some at a time
        pieces = min(shape[along], math.ceil(lanes * count / _ROOM))

        def part(t: Tensor | None, lead: int, piece: Tensor) -> Tensor | None:
            """Of a dimension counted from the end, if t has it."""
            if t is None or t.dim() - lead < len(shape) - along:
                return t
            d = t.dim() - (len(shape) - along)
            return t if t.shape[d] == 1 else t.index_select(d, piece)

        chunks = torch.arange(shape[along]).tensor_split(pieces)
        sums = [dot(_sure(part(a, 1, piece)), part(b, 1, piece), part(bias, 0, piece), order) for piece in chunks]
        return torch.cat(sums, along)
    steps = math.ceil(n / lanes)
    terms = torch.cat([order.terms(n), torch.full((steps * lanes - n,), -1)])  # -1: no term
    if order.block:
        terms = terms.view(lanes, steps).T.flatten()
    fused = order.fma and b is not None and a.dtype == torch.float32
    left = a.index_select(0, terms.clamp(min=0))
    left[terms < 0] = 0
    left = (left.double() if fused else left).unflatten(0, (steps, lanes))
    total = a.new_zeros(lanes, *shape)
    if bias is not None and not order.bias_last:
        total[0] += bias
    if b is None:
        for term in left:
            total = _flushed(total + term, order)
    else:
        right = b.index_select(0, terms.clamp(min=0))
        right = (right.double() if fused else right).unflatten(0, (steps, lanes))
        for x, w in zip(left, right, strict=True):
            if fused:
                # The product of two float32 numbers is exact in float64; the sum is rounded twice, which differs from
                # a fused operation only next to ties.
                total = _flushed(torch.addcmul(total.double(), x, w).float(), order)
            else:
                total = _flushed(total.add_(_flushed(x * w, order)), order)
    while len(total) > 1:
        if order.tree:
            half, odd = divmod(len(total), 2)
            total = torch.cat([_flushed(total[:half] + total[half : 2 * half], order), total[2 * half :][:odd]])
        else:
            total = torch.cat([_flushed(total[:1] + total[1:2], order), total[2:]])
    result = total[0]
    return _flushed(result + bias, order) if bias is not None and order.bias_last else result


def _sure(t: Tensor | None) -> Tensor:
    assert t is not None
    return t


def _flushed(t: Tensor, order: Order) -> Tensor:
    return torch.where(t.abs() < torch.finfo(t.dtype).tiny, torch.zeros((), dtype=t.dtype), t) if order.flush else t


class InOrder(TorchFunctionMode):
    """Computes sums in an order, in the type of their terms."""

    def __init__(self, order: Order) -> None:
        super().__init__()
        self.order = order

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        rule = RULES.get(func)
        if rule is None:
            return func(*args, **(kwargs or {}))
        return rule(self.order, *args, **(kwargs or {}))


def _linear(order: Order, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return dot(x.movedim(-1, 0)[..., None], weight.T.reshape(-1, *[1] * (x.dim() - 1), len(weight)), bias, order)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _conv2d(
    order: Order,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    assert not isinstance(padding, str)
    kernel = _pair(weight.shape[2:])
    size = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(x.shape[2:], kernel, _pair(stride), _pair(padding), _pair(dilation), strict=True)
    ]
    columns = F.unfold(x, kernel, _pair(dilation), _pair(padding), _pair(stride))  # (B, C k k, L)
    columns = columns.unflatten(1, (groups, -1)).permute(2, 0, 1, 3)[:, :, :, None]  # (n, B, G, 1, L)
    filters = weight.flatten(1).unflatten(0, (groups, -1)).permute(2, 0, 1)[:, None, ..., None]  # (n, 1, G, M, 1)
    shift = None if bias is None else bias.view(1, groups, -1, 1)
    return dot(columns, filters, shift, order).flatten(1, 2).unflatten(2, size)


def _conv_transpose2d(
    order: Order,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """A convolution with the flipped filters, after zeros were inserted between the pixels."""
    (sh, sw), (ph, pw), (oh, ow), (dh, dw) = map(_pair, (stride, padding, output_padding, dilation))
    spread = x.new_zeros(*x.shape[:2], (x.shape[2] - 1) * sh + 1, (x.shape[3] - 1) * sw + 1)
    spread[:, :, ::sh, ::sw] = x
    kh, kw = weight.shape[2:]
    top, left = dh * (kh - 1) - ph, dw * (kw - 1) - pw
    spread = F.pad(spread, (left, left + ow, top, top + oh))
    filters = weight.flip(2, 3).unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    return _conv2d(order, spread, filters, bias, 1, 0, dilation, groups)


def _batch_norm(
    order: Order,
    x: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """BatchNorm in evaluation mode: by its formula, or as a factor and a shift, like torch."""
    assert not training
    assert mean is not None
    assert var is not None
    each = lambda t: t.view(-1, *[1] * (x.dim() - 2))  # noqa: E731
    inverse = 1 / (var + eps).sqrt()
    weight = torch.ones_like(mean) if weight is None else weight
    bias = torch.zeros_like(mean) if bias is None else bias
    if order.reverse:
        return (x - each(mean)) * each(inverse) * each(weight) + each(bias)
    if order.bias_last:
        return (x - each(mean)) * each(inverse * weight) + each(bias)
    factor = inverse * weight
    shift = bias - mean * factor
    return dot(x[None], each(factor)[None], each(shift), replace(order, bias_last=False))


def _avg_pool2d(
    order: Order,
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    kernel = _pair(kernel_size)
    stride = kernel if stride is None or stride == [] else _pair(stride)
    size = F.avg_pool2d(x, kernel, stride, padding, ceil_mode).shape[2:]
    count = F.avg_pool2d(
        torch.ones_like(x[:1, :1]), kernel, stride, padding, ceil_mode, count_include_pad, divisor_override=1
    )
    assert not ceil_mode
    columns = F.unfold(x.flatten(0, 1)[:, None], kernel, 1, _pair(padding), stride)  # (B C, k k, L)
    total = dot(columns.movedim(1, 0), None, None, order).view(*x.shape[:2], *size)
    divisor = divisor_override or (math.prod(kernel) if count_include_pad else count)
    return total * (1 / torch.as_tensor(divisor, dtype=x.dtype)) if order.reverse else total / divisor


def _adaptive_avg_pool2d(order: Order, x: Tensor, output_size: Any) -> Tensor:
    size = [n if s is None else s for n, s in zip(x.shape[2:], _pair(output_size), strict=True)]
    rows = []
    for i in range(size[0]):
        top, bottom = i * x.shape[2] // size[0], -(-(i + 1) * x.shape[2] // size[0])
        row = []
        for j in range(size[1]):
            left, right = j * x.shape[3] // size[1], -(-(j + 1) * x.shape[3] // size[1])
            row.append(_mean(order, x[:, :, top:bottom, left:right], (2, 3)))
        rows.append(torch.stack(row, -1))
    return torch.stack(rows, -2)


def _sum(order: Order, x: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    dims = [d % x.dim() for d in (range(x.dim()) if dim is None else [dim] if isinstance(dim, int) else dim)]
    terms = x.permute(*dims, *(d for d in range(x.dim()) if d not in dims)).flatten(0, len(dims) - 1)
    total = dot(terms, None, None, order)
    return total.view([1 if d in dims else n for d, n in enumerate(x.shape)]) if keepdim else total


def _mean(order: Order, x: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    total = _sum(order, x, dim, keepdim)
    count = x.numel() / total.numel()
    return total * (1 / torch.tensor(count, dtype=x.dtype)) if order.reverse else total / count


def _matmul(order: Order, a: Tensor, b: Tensor) -> Tensor:
    if a.dim() < 2 or b.dim() != 2:
        return torch.matmul(a, b)
    return _linear(order, a, b.T)


RULES: dict[Any, Callable[..., Tensor]] = {
    F.linear: _linear,
    torch._C._nn.linear: _linear,
    torch.conv2d: _conv2d,
    torch.conv_transpose2d: _conv_transpose2d,
    F.batch_norm: _batch_norm,
    F.avg_pool2d: _avg_pool2d,
    torch._C._nn.avg_pool2d: _avg_pool2d,
    F.adaptive_avg_pool2d: _adaptive_avg_pool2d,
    torch.Tensor.sum: _sum,
    torch.sum: _sum,
    torch.Tensor.mean: _mean,
    torch.mean: _mean,
    torch.matmul: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.Tensor.__matmul__: _matmul,
}


@torch.no_grad()
def outputs(net: nn.Module, x: Tensor, order: Order, batch: int = 500) -> Tensor:
    """Return the network's outputs (B, K) in an order."""
    with threads(1), InOrder(order):
        return torch.cat([net(part.clone()) for part in x.split(batch)])


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def by_torch(net: nn.Module, x: Tensor, *, count: int = 1, channels_last: bool = False, batch: int = 500) -> Tensor:
    """Return torch's outputs with `count` threads, or in another memory format."""
    if channels_last and x.dim() == 4:
        net, x = net.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    try:
        with threads(count):
            return torch.cat([net(part.clone()) for part in x.split(batch)])
    finally:
        if channels_last:
            net.to(memory_format=torch.contiguous_format)


def evaluations(
    net: nn.Module, double: nn.Module, x: Tensor, names: Iterable[str] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Outputs (B, K) of float32 points: in 8 orders, in more with fused multiply-add, and in float64."""
    ways: dict[str, Callable[[], Tensor]] = {
        **{name: lambda order=order: outputs(net, x, order) for name, order in ORDERS.items()},  # type: ignore[misc]
        "channels_last": lambda: by_torch(net, x, channels_last=True),
        "one thread": lambda: by_torch(net, x),
        "two threads": lambda: by_torch(net, x, count=2),
        **{name: lambda order=order: outputs(net, x, order) for name, order in MORE.items()},  # type: ignore[misc]
        "float64": lambda: by_torch(double, x.double()),
    }
    for name, way in ways.items():
        if names is None or name in names:
            yield name, way()


def exactly_within(x_adv: Tensor, x: Tensor, eps: Tensor) -> Tensor:
    """Where |x_adv - x| <= eps holds for the real numbers that these floating-point numbers are.

    The difference d is rounded to float64; what was rounded away, e, is computed without error (Knuth). As eps is a
    float64 number too, d + e <= eps holds exactly if d < eps, or d = eps and e <= 0.
    """
    a, b, eps = x_adv.double(), x.double(), eps.double()
    inside = torch.ones(torch.broadcast_shapes(a.shape, b.shape, eps.shape), dtype=torch.bool)
    for p, q in ((a, b), (b, a)):
        d = p - q
        t = d - p
        e = (p - (d - t)) - (q + t)
        inside &= (d < eps) | ((d == eps) & (e <= 0))
    return inside


def into_ball(points: Tensor, x: Tensor, eps: Tensor) -> Tensor:
    """The float32 numbers of the ball within [0, 1] that are nearest to some points (..., *x.shape)."""
    near = torch.minimum(torch.maximum(points.double(), x.double() - eps), x.double() + eps).clamp(0, 1).to(x.dtype)
    for _ in range(4):
        outside = ~exactly_within(near, x, eps)
        if not bool(outside.any()):
            break
        near = torch.where(outside, near.nextafter(x.expand_as(near)), near)
    assert bool(exactly_within(near, x, eps).all())
    assert bool(((near >= 0) & (near <= 1)).all())
    return near
