"""From the name or the path of a data set to its images."""

from __future__ import annotations

import difflib
import os
from importlib import resources
from pathlib import Path

from advibp.data import idx, npz
from advibp.data.assemble import Array, assemble
from advibp.data.sets import Data
from advibp.errors import UserError

NAMES = ("mnist",)


def load(source: str | Path, *, validation: int = 1000, limit: int | None = None) -> Data:
    """The data set ``source``: ``"mnist"``, a folder of idx files, or an .npz file.

    ``validation`` images are taken out of the training set, always the same ones; ``limit`` then keeps that many of
    the training images that remain.
    """
    if isinstance(source, str) and source in NAMES:
        name, arrays = source, idx.read_folder(resources.files("advibp").joinpath(source))
    else:
        path = Path(os.path.expanduser(source))
        name, arrays = path.stem, _read_path(path, source)
    return assemble(arrays, name, str(source), validation, limit)


def _read_path(path: Path, source: str | Path) -> dict[str, Array]:
    # os.path, not Path: it answers False, without raising, for names that no file can have.
    if os.path.isdir(path):
        return idx.read_folder(path)
    if os.path.exists(path):
        if path.suffix.lower() != ".npz":
            raise UserError(f"Cannot read {path}: expected a folder of idx files or a file that ends in .npz.")
        return npz.read(path)
    if isinstance(source, str) and not path.suffix and os.sep not in source:
        close = difflib.get_close_matches(source.lower(), NAMES, n=1)
        hint = f"did you mean '{close[0]}'? " if close else ""
        raise UserError(
            f"Unknown data set '{source}': {hint}Use {', '.join(NAMES)}, a folder of idx files, or an .npz file."
        )
    raise UserError(f"There is no file or folder {path}; give a folder of idx files, an .npz file, or 'mnist'.")
