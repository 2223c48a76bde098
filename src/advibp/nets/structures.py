"""The grammar: ``"Conv 16 4x4+2, Conv 32 4x4+1, FC 100"``, the paper's own words and three more.

    Conv k WxH+s    a convolution with k filters of width W and height H, and stride s
    FC n            a fully connected layer with n outputs

are the paper's. A ReLU follows each of them; the last fully connected layer, one output per class, is implied. Beyond
the paper there are

    Conv k WxH+spP  P pixels of zeros around the image
    ... BN          BatchNorm between the layer and its ReLU
    Res k+s         a residual block of two 3x3 convolutions with k filters and p1, the first with stride s
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TypeAlias

from advibp.errors import UserError

# The paper's structures: three for MNIST and CIFAR-10, three larger ones, and the ten small ones A to J.
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

# cnn7 is what later work on certified training compares on; cnn7-narrow has a quarter of its widths, for CPUs.
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
    """``Conv filters WxH+stride``, with padding ``p`` and ``BN`` where there are any."""

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
    """``Res filters+stride``: a residual block."""

    filters: int
    stride: int
    batchnorm: bool = False

    def __str__(self) -> str:
        return f"Res {self.filters}+{self.stride}{_bn(self)}"


@dataclass(frozen=True)
class FC:
    """``FC outputs``."""

    outputs: int
    batchnorm: bool = False

    def __str__(self) -> str:
        return f"FC {self.outputs}{_bn(self)}"


Layer: TypeAlias = Conv | Res | FC


def _bn(layer: Layer) -> str:
    return " BN" if layer.batchnorm else ""


def parse(spec: str) -> list[Layer]:
    """A structure's name or a text in the grammar, as layers; the implied last layer is not among them."""
    text = grammar(spec)
    layers: list[Layer] = []
    for part in text.split(","):
        layer = _parse_layer(part.strip(), text)
        if not isinstance(layer, FC) and layers and isinstance(layers[-1], FC):
            raise UserError(f"'{layer}' follows '{layers[-1]}' in '{text}'; put FC layers last.")
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


def is_known(spec: str) -> bool:
    """Whether `spec` is a name or a text that `build` can read."""
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
            "(filters, width x height, + stride; p1 for padding), 'Res 32+2' or 'FC 100', with ' BN' behind it for "
            "BatchNorm, separated by commas."
        )
    if any(value == 0 for name, value in vars(layer).items() if name not in ("padding", "batchnorm")):
        raise UserError(f"Layer '{part}' in '{text}' has a zero in it; every number must be at least 1.")
    if isinstance(layer, Conv) and layer.padding >= min(layer.width, layer.height):
        raise UserError(f"The padding of '{part}' in '{text}' is as wide as its kernel; make it smaller.")
    return layer


def _number(digits: str) -> int:
    # Anything this long is refused later by its size; the cut keeps int() within Python's limit on digits.
    return int(digits) if len(digits) < 19 else 10**18
