"""An .npz file with the arrays x_train, y_train, x_test and y_test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from advibp.data.assemble import PARTS, Array
from advibp.errors import UserError

_CHANNELS = (1, 3, 4)  # what a colour axis can look like: grey, RGB, RGBA


def read(path: Path) -> dict[str, Array]:
    try:
        opened = np.load(path, allow_pickle=False)
    except Exception as error:  # numpy, zipfile and zlib each raise their own kinds on a damaged file
        raise UserError(f"{path} is not a sound .npz file; save it again with numpy.savez.") from error
    if not isinstance(opened, np.lib.npyio.NpzFile):
        raise UserError(f"{path} holds a single array; expected an .npz with {', '.join(PARTS)}.")
    with opened:
        if missing := [part for part in PARTS if part not in opened]:
            raise UserError(f"{path} lacks {', '.join(missing)}; expected the arrays {', '.join(PARTS)}.")
        arrays = {part: _read_member(opened, part, path) for part in PARTS}
    return arrays | {part: _channels_first(arrays[part], part, path) for part in PARTS if part[0] == "x"}


def _read_member(opened: Mapping[str, Any], part: str, path: Path) -> Array:
    try:
        array = opened[part]
    except Exception as error:  # as above; a pickled array is among them
        if "allow_pickle" in str(error):
            raise UserError(f"{part} in {path} holds pickled objects; save plain numbers instead.") from error
        raise UserError(f"{part} in {path} is damaged; save the file again with numpy.savez.") from error
    if not isinstance(array, np.ndarray):
        raise UserError(f"{part} in {path} is no numpy array; save the file again with numpy.savez.")
    return array


def _channels_first(x: Array, part: str, path: Path) -> Array:
    """(N, H, W, C) -> (N, C, H, W); an axis of 1, 3 or 4 is the colours, and the first such wins."""
    if x.ndim != 4 or x.shape[1] in _CHANNELS:
        return x
    if x.shape[3] not in _CHANNELS:
        raise UserError(
            f"{part} in {path} has shape {x.shape}: neither axis 1 nor axis 3 can be 1, 3 or 4 channels; "
            "expected (N, H, W), (N, H, W, C) or (N, C, H, W)."
        )
    return x.transpose(0, 3, 1, 2)
