"""The rules of Box: for each torch operation, the smallest box that contains its results for all members of a box.

A rule is called as rule(func, *args, **kwargs) with the torch function, Tensor method or getter of a Tensor property.
Most operations are of one of these kinds:

    affine      conv, linear: c -> W c + b, r -> |W| r
    positive    averages, copies: linear with coefficients >= 0 and without bias, so r is mapped like c
    view        the same, and the result shares its elements with the box
    monotone    sigmoid, max_pool: [f(l), f(u)]
    turning     abs, prelu: monotone on each side of 0, so the extremes are among f(l), f(u) and, if l < 0 < u, f(0)
    metadata    shape, dtype: the same as for the center

The range of each element is exact for a single operation. IBP is loose because a box ignores the dependencies between
elements.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.bounds.box import RULES, Box, Operand, _between
from advibp.bounds.compiling import CompiledRelu, compiles_relus
from advibp.bounds.domain import Func, name_of, spellings, unsupported
from advibp.bounds.shrinking import shrink_factor

rule, unary = RULES.rule, RULES.unary


@unary("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d")
def affine(func: Func, input: Box, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any) -> Box:
    center = func(input.center, weight, bias, *args, **kwargs)
    return Box._of(center, func(input.radius, _abs(weight), None, *args, **kwargs))


def _abs(weight: Tensor) -> Tensor:
    """Return |W| in the memory format of W.

    For one input channel torch cannot distinguish channels_last from its default format. A radius with other strides
    than its center slows down every operation on both.
    """
    size = weight.abs()
    strides = zip(weight.shape, weight.stride(), size.stride(), strict=True)
    if size.stride() != weight.stride() and all(n == 1 or s == t for n, s, t in strides):
        return size.as_strided(size.shape, weight.stride())
    return size


@unary("", F.linear)
def linear(func: Func, input: Box, weight: Tensor, bias: Tensor | None = None) -> Box:
    """An affine layer. The output remembers its layer, so that margins can use it."""
    output = affine(func, input, weight, bias)
    if output.ndim == 2:
        output.remember(input, weight, bias)
    return output


@rule("matmul mm bmm mv")
def matmul(func: Func, input: Any, other: Any) -> Box:
    if isinstance(input, Box) and isinstance(other, Box):
        unsupported("a matrix product of two Boxes has no rule")
    if isinstance(input, Box):
        return Box._of(func(input.center, other), func(input.radius, other.abs()))
    return Box._of(func(input, other.center), func(input.abs(), other.radius))


@unary("", F.batch_norm)
def batch_norm(
    func: Func,
    input: Box,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Box:
    """BatchNorm in evaluation mode, with its running statistics. A set has no mean and variance of its own."""
    if training or running_mean is None or running_var is None:
        unsupported(
            "BatchNorm in training mode has no rule", "call net.eval() first, so that it uses its running statistics."
        )
    # Affine in each channel.
    scale = (running_var + eps).rsqrt() if weight is None else weight.abs() * (running_var + eps).rsqrt()
    center = F.batch_norm(input.center, running_mean, running_var, weight, bias, False, 0.0, eps)
    return Box._of(center, input.radius * scale.view(-1, *[1] * (input.ndim - 2)))


def _like(radius: Tensor, center: Tensor) -> Tensor:
    """Return the radius in the shape and dtype of the center, which a constant may have changed."""
    return radius.to(center.dtype).expand_as(center)


def _sum(input: Any, other: Any, alpha: float) -> Box:
    """Return input + alpha other."""
    if isinstance(input, Box) and isinstance(other, Box):
        center = torch.add(input.center, other.center, alpha=alpha)
        return Box._of(center, torch.add(input.radius, other.radius, alpha=abs(alpha)))
    if isinstance(input, Box):
        center = torch.add(input.center, other, alpha=alpha)
        return Box._of(center, _like(input.radius, center))
    center = torch.rsub(other.center, input, alpha=-alpha)  # rsub(a, b) = b - alpha a; b may be a number
    return Box._of(center, _like(other.radius if abs(alpha) == 1 else other.radius * abs(alpha), center))


@rule("add")
def add(func: Func, input: Operand, other: Operand, *, alpha: float = 1) -> Box:
    return _sum(input, other, alpha)


@rule("sub subtract")
def sub(func: Func, input: Operand, other: Operand, *, alpha: float = 1) -> Box:
    return _sum(input, other, -alpha)


@rule("rsub __rsub__")
def rsub(func: Func, input: Operand, other: Operand, *, alpha: float = 1) -> Box:
    return _sum(other, input, -alpha)


@unary("neg negative")
def neg(func: Func, input: Box) -> Box:
    return Box._of(-input.center, input.radius)


def _size(factor: Any) -> Any:
    """Return |factor|. torch has no abs of a Boolean mask."""
    return factor if isinstance(factor, Tensor) and factor.dtype == torch.bool else abs(factor)


@rule("mul multiply")
def mul(func: Func, input: Any, other: Any) -> Box:
    if isinstance(input, Box) and isinstance(other, Box):
        unsupported("a product of two Boxes has no rule")
    box, factor = (input, other) if isinstance(input, Box) else (other, input)
    center = box.center * factor
    return Box._of(center, _like(box.radius * _size(factor), center))


@rule("reciprocal __rtruediv__ __rdiv__")
def reciprocal(func: Func, *args: Any) -> NoReturn:
    unsupported("division by a Box has no rule")


@rule("div divide true_divide")
def div(func: Func, input: Any, other: Any, *, rounding_mode: str | None = None) -> Box:
    if isinstance(other, Box):
        reciprocal(func)
    if rounding_mode is not None:
        unsupported("division with a rounding mode has no rule for a Box")
    center = input.center / other
    return Box._of(center, _like(input.radius / _size(other), center))


POSITIVE = (
    "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d mean sum cumsum "
    "clone flip roll repeat tile index_select gather pixel_shuffle pixel_unshuffle channel_shuffle"
)


_DIVIDED = frozenset(spellings("avg_pool2d avg_pool3d"))


def _divisor(func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Return divisor_override of an average pooling: a keyword, or the sixth argument after the input."""
    return args[5] if func in _DIVIDED and len(args) > 5 else kwargs.get("divisor_override")


@unary(POSITIVE)
def positive(func: Func, input: Box, *args: Any, **kwargs: Any) -> Box:
    divisor = _divisor(func, args, kwargs)
    if divisor is not None and divisor <= 0:
        unsupported(f"{name_of(func)} with a negative divisor or 0 has no rule for a Box")
    center = func(input.center, *args, **kwargs)
    if not center.is_floating_point():
        unsupported(f"{name_of(func)} cannot turn a Box into {center.dtype}")
    return Box._of(center, func(input.radius, *args, **kwargs))


@unary("", F.pad)
def pad(func: Func, input: Box, pad: Any, mode: str = "constant", value: float | None = None) -> Box:
    """A constant border has radius 0. The other modes copy elements."""
    return Box._of(F.pad(input.center, pad, mode, value), F.pad(input.radius, pad, mode))


@unary("", F.interpolate)
def interpolate(func: Func, input: Box, *args: Any, **kwargs: Any) -> Box:
    if kwargs["mode"] == "bicubic":
        unsupported("bicubic interpolation has no rule for a Box, because its weights have both signs")
    return positive(func, input, *args, **kwargs)


@rule("cat concat concatenate stack hstack vstack dstack")
def join(func: Func, tensors: Any, *args: Any, **kwargs: Any) -> Box:
    if isinstance(tensors, Box):
        unsupported(f"{name_of(func)} needs a list or tuple of Boxes and tensors, not a Box")
    centers = [t.center if isinstance(t, Box) else t for t in tensors]
    radii = [t.radius if isinstance(t, Box) else torch.zeros_like(t) for t in tensors]
    return Box._of(func(centers, *args, **kwargs), func(radii, *args, **kwargs))


VIEWS = (
    "flatten reshape view permute transpose swapaxes swapdims movedim moveaxis squeeze unsqueeze contiguous chunk "
    "split tensor_split unbind expand narrow select unflatten t T mT detach data __getitem__"
)


@unary(VIEWS)
def view(func: Func, input: Box, *args: Any, **kwargs: Any) -> Any:
    """Change of shape or order, or selection by a constant. If torch makes a copy, treating it as a view is safe."""
    center, radius = func(input.center, *args, **kwargs), func(input.radius, *args, **kwargs)
    parts = [(center, radius)] if isinstance(center, Tensor) else list(zip(center, radius, strict=True))
    if any(c.dtype != input.dtype for c, _ in parts):
        unsupported(f"{name_of(func)} cannot read the bits of a Box as another type")
    views = tuple(input._view(c, r) for c, r in parts)
    return views[0] if isinstance(center, Tensor) else views


@unary("to float double half bfloat16 cpu cuda")
def to(func: Func, input: Box, *args: Any, **kwargs: Any) -> Box:
    center = func(input.center, *args, **kwargs)
    if not center.is_floating_point():
        unsupported(f"a Box cannot be converted to {center.dtype}")
    return input._view(center, func(input.radius, *args, **kwargs))


@unary("", F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)
def dropout(func: Func, input: Box, p: float = 0.5, training: bool = True) -> Box:
    if training and p > 0:
        unsupported(
            "dropout in training mode has no rule, because its mask is random",
            "put the Dropout layers in evaluation mode (layer.eval(), because net.eval() would also freeze BatchNorm), "
            "or leave out F.dropout.",
        )
    return input


class _Relu(torch.autograd.Function):
    """ReLU of [c - r, c + r] as center and radius.

    Let r' = (c + r)/2 clamped to [0, r] and c' = max(c, r'). Then

        c - r >= 0           (c + r)/2 >= r, so r' = r and c' = c: the box does not change
        c - r < 0 < c + r    0 < r' = (c + r)/2 < r and r' > c, so c' = r': the box [0, c + r]
        c + r <= 0           r' = 0 and c' = 0

    This takes three passes over memory, without cancellation: an active neuron keeps exactly the same c and r. Only the
    outputs are saved for the backward pass: c' > 0 if the upper bound is positive, and c' > r' if the lower bound is.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(center: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        half = torch.lerp(center, radius, 0.5).clamp_(center.new_zeros(()), radius)
        return torch.maximum(center, half), half

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx: Any, center_grad: Tensor, radius_grad: Tensor) -> tuple[Tensor, Tensor]:
        """An active neuron passes both gradients on. An unstable neuron has center and radius (c + r)/2, so it passes
        the mean of both gradients to c and to r. An inactive neuron passes zero. (torch.where takes five times as long
        on a CPU.)
        """
        center, radius = ctx.saved_tensors
        active = torch.gt(center.detach(), radius.detach(), out=torch.empty_like(center))  # 1 or 0
        crossing = torch.ops.aten.threshold_backward(torch.lerp(center_grad, radius_grad, 0.5), center, 0.0)
        return torch.lerp(crossing, center_grad, active), crossing.lerp_(radius_grad, active)


@unary("relu")
def relu(func: Func, input: Box) -> Box:
    with_gradient = CompiledRelu.apply if compiles_relus() else _Relu.apply
    run = with_gradient if torch.is_grad_enabled() else _Relu.forward
    center, radius = run(input.center, input.radius)
    if (factor := shrink_factor()) != 1:
        scale = torch.where(input.center < input.radius, factor, 1.0)  # l < 0: the output is [0, u], or 0
        return Box._of(center * scale, radius * scale)
    return Box._of(center, radius)


@unary(
    "sigmoid tanh relu6 hardtanh hardsigmoid logsigmoid softsign selu exp expm1 erf atan arctan amax amin "
    "clamp clip clamp_min clamp_max max_pool1d max_pool2d max_pool3d",
    *(F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d),  # torch's own return indices
)
def monotone(func: Func, input: Box, *args: Any, **kwargs: Any) -> Box:
    """f is nondecreasing in every element, so it maps bounds to bounds."""
    return _between(func(input.lower, *args, **kwargs), func(input.upper, *args, **kwargs))


@unary("elu celu")
def elu(func: Func, input: Box, alpha: float = 1.0) -> Box:
    if alpha <= 0:
        unsupported(f"{name_of(func)} has a rule only for alpha > 0, not {alpha}")
    return monotone(func, input, alpha)


@unary("softplus")
def softplus(func: Func, input: Box, beta: float = 1.0, threshold: float = 20.0) -> Box:
    """Above threshold / beta torch returns z itself: a step of exp(-threshold) / beta, negligible from 20 on."""
    if beta <= 0 or threshold < 20:
        unsupported("softplus has a rule only for beta > 0 and threshold >= 20, where it is monotone")
    return monotone(func, input, beta, threshold)


@unary("abs absolute square prelu")
def turning(func: Func, input: Box, *args: Any, **kwargs: Any) -> Box:
    """The minimum and maximum are among the values at both ends and at the member nearest to 0."""
    lower, upper = input.lower, input.upper
    nearest = lower.clamp(min=0) + upper.clamp(max=0)  # the member of the box nearest to 0
    values = [func(z, *args, **kwargs) for z in (lower, nearest, upper)]
    return _between(
        torch.minimum(torch.minimum(*values[:2]), values[2]), torch.maximum(torch.maximum(*values[:2]), values[2])
    )


@unary("leaky_relu")
def leaky_relu(func: Func, input: Box, negative_slope: float = 0.01) -> Box:
    return (monotone if negative_slope >= 0 else turning)(func, input, negative_slope)


@rule(" ".join(f"{kind}max_pool{dims}d_with_indices" for dims in "123" for kind in ("", "adaptive_")))
def with_indices(func: Func, *args: Any, **kwargs: Any) -> NoReturn:
    unsupported(
        f"{name_of(func)}: return_indices is undefined for a Box, because the index of the largest element varies"
    )


METADATA = (
    "size dim ndimension numel nelement stride is_floating_point is_complex is_contiguous element_size itemsize nbytes "
    "get_device is_cuda is_cpu is_mps is_xpu is_meta layout is_sparse is_quantized is_nested "
    "zeros_like ones_like full_like new_zeros new_ones new_full new_tensor"
)


@unary(METADATA)
def metadata(func: Func, input: Box, *args: Any, **kwargs: Any) -> Any:
    """Functions of shape, dtype and device. The result is a constant."""
    return func(input.center, *args, **kwargs)


RULES.in_place(VIEWS)
