"""SVHN, the house numbers: train_32x32.mat and test_32x32.mat, in which the label 10 means the digit 0."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from advibp.data.assembly import PARTS, Array
from advibp.data.formats import mat
from advibp.errors import UserError

FILES = ("train_32x32.mat", "test_32x32.mat")


def recognise(folder: Path) -> bool:
    return any((folder / name).is_file() for name in FILES)


def read(folder: Path) -> dict[str, Array]:
    return dict(zip(PARTS, (array for name in FILES for array in _read_file(folder / name)), strict=True))


def _read_file(file: Path) -> tuple[Array, Array]:
    """Images (N, 3, 32, 32), uint8, and labels (N,)."""
    if not file.is_file():
        raise UserError(f"The folder {file.parent} has no file {file.name}; put it there.")

    def expected(name: str, shape: tuple[int, ...]) -> bool:
        if name == "X" and (len(shape) != 4 or shape[:3] != (32, 32, 3)):
            raise UserError(f"X in {file} has shape {shape}; expected (32, 32, 3, N); fetch it again.")
        if name == "y" and (len(shape) != 2 or 1 not in shape):
            raise UserError(f"y in {file} has shape {shape}; expected (N, 1); fetch it again.")
        return name in ("X", "y")

    arrays = mat.read(file, expected)
    if missing := {"X", "y"} - arrays.keys():
        raise UserError(f"{file} lacks {', '.join(sorted(missing))}; expected the arrays X and y; fetch it again.")
    x, y = arrays["X"], arrays["y"].reshape(-1)
    if x.dtype != np.uint8:
        raise UserError(f"X in {file} is of type {x.dtype}; expected uint8; fetch it again.")
    if len(y) != x.shape[3]:
        raise UserError(f"{file} has {len(y)} labels for {x.shape[3]} images; fetch it again.")
    if not np.isin(y, np.arange(1, 11)).all():
        raise UserError(f"y in {file} holds labels other than 1 to 10; fetch it again.")
    return x.transpose(3, 2, 0, 1), y.astype(np.int64) % 10
