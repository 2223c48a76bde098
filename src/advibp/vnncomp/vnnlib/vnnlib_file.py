"""Properties in VNN-LIB, the language of the VNN-COMP: what a network must never do, as boxes and half-spaces."""

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
from advibp.vnncomp.vnnlib.normal_form import Linear, Part, Refused, Term
from advibp.vnncomp.vnnlib.smtlib import Script, parse

_MOST_BYTES = 100_000_000
_MOST_NUMBERS = 20_000_000

#: Rows C (R, K) and offsets d (R,), float64: it holds where C y + d <= 0 in all rows; without rows, everywhere.
Disjunct = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """A box of inputs, lower and upper (N,) float64, with a disjunction over the outputs."""

    lower: Tensor
    upper: Tensor
    disjuncts: list[Disjunct]


@dataclass(frozen=True)
class Property:
    """It is `sat` if for some case there is an x in its box, and a disjunct that holds for the network's y at x."""

    inputs: int
    outputs: int
    cases: list[Case]


def read(path: str | Path) -> Property:
    """A .vnnlib file, which may be compressed by gzip. Numbers are rounded to float64 as float() does."""
    try:
        script = parse(_text(Path(path)))
        return Property(script.inputs, script.outputs, _cases(script))
    except Refused as refused:
        raise UserError(f"{path}: {refused}") from None


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            packed = file.peek(2)[:2] == b"\x1f\x8b"
            raw = (gzip.GzipFile(fileobj=file) if packed else file).read(_MOST_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise UserError(f"{path} is damaged: gzip can't unpack it; fetch it anew.") from None
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}; give the path of a .vnnlib file.") from None
    if len(raw) > _MOST_BYTES:
        raise UserError(f"{path} holds more than {_MOST_BYTES // 10**6} MB; split the property over files.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}: line {line} is not text in UTF-8; expected a VNN-LIB property.") from None


class _Split(NamedTuple):
    """A part's bounds of inputs, by their numbers, and its rows over outputs."""

    lower: dict[int, float]
    upper: dict[int, float]
    rows: list[Linear]


def _cases(script: Script) -> list[Case]:
    """Terms with the same box make one case. A part is worked out once, however many terms share it."""
    parts = {id(part): part for term in script.terms for part in term}
    splits = {key: _split(part) for key, part in parts.items()}
    named = [_bounding(term, splits) for term in script.terms]
    rows = sum(len(splits[id(part)].rows) for term in script.terms for part in term)
    if max(len(set(named)) * 2 * script.inputs, rows * script.outputs) > _MOST_NUMBERS:
        raise Refused(f"its cases hold more than {_MOST_NUMBERS} numbers; split the property over files.")
    merged: dict[tuple[tuple[float, ...], tuple[float, ...]], list[Disjunct]] = {}
    known: dict[tuple[int, ...], list[Disjunct] | None] = {}
    for term, name in zip(script.terms, named, strict=True):
        if name not in known:
            box = _box([splits[key] for key in name], script.inputs)
            known[name] = merged.setdefault(box, []) if box else None
        disjuncts = known[name]
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


def _bounding(term: Term, splits: dict[int, _Split]) -> tuple[int, ...]:
    """The term's parts that bound inputs."""
    return tuple(id(part) for part in term if splits[id(part)].lower or splits[id(part)].upper)


def _box(splits: Iterable[_Split], inputs: int) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """The intersection of all bounds, or None if it is empty."""
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
            raise Refused(
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
    """The robustness of one image: unsafe if some other class's output is at least the label's, anywhere in the box.

    lower and upper, of the image's shape, are flattened in C order; reading gives back exactly their numbers. A path
    that ends in .gz is compressed.
    """
    if lower.shape != upper.shape or lower.numel() == 0:
        raise UserError(
            f"The bounds have shapes {tuple(lower.shape)} and {tuple(upper.shape)}; both must be an image's."
        )
    if not bool(((lower <= upper) & lower.isfinite() & upper.isfinite()).all()):
        raise UserError("Some lower bound is above its upper bound, or not finite; give the corners of a box.")
    if not 0 <= label < classes or classes < 2:
        raise UserError(f"The label is {label} of {classes} classes; expected 2 classes or more, and a label below.")
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
    """An input and the network's output there, flattened in C order, in the form that the VNN-COMP asks for."""
    pairs = [f"({letter}_{i} {v})" for letter, values in (("X", x), ("Y", y)) for i, v in enumerate(_numbers(values))]
    return "(" + "\n".join(pairs) + ")\n"


def _numbers(values: Tensor) -> list[str]:
    """As short as float() allows to give back the same number; without an exponent, of which SMT-LIB knows none."""
    return [format(Decimal(repr(value)), "f") for value in values.detach().double().flatten().tolist()]
