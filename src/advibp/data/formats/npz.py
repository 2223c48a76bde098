"""An .npz file with the arrays x_train, y_train, x_test and y_test."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

import numpy as np

from advibp.data import file_limits
from advibp.data.assembly import PARTS, Array
from advibp.errors import UserError

_CHANNELS = (1, 3, 4)  # what a colour axis can look like: grey, RGB, RGBA


def read(path: Path) -> dict[str, Array]:
    try:
        archive = zipfile.ZipFile(path)
    except Exception as error:  # zipfile and struct each raise their own kinds on a damaged file
        raise UserError(f"{path} is not a sound .npz file; save it again with numpy.savez.") from error
    with archive:
        if missing := [part for part in PARTS if f"{part}.npy" not in archive.namelist()]:
            raise UserError(f"{path} lacks {', '.join(missing)}; expected the arrays {', '.join(PARTS)}.")
        arrays = {part: _read_member(archive, part, path) for part in PARTS}
    return arrays | {part: _channels_first(arrays[part], part, path) for part in PARTS if part[0] == "x"}


def _read_member(archive: zipfile.ZipFile, part: str, path: Path) -> Array:
    try:
        _check_promise(archive, part, path)
        with archive.open(f"{part}.npy") as stream:
            array = np.lib.format.read_array(stream, allow_pickle=False)
    except UserError:
        raise
    except Exception as error:  # numpy, zipfile and zlib each raise their own kinds
        raise UserError(f"{part} in {path} is damaged; save the file again with numpy.savez.") from error
    return np.asarray(array)


def _check_promise(archive: zipfile.ZipFile, part: str, path: Path) -> None:
    """Compare what the array's header promises with what the archive holds, before anything is allocated.

    The archive's sizes can be believed so far: zipfile never unpacks more than they say.
    """
    where = f"{part} in {path}"
    member = archive.getinfo(f"{part}.npy")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UserError(f"{where} is packed in a way that numpy does not use; save the file with numpy.savez.")
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(stream)
        held = member.file_size - stream.tell()
    if dtype.hasobject:
        raise UserError(f"{where} holds pickled objects; save plain numbers instead.")
    values = math.prod(shape)
    if values * dtype.itemsize != held:
        raise UserError(
            f"{where} is damaged: its header promises {values * dtype.itemsize:,} bytes and {held:,} follow; "
            "save the file again with numpy.savez."
        )
    file_limits.check(values, where, unpacked=member.file_size, packed=member.compress_size)


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
