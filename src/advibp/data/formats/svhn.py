"""SVHN: ``train_32x32.mat`` and ``test_32x32.mat`` as published; label 10 means the digit 0.

Only files with the published SHA-256 are read: `scipy.io.loadmat` does not unpickle, but version 1.17 crashes with
out-of-bounds memory accesses on modified files and allocates whatever size a file claims.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import numpy as np

from advibp.data.assembly import PARTS, Array
from advibp.data.fetch import known_sets
from advibp.errors import UserError


def recognize(folder: Path) -> bool:
    """Return True if the folder contains one of the two files."""
    return any((folder / file.name).is_file() for file in known_sets.SVHN_FILES)


def read(folder: Path, test: bool = True) -> dict[str, Array]:
    """Read both files; without ``test``, not the test file.

    Returns:
        ``x_train`` and ``x_test`` of shape (N, 3, 32, 32), uint8, and ``y_train`` and ``y_test`` of shape (N,), int64.

    Raises:
        UserError: If a file is missing or is not the published one, or if scipy is not installed.
    """
    files = known_sets.SVHN_FILES if test else known_sets.SVHN_FILES[:1]
    arrays = [array for file in files for array in _read_file(folder, file)]
    return dict(zip(PARTS, arrays, strict=False))


def _read_file(folder: Path, known: known_sets.File) -> tuple[Array, Array]:
    path = folder / known.name
    try:
        size = path.stat().st_size
        content = path.read_bytes() if size == known.size else b""
    except FileNotFoundError:
        raise UserError(f"The folder {folder} has no file {known.name}; put it there.") from None
    except OSError as error:
        raise UserError(f"Cannot read {path} ({error.strerror or error}); check its permissions.") from error
    # The bytes that are hashed are the bytes that are parsed.
    if f"sha256:{hashlib.sha256(content).hexdigest()}" != known.checksum:
        raise UserError(
            f"{path} is not the published SVHN file (wrong size or checksum); run 'advibp data fetch svhn', or save "
            f"your images as an .npz file with the arrays {', '.join(PARTS)}."
        )
    try:
        from scipy.io import loadmat
    except ImportError:
        raise UserError("Reading SVHN requires scipy, which is missing; pip install 'advibp[svhn]'.") from None
    arrays = loadmat(io.BytesIO(content), variable_names=["X", "y"])
    return arrays["X"].transpose(3, 2, 0, 1), arrays["y"].reshape(-1).astype(np.int64) % 10
