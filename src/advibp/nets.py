"""Networks in the paper's own words: ``"Conv 16 4x4+2, Conv 32 4x4+1, FC 100"`` becomes a plain ``nn.Sequential``.

``Conv k WxH+s`` is a convolution with ``k`` filters of width ``W`` and height ``H``, stride ``s`` and no padding;
``FC n`` is a fully connected layer with ``n`` outputs. A ReLU follows each of them. The last fully connected layer,
one output per class, is implied.
"""

from __future__ import annotations

import difflib
import importlib.util
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from advibp.errors import UserError

Init = Literal["default", "ibp"]

# The paper's structures: three for MNIST and CIFAR-10, three larger ones, and the ten small ones A to J.
STRUCTURES: dict[str, str] = {
    "dm-small": "Conv 16 4x4+2, Conv 32 4x4+1, FC 100",
    "dm-medium": "Conv 32 3x3+1, Conv 32 4x4+2, Conv 64 3x3+1, Conv 64 4x4+2, FC 512, FC 512",
    "dm-large": "Conv 64 3x3+1, Conv 64 3x3+1, Conv 128 3x3+2, Conv 128 3x3+1, Conv 128 3x3+1, FC 512",
    "cnn-small": "Conv 16 3x3+2, Conv 32 3x3+1, FC 512",
    "cnn-medium": "Conv 32 3x3+2, Conv 64 3x3+1, Conv 128 3x3+1, Conv 256 3x3+1, FC 512, FC 512",
    "cnn-large": "Conv 64 3x3+2, Conv 64 3x3+1, Conv 128 3x3+1, Conv 256 3x3+1, Conv 256 3x3+1, FC 512",
    "a": "Conv 8 3x3+2, Conv 16 3x3+1, FC 100",
    "b": "Conv 16 3x3+2, Conv 32 3x3+1, FC 100",
    "c": "Conv 32 3x3+2, Conv 64 3x3+1, FC 100",
    "d": "Conv 8 4x4+2, Conv 16 4x4+1, FC 512",
    "e": "Conv 16 4x4+2, Conv 32 4x4+1, FC 512",
    "f": "Conv 32 4x4+2, Conv 64 4x4+1, FC 512",
    "g": "Conv 8 3x3+2, Conv 16 3x3+1, Conv 32 3x3+1, Conv 64 3x3+1, FC 512",
    "h": "Conv 16 3x3+2, Conv 32 3x3+1, Conv 64 3x3+1, Conv 128 3x3+1, FC 512",
    "i": "Conv 8 3x3+1, Conv 8 4x4+2, Conv 16 3x3+1, Conv 16 4x4+2, FC 512",
    "j": "Conv 16 3x3+1, Conv 16 4x4+2, Conv 32 3x3+1, Conv 32 4x4+2, FC 512",
}

# Beyond this a typing slip would ask for tens of gigabytes before anyone could say what was wrong.
MAX_LAYER_WEIGHTS = 2**31

_CONV = re.compile(r"conv\s+(\d+)\s+(\d+)\s*[x×]\s*(\d+)\s*\+\s*(\d+)", re.IGNORECASE | re.ASCII)
_FC = re.compile(r"fc\s+(\d+)", re.IGNORECASE | re.ASCII)
_LOOKS_LIKE_GRAMMAR = re.compile(r"\s*(conv|fc)\b|.*,", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Conv:
    """``Conv filters WxH+stride``, no padding."""

    filters: int
    width: int
    height: int
    stride: int

    def __str__(self) -> str:
        return f"Conv {self.filters} {self.width}x{self.height}+{self.stride}"


@dataclass(frozen=True)
class FC:
    """``FC outputs``."""

    outputs: int

    def __str__(self) -> str:
        return f"FC {self.outputs}"


class Normalize(nn.Module):
    """``(x - mean) / std`` per channel, inside the network: eps is then always in pixels of [0, 1]."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float], dims: int = 3) -> None:
        super().__init__()
        self.register_buffer("mean", _per_channel("mean", mean, dims))
        self.register_buffer("std", _per_channel("std", std, dims))
        if not bool((self.std > 0).all()):
            raise UserError(f"std is {std}, but every channel needs a positive one; give 1 for a constant channel.")

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        return (x - self.mean) / self.std

    def extra_repr(self) -> str:
        return f"mean={self.mean.flatten().tolist()}, std={self.std.flatten().tolist()}"


class Row(NamedTuple):
    """One line of `summary`."""

    layer: str
    shape: tuple[int, ...]
    parameters: int


def parse(spec: str) -> list[Conv | FC]:
    """A structure's name or a text in the paper's grammar, as layers; the implied last layer is not among them."""
    text = grammar(spec)
    layers: list[Conv | FC] = []
    for part in text.split(","):
        layer = _parse_layer(part.strip(), text)
        if isinstance(layer, Conv) and layers and isinstance(layers[-1], FC):
            raise UserError(f"'{layer}' follows '{layers[-1]}' in '{text}'; put every Conv before the first FC.")
        layers.append(layer)
    return layers


def grammar(spec: str) -> str:
    """The grammar text that ``spec`` stands for: a name's entry in `STRUCTURES`, or ``spec`` itself."""
    if not isinstance(spec, str):
        raise UserError(f"A network is given by a text such as 'dm-small' or 'Conv 16 4x4+2, FC 100', not {spec!r}.")
    name = spec.strip().lower()
    if name in STRUCTURES:
        return STRUCTURES[name]
    if _LOOKS_LIKE_GRAMMAR.match(spec):
        return spec
    close = difflib.get_close_matches(name, STRUCTURES, n=1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    raise UserError(
        f"Unknown network '{spec}': {hint}Use one of {', '.join(STRUCTURES)}, "
        "or a structure such as 'Conv 16 4x4+2, Conv 32 4x4+1, FC 100'."
    )


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
    """The network ``spec`` for images of ``input_shape`` (C, H, W): (B, C, H, W) -> (B, classes).

    With ``mean`` or ``std`` its first layer is `Normalize`. ``seed`` fixes the initial weights and leaves torch's
    global random state as it was.
    """
    layers = parse(spec)
    shape = _checked_shape(input_shape)
    if not _is_count(classes) or classes < 2:
        raise UserError(f"A classifier needs at least 2 classes, not {classes!r}.")
    if init not in ("default", "ibp"):
        raise UserError(f"Unknown init {init!r}; use 'default' or 'ibp'.")
    if seed is None:
        return _assemble(layers, shape, classes, mean, std, init)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _assemble(layers, shape, classes, mean, std, init)


def ibp_init(net: nn.Module) -> nn.Module:
    """Initial weights under which boxes neither explode nor vanish (Shi et al. 2021); changes ``net`` in place.

    Weights ~ N(0, sqrt(2 pi) / fan_in) and zero biases, in every convolution and linear layer but the last: an affine
    layer then keeps the expected width of a box that a ReLU halves. The last keeps the initial weights it has.
    """
    layers = [m for m in net.modules() if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    for layer in layers[:-1]:
        fan_in = layer.weight[0].numel()
        nn.init.normal_(layer.weight, std=math.sqrt(2 * math.pi) / fan_in)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return net


def summary(net: nn.Module, input_shape: Sequence[int] = (1, 28, 28)) -> list[Row]:
    """One row per layer that ``net`` calls, in the order of the calls; shapes are without the batch."""
    rows: list[Row] = []

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        shape = tuple(output.shape[1:]) if isinstance(output, Tensor) else ()
        rows.append(Row(describe(module), shape, sum(p.numel() for p in module.parameters())))

    hooks = [m.register_forward_hook(note) for m in net.modules() if not list(m.children())]
    modes = [(m, m.training) for m in net.modules()]
    like = next(net.parameters(), torch.empty(0))
    try:
        with torch.no_grad():  # eval: a dry run must not touch BatchNorm's statistics
            net.eval()(torch.zeros(1, *_checked_shape(input_shape), dtype=like.dtype, device=like.device))
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes:
            module.training = mode
    return rows


def describe(layer: nn.Module) -> str:
    """A layer in the paper's words where they have one."""
    if isinstance(layer, nn.Linear):
        return f"FC {layer.out_features}"
    if isinstance(layer, nn.Conv2d):
        height, width = layer.kernel_size
        text = str(Conv(layer.out_channels, width, height, layer.stride[0]))
        return text if layer.padding in ((0, 0), "valid") else f"{text} padding {layer.padding}"
    return type(layer).__name__


def _parse_layer(part: str, text: str) -> Conv | FC:
    if match := _CONV.fullmatch(part):
        layer: Conv | FC = Conv(*map(_number, match.groups()))
    elif match := _FC.fullmatch(part):
        layer = FC(_number(match[1]))
    else:
        raise UserError(
            f"Cannot read layer '{part}' in '{text}'; write each layer as 'Conv 16 4x4+2' "
            "(filters, width x height, + stride) or 'FC 100', separated by commas."
        )
    if 0 in vars(layer).values():
        raise UserError(f"Layer '{part}' in '{text}' has a zero in it; every number must be at least 1.")
    return layer


def _number(digits: str) -> int:
    # Anything this long is refused later by its size; the cut keeps int() within Python's limit on digits.
    return int(digits) if len(digits) < 19 else 10**18


def _assemble(
    layers: Sequence[Conv | FC],
    shape: tuple[int, ...],
    classes: int,
    mean: float | Sequence[float] | None,
    std: float | Sequence[float] | None,
    init: Init,
) -> nn.Sequential:
    modules: list[nn.Module] = []
    if mean is not None or std is not None:
        modules.append(_normalize(0.0 if mean is None else mean, 1.0 if std is None else std, shape))
    flat = False
    for layer in (*layers, FC(classes)):
        if isinstance(layer, Conv):
            modules += [_conv(layer, shape), nn.ReLU()]
            shape = _after(layer, shape)
            continue
        if not flat:
            modules.append(nn.Flatten())
            flat = True
        modules += [_linear(layer, math.prod(shape)), nn.ReLU()]
        shape = (layer.outputs,)
    net = nn.Sequential(*modules[:-1])  # no ReLU after the classes
    if init == "ibp":
        ibp_init(net)
    return net


def _conv(layer: Conv, shape: tuple[int, ...]) -> nn.Conv2d:
    if len(shape) != 3:
        raise UserError(f"'{layer}' needs images of shape (channels, height, width), not {shape}; use FC layers alone.")
    channels, height, width = shape
    if layer.height > height or layer.width > width:
        raise UserError(
            f"The {layer.width}x{layer.height} kernel of '{layer}' does not fit its {width}x{height} input; "
            "use a smaller kernel, smaller strides before it, or larger images."
        )
    _check_size(str(layer), layer.filters * channels * layer.height * layer.width)
    return nn.Conv2d(channels, layer.filters, (layer.height, layer.width), layer.stride)


def _after(layer: Conv, shape: tuple[int, ...]) -> tuple[int, int, int]:
    _, height, width = shape
    return layer.filters, (height - layer.height) // layer.stride + 1, (width - layer.width) // layer.stride + 1


def _linear(layer: FC, inputs: int) -> nn.Linear:
    _check_size(str(layer), inputs * layer.outputs)
    return nn.Linear(inputs, layer.outputs)


def _check_size(layer: str, weights: int) -> None:
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


def _per_channel(name: str, values: float | Sequence[float], dims: int) -> Tensor:
    """(C, 1, 1) for images; a single number becomes one channel that broadcasts."""
    try:
        channels = torch.as_tensor(values, dtype=torch.float32).reshape(-1)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{name} must be a number or one number per channel, not {values!r}.") from error
    if channels.numel() == 0 or not bool(channels.isfinite().all()):
        raise UserError(f"{name} must be finite numbers, one or one per channel, not {values!r}.")
    return channels.clone().reshape(-1, *[1] * (dims - 1))


def _checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, Sequence) else ()
    if not sizes or not all(_is_count(size) for size in sizes):
        raise UserError(f"input_shape must be positive sizes such as (1, 28, 28), not {shape!r}.")
    return sizes


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def from_file(spec: str) -> nn.Module:
    """`path/to/file.py:function` -> what the function, called without arguments, returns: a network of one's own.

    This runs the file; only ever call it with what the user typed, never with a name read from a run's folder.
    """
    path, _, function = spec.rpartition(":")
    module_spec = importlib.util.spec_from_file_location("advibp_own_net", path)
    if not Path(path).is_file() or module_spec is None or module_spec.loader is None:
        raise UserError(f"'{spec}' names no Python file; write path/to/file.py:function.")
    module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
        net = getattr(module, function)()
    except Exception as error:
        raise UserError(f"{spec} failed with {type(error).__name__}: {error}; it must return an nn.Module.") from error
    if not isinstance(net, nn.Module):
        raise UserError(f"{spec} returned {type(net).__name__}, but an nn.Module was expected.")
    return net


def is_known(spec: str) -> bool:
    """Whether `build` can make a network from `spec`."""
    return spec.strip().lower() in STRUCTURES or bool(_LOOKS_LIKE_GRAMMAR.match(spec))


def is_own(spec: str) -> bool:
    """Whether `spec` is of the form file.py:function."""
    return spec.rpartition(":")[0].endswith(".py")
