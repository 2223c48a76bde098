"""Image files -> one array of bytes. Whatever a file is called, only the formats named here are tried."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from advibp.data import file_limits
from advibp.data.assembly import Array
from advibp.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".ppm", ".pgm", ".bmp")
MAX_PIXELS = 2**24  # 4096 x 4096: more is no image of a set to learn from, but a mistake or a trap

_FORMATS = ("PNG", "JPEG", "PPM", "BMP")  # PIL's others include some that start programs
_GREY = ("1", "L", "LA")


def read_all(files: Sequence[Path], size: int | None) -> Array:
    """uint8, (N, H, W) if all are grey, else (N, 3, H, W). Without a ``size`` they must have one already."""
    found: list[Array] = []
    with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count()) as pool:
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # what it warns of is refused here anyway
        for file, pixels in zip(files, pool.map(partial(read, size=size), files), strict=True):
            if not found:
                file_limits.check(len(files) * pixels.size, f"The {len(files):,} images with {file}")
            elif pixels.shape[:2] != found[0].shape[:2]:
                pool.shutdown(wait=False, cancel_futures=True)
                (height, width), (h, w) = found[0].shape[:2], pixels.shape[:2]
                raise UserError(
                    f"{files[0]} is {width}x{height} pixels and {file} is {w}x{h}; give a size to bring all to "
                    "(--size 32)."
                )
            found.append(pixels)
    return _stacked(found)


def _stacked(found: list[Array]) -> Array:
    """Colours first; a grey image among coloured ones gets three equal ones."""
    if all(pixels.ndim == 2 for pixels in found):
        return np.stack(found)
    height, width = found[0].shape[:2]
    out = np.empty((len(found), 3, height, width), np.uint8)
    for row, pixels in zip(out, found, strict=True):
        row[:] = pixels if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return out


def read(file: Path, size: int | None) -> Array:
    """uint8, (H, W) if it is grey, else (H, W, 3); with a ``size``, that high and wide (bilinear). No alpha."""
    try:
        with Image.open(file, formats=_FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise UserError(
                    f"{file} has {image.width}x{image.height} pixels, more than {MAX_PIXELS:,}; make it smaller."
                )
            if _is_deep(image):
                raise UserError(f"{file} has more than 8 bits a pixel; convert it to 8 bits first.")
            plain = image.convert("L" if image.mode in _GREY else "RGB")
        if size is not None and plain.size != (size, size):
            plain = plain.resize((size, size), Image.Resampling.BILINEAR)
        return np.asarray(plain)
    except UserError:
        raise
    except Image.DecompressionBombError:
        raise UserError(f"{file} has more than {MAX_PIXELS:,} pixels; make it smaller.") from None
    except Exception as error:  # PIL's readers raise many kinds on a damaged file
        unknown = isinstance(error, UnidentifiedImageError)
        reason = "it is no PNG, JPEG, PPM or BMP" if unknown else " ".join(str(error).split())
        raise UserError(f"{file} is no image that can be read ({reason}); mend or remove it.") from error


def _is_deep(image: Image.Image) -> bool:
    """More than 8 bits a channel. PIL cuts colours down to 8 as it reads them, so the mode alone does not tell."""
    details = [tile[3] for tile in getattr(image, "tile", [])]
    if image.format == "PNG" and any(str(raw_mode).endswith(";16B") for raw_mode in details):
        return True
    if image.format == "PPM" and any(isinstance(d, tuple) and isinstance(d[1], int) and d[1] > 255 for d in details):
        return True
    return image.mode[0] in "IF"
