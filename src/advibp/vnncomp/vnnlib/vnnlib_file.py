"""Read and write VNN-LIB files, the format of properties in the VNN-COMP.

A property describes unsafe behavior: boxes of inputs, and linear constraints on the outputs.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from advibp.errors import UserError
from advibp.storage.checkpoint import write_atomically
from advibp.vnncomp.vnnlib.normal_form import FormulaError, Linear, Part, Term
from advibp.vnncomp.vnnlib.smtlib import Script, parse

_MAX_BYTES = 100_000_000
_MAX_NUMBERS = 20_000_000

#: Rows C (R, K) and offsets d (R,), float64: the conjunction C y + d <= 0. Without rows it always holds.
Disjunct = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """A box of inputs with a disjunction of constraints on the outputs.

    Attributes:
        lower: lower bounds (N,), float64.
        upper: upper bounds (N,), float64.
        disjuncts: pairs of rows C (R, K) and offsets d (R,), float64. A pair holds if C y + d <= 0 in every row.

    Examples:
        >>> import torch
        >>> from advibp.vnncomp import Case
        >>> y0_at_most_y1 = torch.tensor([[1.0, -1.0]]).double(), torch.zeros(1).double()
        >>> case = Case(torch.zeros(2).double(), torch.ones(2).double(), [y0_at_most_y1])
    """

    lower: Tensor
    upper: Tensor
    disjuncts: list[Disjunct]


@dataclass(frozen=True)
class Property:
    """A property of a network with N inputs and K outputs.

    It is `sat` if, for some case, the box contains an x such that a disjunct holds for the network's output at x.

    Attributes:
        inputs: N, the number of input elements.
        outputs: K, the number of output elements.
        cases: the boxes and their constraints.

    Examples:
        >>> import torch
        >>> from advibp.vnncomp import read_vnnlib, write_vnnlib
        >>> write_vnnlib("first.vnnlib", torch.zeros(2), torch.ones(2), 0, 3)  # the label is 0 for all x in [0, 1]^2
        >>> prop = read_vnnlib("first.vnnlib")
        >>> prop.inputs, prop.outputs, len(prop.cases)
        (2, 3, 1)
    """

    inputs: int
    outputs: int
    cases: list[Case]


def read(path: str | Path) -> Property:
    """Read a property from a .vnnlib file. Also: `advibp.vnncomp.read_vnnlib`.

    Args:
        path: a text file in UTF-8, optionally compressed with gzip. Numbers are rounded to the nearest float64.

    Raises:
        UserError: the file is missing, or is not a supported property; the message has the number of the line.
    """
    try:
        script = parse(_text(Path(path)))
        return Property(script.inputs, script.outputs, _cases(script))
    except FormulaError as error:
        raise UserError(f"{path}: {error}") from None


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            compressed = file.peek(2)[:2] == b"\x1f\x8b"
            raw = (gzip.GzipFile(fileobj=file) if compressed else file).read(_MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise UserError(f"{path} is damaged: gzip can't unpack it; download it again.") from None
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}; give the path of a .vnnlib file.") from None
    if len(raw) > _MAX_BYTES:
        raise UserError(f"{path} is larger than {_MAX_BYTES // 10**6} MB; split the property into several files.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}: line {line} is not UTF-8 text; give the path of a .vnnlib file.") from None


class _Split(NamedTuple):
    """The input bounds of a part, by input number, and its rows on outputs."""

    lower: dict[int, float]
    upper: dict[int, float]
    rows: list[Linear]


def _cases(script: Script) -> list[Case]:
    """Group terms with the same box into cases. A part that several terms share is evaluated once."""
    parts = {id(part): part for term in script.terms for part in term}
    splits = {key: _split(part) for key, part in parts.items()}
    box_keys = [_box_key(term, splits) for term in script.terms]
    rows = sum(len(splits[id(part)].rows) for term in script.terms for part in term)
    if max(len(set(box_keys)) * 2 * script.inputs, rows * script.outputs) > _MAX_NUMBERS:
        raise FormulaError(f"the property needs more than {_MAX_NUMBERS} numbers; split it into several files.")
    merged: dict[tuple[tuple[float, ...], tuple[float, ...]], list[Disjunct]] = {}
    by_key: dict[tuple[int, ...], list[Disjunct] | None] = {}
    for term, key in zip(script.terms, box_keys, strict=True):
        if key not in by_key:
            box = _box([splits[part] for part in key], script.inputs)
            by_key[key] = merged.setdefault(box, []) if box else None
        disjuncts = by_key[key]
        if disjuncts is not None:
            disjuncts.append(_disjunct([row for part in term for row in splits[id(part)].rows], script.outputs))
    return [
        Case(torch.tensor(lower, dtype=torch.float64), torch.tensor(upper, dtype=torch.float64), disjuncts)
        for (lower, upper), disjuncts in merged.items()
    ]


def _split(part: Part) -> _Split:
    split = _Split({}, {}, [])
    for row in part:
        name = next(iter(row.factors))
        i, constant = int(name[2:]), row.constant
        if name[0] == "Y":
            split.rows.append(row)
        elif row.factors[name] > 0:  # x + constant <= 0
            split.upper[i] = min(split.upper.get(i, math.inf), 0.0 - constant)
        else:
            split.lower[i] = max(split.lower.get(i, -math.inf), constant)
    return split


def _box_key(term: Term, splits: dict[int, _Split]) -> tuple[int, ...]:
    """Return the ids of the term's parts that bound inputs."""
    return tuple(id(part) for part in term if splits[id(part)].lower or splits[id(part)].upper)


def _box(splits: Iterable[_Split], inputs: int) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return the intersection of all bounds, or None if it is empty."""
    lower, upper = [-math.inf] * inputs, [math.inf] * inputs
    for split in splits:
        for i, bound in split.lower.items():
            lower[i] = max(lower[i], bound)
        for i, bound in split.upper.items():
            upper[i] = min(upper[i], bound)
    if any(low > high for low, high in zip(lower, upper, strict=True)):
        return None
    for bounds, side, sign in ((lower, "lower", ">="), (upper, "upper", "<=")):
        free = next((i for i, bound in enumerate(bounds) if math.isinf(bound)), None)
        if free is not None:
            raise FormulaError(
                f"X_{free} has no {side} bound, but every input needs one in every case; "
                f"add (assert ({sign} X_{free} ...))."
            )
    return tuple(lower), tuple(upper)


def _disjunct(rows: list[Linear], outputs: int) -> Disjunct:
    weights = [0.0] * (len(rows) * outputs)
    for r, row in enumerate(rows):
        for name, factor in row.factors.items():
            weights[r * outputs + int(name[2:])] = factor
    offsets = [row.constant for row in rows]
    return (
        torch.tensor(weights, dtype=torch.float64).reshape(len(rows), outputs),
        torch.tensor(offsets, dtype=torch.float64),
    )


def write(path: str | Path, lower: Tensor, upper: Tensor, label: int, classes: int, comment: str = "") -> None:
    """Write the robustness of one image as a VNN-LIB file. Also: `advibp.vnncomp.write_vnnlib`.

    The property is `sat` if, somewhere in the box, the output of another class is at least the label's. `read` returns
    exactly the same bounds.

    Args:
        path: the file; it is compressed if the name ends with .gz.
        lower: lower bounds, of any shape; they are flattened in C order.
        upper: upper bounds, of the same shape.
        label: the class of the image.
        classes: number of classes.
        comment: text at the top of the file.
    """
    if lower.shape != upper.shape or lower.numel() == 0:
        raise UserError(
            f"The bounds have shapes {tuple(lower.shape)} and {tuple(upper.shape)}; both must have the image's shape."
        )
    if not bool(((lower <= upper) & lower.isfinite() & upper.isfinite()).all()):
        raise UserError("A lower bound is above its upper bound, or a bound is not finite; give the bounds of a box.")
    if not 0 <= label < classes or classes < 2:
        raise UserError(
            f"The label is {label} of {classes} classes; expected at least 2 classes, and a label from 0 to the "
            "number of classes minus 1."
        )
    box = list(zip(_numbers(lower), _numbers(upper), strict=True))
    lines = [f"; {line}" for line in comment.splitlines()]
    lines += [f"(declare-const X_{i} Real)" for i in range(len(box))]
    lines += [f"(declare-const Y_{k} Real)" for k in range(classes)]
    for i, (low, high) in enumerate(box):
        lines += [f"(assert (>= X_{i} {low}))", f"(assert (<= X_{i} {high}))"]
    lines += ["(assert (or", *(f"  (and (>= Y_{k} Y_{label}))" for k in range(classes) if k != label), "))"]
    raw = ("\n".join(lines) + "\n").encode()
    path = Path(path)
    write_atomically(path, gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)


def counterexample_text(x: Tensor, y: Tensor) -> str:
    """Return an input and its output, flattened in C order, in the VNN-COMP's format of counterexamples."""
    pairs = [f"({letter}_{i} {v})" for letter, values in (("X", x), ("Y", y)) for i, v in enumerate(_numbers(values))]
    return "(" + "\n".join(pairs) + ")\n"


def _numbers(values: Tensor) -> list[str]:
    """Format numbers as the shortest decimals that float() reads back exactly, without exponents, as SMT-LIB needs."""
    return [format(Decimal(repr(value)), "f") for value in values.detach().double().flatten().tolist()]
