"""An .npz file with the arrays x_train, y_train, x_test and y_test.

Tables (N, F) may have the arrays feature_names, class_names and input_range, (2,) or (2, F), too.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

import numpy as np

from advibp.data import file_limits
from advibp.data.assembly import PARTS, Array
from advibp.errors import UserError

#: Arrays that a file may have besides `PARTS`.
OPTIONAL = ("feature_names", "class_names", "input_range")

_CHANNELS = (1, 3, 4)  # grayscale, RGB, RGBA


def read(path: Path, test: bool = True) -> dict[str, Array]:
    """Read the four arrays without unpickling; without ``test``, not those of the test set.

    Returns:
        ``x_train`` and ``x_test`` with the channels first, and ``y_train`` and ``y_test``. The values are not checked.
        Arrays of `OPTIONAL` are included if the file has them.

    Raises:
        UserError: If an array is missing or damaged, contains objects, or needs more memory than the machine has.
    """
    try:
        archive = zipfile.ZipFile(path)
    except Exception as error:  # zipfile and struct raise several types for damaged files
        raise UserError(f"{path} is not a valid .npz file; save it again with numpy.savez.") from error
    with archive:
        if missing := [part for part in PARTS if f"{part}.npy" not in archive.namelist()]:
            raise UserError(f"{path} lacks {', '.join(missing)}; expected the arrays {', '.join(PARTS)}.")
        known = [*PARTS, *(part for part in OPTIONAL if f"{part}.npy" in archive.namelist())]
        known = [part for part in known if test or part not in ("x_test", "y_test")]
        arrays = {part: _read_member(archive, part, path) for part in known}
    for part in OPTIONAL:
        if part in arrays and (arrays[part].dtype.kind != "U" if part != "input_range" else len(arrays[part]) != 2):
            expected = "two numbers, or two rows of numbers" if part == "input_range" else "texts"
            raise UserError(f"{part} in {path} must be {expected}; save it as a numpy array of them.")
    return arrays | {
        part: _channels_first(arrays[part], part, path) for part in PARTS if part[0] == "x" and part in arrays
    }


def _read_member(archive: zipfile.ZipFile, part: str, path: Path) -> Array:
    try:
        _check_header(archive, part, path)
        with archive.open(f"{part}.npy") as stream:
            array = np.lib.format.read_array(stream, allow_pickle=False)
    except UserError:
        raise
    except Exception as error:  # numpy, zipfile and zlib raise several types
        raise UserError(f"{part} in {path} is damaged; save the file again with numpy.savez.") from error
    return np.asarray(array)


def _check_header(archive: zipfile.ZipFile, part: str, path: Path) -> None:
    """Compare the size in the header of an array with the size in the archive, before memory is allocated.

    The size in the archive is an upper bound, because zipfile never decompresses more.
    """
    where = f"{part} in {path}"
    member = archive.getinfo(f"{part}.npy")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UserError(f"{where} is compressed in a way that numpy does not use; save the file with numpy.savez.")
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(stream)
        size = member.file_size - stream.tell()
    if dtype.hasobject:
        raise UserError(f"{where} contains pickled objects; save plain numbers instead.")
    values = math.prod(shape)
    if values * dtype.itemsize != size:
        raise UserError(
            f"{where} is damaged: its header states {values * dtype.itemsize:,} bytes and {size:,} follow; "
            "save the file again with numpy.savez."
        )
    file_limits.check(values, where, unpacked=member.file_size, packed=member.compress_size)


def _channels_first(x: Array, part: str, path: Path) -> Array:
    """Transpose (N, H, W, C) to (N, C, H, W). Axis 1 is taken for the channels if its size is 1, 3 or 4."""
    if x.ndim != 4 or x.shape[1] in _CHANNELS:
        return x
    if x.shape[3] not in _CHANNELS:
        raise UserError(
            f"{part} in {path} has shape {x.shape}: neither axis 1 nor axis 3 can be 1, 3 or 4 channels; "
            "expected (N, H, W), (N, H, W, C) or (N, C, H, W)."
        )
    return x.transpose(0, 3, 1, 2)
