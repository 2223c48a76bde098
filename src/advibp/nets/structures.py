"""The notation for networks, such as ``"Conv 16 4x4+2, Conv 32 4x4+1, FC 100"``, and the networks that have a name.

The paper's notation:

    Conv k WxH+s    a convolution with k filters of width W and height H, and stride s
    FC n            a fully connected layer with n outputs

A ReLU follows each layer. The last fully connected layer, with one output per class, is implied. advibp adds:

    Conv k WxH+spP  P pixels of zero padding
    ... BN          BatchNorm between the layer and its ReLU
    Res k+s         a residual block: two 3x3 convolutions with k filters and padding 1, the first with stride s
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TypeAlias

from advibp.errors import UserError

#: The paper's networks: DM-Small to DM-Large, CNN-Small to CNN-Large, and the ten small networks A to J.
PAPER: dict[str, str] = {
    "dm-small": "Conv 16 4x4+2, Conv 32 4x4+1, FC 100",
    "dm-medium": "Conv 32 3x3+1, Conv 32 4x4+2, Conv 64 3x3+1, Conv 64 4x4+2, FC 512, FC 512",
    "dm-large": "Conv 64 3x3+1p1, Conv 64 3x3+1p1, Conv 128 3x3+2p1, Conv 128 3x3+1p1, Conv 128 3x3+1p1, FC 512",
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

#: All networks with a name. cnn7 is the usual benchmark of later work on certified training. cnn7-narrow has a quarter
#: of its widths, for CPUs.
STRUCTURES: dict[str, str] = {
    **PAPER,
    "cnn7": "Conv 64 3x3+1p1 BN, Conv 64 3x3+1p1 BN, Conv 128 3x3+2p1 BN, Conv 128 3x3+1p1 BN, Conv 128 3x3+1p1 BN, "
    "FC 512 BN",
    "cnn7-narrow": "Conv 16 3x3+1p1 BN, Conv 16 3x3+1p1 BN, Conv 32 3x3+2p1 BN, Conv 32 3x3+1p1 BN, "
    "Conv 32 3x3+1p1 BN, FC 128 BN",
    "resnet-small": "Conv 16 3x3+2p1 BN, Res 32+2 BN, Res 64+2 BN, FC 100 BN",
}

_CONV = re.compile(
    r"conv\s+(\d+)\s+(\d+)\s*[x×]\s*(\d+)\s*\+\s*(\d+)(?:\s*p\s*(\d+))?(\s+bn)?", re.IGNORECASE | re.ASCII
)
_RES = re.compile(r"res\s+(\d+)\s*\+\s*(\d+)(\s+bn)?", re.IGNORECASE | re.ASCII)
_FC = re.compile(r"fc\s+(\d+)(\s+bn)?", re.IGNORECASE | re.ASCII)
_LOOKS_LIKE_GRAMMAR = re.compile(r"\s*(conv|res|fc)\b|.*,", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Conv:
    """A convolution: ``Conv filters WxH+stride``, with ``pP`` for padding and ``BN`` for BatchNorm.

    Examples:
        >>> from advibp import nets
        >>> str(nets.Conv(16, width=4, height=4, stride=2, padding=1))
        'Conv 16 4x4+2p1'
    """

    filters: int
    width: int
    height: int
    stride: int
    padding: int = 0
    batchnorm: bool = False

    def __str__(self) -> str:
        padding = f"p{self.padding}" if self.padding else ""
        return f"Conv {self.filters} {self.width}x{self.height}+{self.stride}{padding}{_bn(self)}"


@dataclass(frozen=True)
class Res:
    """A residual block: ``Res filters+stride``, with ``BN`` for BatchNorm.

    Examples:
        >>> from advibp import nets
        >>> str(nets.Res(32, stride=2, batchnorm=True))
        'Res 32+2 BN'
    """

    filters: int
    stride: int
    batchnorm: bool = False

    def __str__(self) -> str:
        return f"Res {self.filters}+{self.stride}{_bn(self)}"


@dataclass(frozen=True)
class FC:
    """A fully connected layer: ``FC outputs``, with ``BN`` for BatchNorm.

    Examples:
        >>> from advibp import nets
        >>> str(nets.FC(100))
        'FC 100'
    """

    outputs: int
    batchnorm: bool = False

    def __str__(self) -> str:
        return f"FC {self.outputs}{_bn(self)}"


Layer: TypeAlias = Conv | Res | FC


def _bn(layer: Layer) -> str:
    return " BN" if layer.batchnorm else ""


def parse(spec: str) -> list[Layer]:
    """Parse a name or a text.

    Args:
        spec: a name in `STRUCTURES`, or a text such as ``"Conv 16 4x4+2, FC 100"``.

    Returns:
        The layers, without the implied last one.

    Raises:
        UserError: if the text cannot be read.

    Examples:
        >>> from advibp import nets
        >>> nets.parse("FC 100, FC 50 BN")
        [FC(outputs=100, batchnorm=False), FC(outputs=50, batchnorm=True)]
    """
    text = grammar(spec)
    layers: list[Layer] = []
    for part in text.split(","):
        layer = _parse_layer(part.strip(), text)
        if not isinstance(layer, FC) and layers and isinstance(layers[-1], FC):
            raise UserError(f"'{layer}' follows '{layers[-1]}' in '{text}'; put FC layers last.")
        layers.append(layer)
    return layers


def grammar(spec: str) -> str:
    """Return the text that ``spec`` stands for: the entry of a name in `STRUCTURES`, or ``spec`` itself.

    Raises:
        UserError: if ``spec`` is neither a known name nor looks like a text in this notation.
    """
    if not isinstance(spec, str):
        raise UserError(f"A network must be a text such as 'dm-small' or 'Conv 16 4x4+2, FC 100', not {spec!r}.")
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


def is_known(spec: str) -> bool:
    """Return whether ``spec`` is a name or a text that `build` can read."""
    try:
        parse(spec)
    except UserError:
        return False
    return True


def _parse_layer(part: str, text: str) -> Layer:
    if match := _CONV.fullmatch(part):
        filters, width, height, stride, padding = (_number(digits or "0") for digits in match.groups()[:5])
        layer: Layer = Conv(filters, width, height, stride, padding, match[6] is not None)
    elif match := _RES.fullmatch(part):
        layer = Res(_number(match[1]), _number(match[2]), match[3] is not None)
    elif match := _FC.fullmatch(part):
        layer = FC(_number(match[1]), match[2] is not None)
    else:
        raise UserError(
            f"Cannot read layer '{part}' in '{text}'; write each layer as 'Conv 16 4x4+2' "
            "(filters, width x height, + stride; p1 for padding), 'Res 32+2' or 'FC 100', followed by ' BN' for "
            "BatchNorm, separated by commas."
        )
    if any(value == 0 for name, value in vars(layer).items() if name not in ("padding", "batchnorm")):
        raise UserError(f"Layer '{part}' in '{text}' contains a zero; every number must be at least 1.")
    if isinstance(layer, Conv) and layer.padding >= min(layer.width, layer.height):
        raise UserError(f"The padding of '{part}' in '{text}' is as large as its kernel; use a smaller padding.")
    return layer


def _number(digits: str) -> int:
    # A number this long is rejected later by its size. Python's int() has a limit on the number of digits.
    return int(digits) if len(digits) < 19 else 10**18
