"""Build an ``nn.Sequential`` from a text."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from advibp.errors import UserError
from advibp.execution.keywords import known_keywords
from advibp.nets.initialization import Init, ibp_init
from advibp.nets.layers import Normalize, Residual
from advibp.nets.structures import FC, Conv, Layer, Res, parse

#: Layers with more weights are rejected: a typo could otherwise allocate tens of gigabytes.
MAX_LAYER_WEIGHTS = 2**31


@known_keywords
def build(
    spec: str,
    input_shape: Sequence[int] = (1, 28, 28),
    classes: int = 10,
    *,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    init: Init = "ibp",
    seed: int | None = None,
) -> nn.Sequential:
    """Build the network ``spec``.

    Args:
        spec: a name such as ``"dm-small"`` (see `STRUCTURES`) or a text such as ``"Conv 16 4x4+2, FC 100"`` (see
            `parse`).
        input_shape: shape of one image, (C, H, W). Default: (1, 28, 28).
        classes: number of classes, at least 2. Default: 10.
        mean: mean of the pixels, one number or one per channel. With ``mean`` or ``std`` the first layer is
            `Normalize`.
        std: standard deviation of the pixels, one number or one per channel.
        init: initial weights, ``"ibp"`` (see `ibp_init`, the default) or ``"default"`` (torch's).
        seed: seed of the initial weights. With a seed, torch's global random state does not change. Default: None, draw
            from the global random state.

    Returns:
        A network (B, C, H, W) -> logits (B, classes).

    Raises:
        UserError: if ``spec`` cannot be read or does not fit ``input_shape``.

    Examples:
        >>> import torch
        >>> from advibp import nets
        >>> net = nets.build("Conv 4 4x4+2, FC 20", input_shape=(1, 28, 28), classes=10, seed=0)
        >>> net(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    layers = parse(spec)
    shape = checked_shape(input_shape)
    if not _is_count(classes) or classes < 2:
        raise UserError(f"A classifier needs at least 2 classes, not {classes!r}.")
    if init not in ("default", "ibp"):
        raise UserError(f"Unknown init {init!r}; use 'default' or 'ibp'.")
    if seed is None:
        net = _assemble(layers, shape, classes, mean, std, init)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = _assemble(layers, shape, classes, mean, std, init)
    net.__dict__["built_from"] = spec  # not a parameter, buffer or module
    return net


def spec_of(net: nn.Module, input_shape: Sequence[int], classes: int) -> tuple[str, bool] | None:
    """Return the text from which `build` makes a network of the same structure.

    Args:
        net: any network.
        input_shape: shape of one image.
        classes: number of classes.

    Returns:
        The text, and whether the first layer is `Normalize`; None if `build` has not built the network, or if its
        layers have changed.

    Examples:
        >>> from torch import nn
        >>> from advibp import nets
        >>> net = nets.build("FC 20", (1, 4, 4), 3)
        >>> nets.spec_of(net, (1, 4, 4), 3), nets.spec_of(net.append(nn.Tanh()), (1, 4, 4), 3)
        (('FC 20', False), None)
    """
    spec = getattr(net, "built_from", None)
    if not isinstance(spec, str) or type(net) is not nn.Sequential:
        return None
    normalized = isinstance(net[0], Normalize)
    mean, std = ([0.0] * input_shape[0], [1.0] * input_shape[0]) if normalized else (None, None)
    try:
        like = build(spec, input_shape, classes, mean=mean, std=std, init="default", seed=0)
    except UserError:
        return None
    shapes = [{name: value.shape for name, value in module.state_dict().items()} for module in (net, like)]
    changed = any("forward" in vars(m) or m._forward_hooks or m._forward_pre_hooks for m in net.modules())
    layers = [repr(module[1:] if normalized else module) for module in (net, like)]
    return None if changed or layers[0] != layers[1] or shapes[0] != shapes[1] else (spec, normalized)


def checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape as a tuple of positive sizes, or raise."""
    sizes = tuple(shape) if isinstance(shape, Sequence) else ()
    if not sizes or not all(_is_count(size) for size in sizes):
        raise UserError(f"input_shape must be positive sizes such as (1, 28, 28), not {shape!r}.")
    return sizes


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _assemble(
    layers: Sequence[Layer],
    shape: tuple[int, ...],
    classes: int,
    mean: float | Sequence[float] | None,
    std: float | Sequence[float] | None,
    init: Init,
) -> nn.Sequential:
    """Build the modules of all layers and of the implied last one."""
    modules: list[nn.Module] = []
    if mean is not None or std is not None:
        modules.append(_normalize(0.0 if mean is None else mean, 1.0 if std is None else std, shape))
    flat = False
    for layer in (*layers, FC(classes)):
        if isinstance(layer, FC) and not flat:
            modules.append(nn.Flatten())
            flat = True
        new_modules, shape = _modules_of(layer, shape)
        modules += new_modules
    net = nn.Sequential(*modules[:-1])  # no ReLU after the last layer
    if init == "ibp":
        ibp_init(net)
    return net


def _modules_of(layer: Layer, shape: tuple[int, ...]) -> tuple[list[nn.Module], tuple[int, ...]]:
    """Return the modules of one layer, and the shape of their output."""
    match layer:
        case Conv():
            shape, module = _output_shape(layer, shape), _conv(layer, shape)
            return [module, *([nn.BatchNorm2d(layer.filters)] if layer.batchnorm else []), nn.ReLU()], shape
        case Res():
            return [_residual(layer, shape)], (layer.filters, *(-(-size // layer.stride) for size in shape[1:]))
        case FC():
            dense = _linear(layer, math.prod(shape))
            return [dense, *([nn.BatchNorm1d(layer.outputs)] if layer.batchnorm else []), nn.ReLU()], (layer.outputs,)


def _conv(layer: Conv, shape: tuple[int, ...]) -> nn.Conv2d:
    _check_size(layer, layer.filters * shape[0] * layer.height * layer.width)
    return nn.Conv2d(shape[0], layer.filters, (layer.height, layer.width), layer.stride, layer.padding)


def _output_shape(layer: Conv, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the shape of the convolution's output. Raise if the kernel does not fit."""
    _check_image(layer, shape)
    rows, columns = (size + 2 * layer.padding for size in shape[1:])
    if layer.height > rows or layer.width > columns:
        raise UserError(
            f"The {layer.width}x{layer.height} kernel of '{layer}' does not fit its {columns}x{rows} input; "
            "use a smaller kernel, smaller strides before it, or larger images."
        )
    return layer.filters, (rows - layer.height) // layer.stride + 1, (columns - layer.width) // layer.stride + 1


def _residual(layer: Res, shape: tuple[int, ...]) -> Residual:
    _check_image(layer, shape)
    _check_size(layer, layer.filters * max(shape[0], layer.filters) * 9)
    return Residual(shape[0], layer.filters, layer.stride, batchnorm=layer.batchnorm)


def _linear(layer: FC, inputs: int) -> nn.Linear:
    _check_size(layer, inputs * layer.outputs)
    return nn.Linear(inputs, layer.outputs)


def _check_image(layer: Layer, shape: tuple[int, ...]) -> None:
    if len(shape) != 3:
        raise UserError(f"'{layer}' needs images of shape (channels, height, width), not {shape}; use FC layers only.")


def _check_size(layer: Layer, weights: int) -> None:
    if weights > MAX_LAYER_WEIGHTS:
        raise UserError(f"'{layer}' would have {weights:.1e} weights, more than {MAX_LAYER_WEIGHTS}; make it smaller.")


def _normalize(mean: float | Sequence[float], std: float | Sequence[float], shape: tuple[int, ...]) -> Normalize:
    layer = Normalize(mean, std, len(shape))
    for name, values in layer.named_buffers():
        if values.numel() not in (1, shape[0]):
            raise UserError(
                f"{name} has {values.numel()} values for {shape[0]} channels; give one, or one per channel."
            )
    return layer
