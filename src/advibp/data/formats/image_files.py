"""PNG, JPEG, PPM and BMP files to arrays of bytes. Other formats are not tried, whatever the name of a file is."""

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
FORMATS = ("PNG", "JPEG", "PPM", "BMP")  # some of PIL's other formats run external programs
MAX_PIXELS = 2**24  # 4096 x 4096; larger images are mistakes or decompression bombs

_GRAYSCALE = ("1", "L", "LA")


def read_all(files: Sequence[Path], size: int | None) -> Array:
    """Read images of one size.

    Args:
        files: The image files.
        size: Height and width to which the images are resized. If None, they must all have the same size.

    Returns:
        uint8 array of shape (N, H, W) if all images are grayscale, else (N, 3, H, W).

    Raises:
        UserError: If a file is not a valid image, or if sizes differ and ``size`` is None.
    """
    images: list[Array] = []
    with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count()) as pool:
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # `read` refuses these images
        for file, pixels in zip(files, pool.map(partial(read, size=size), files), strict=True):
            if not images:
                file_limits.check(len(files) * pixels.size, f"The {len(files):,} images with {file}")
            elif pixels.shape[:2] != images[0].shape[:2]:
                pool.shutdown(wait=False, cancel_futures=True)
                (height, width), (h, w) = images[0].shape[:2], pixels.shape[:2]
                raise UserError(
                    f"{files[0]} is {width}x{height} pixels and {file} is {w}x{h}; give the size to which all images "
                    "are resized (--size 32)."
                )
            images.append(pixels)
    return _stack(images)


def _stack(images: list[Array]) -> Array:
    """Stack images with the channels first. If some are in color, the gray values of the others are repeated."""
    if all(pixels.ndim == 2 for pixels in images):
        return np.stack(images)
    height, width = images[0].shape[:2]
    stacked = np.empty((len(images), 3, height, width), np.uint8)
    for row, pixels in zip(stacked, images, strict=True):
        row[:] = pixels if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return stacked


def read(file: Path, size: int | None) -> Array:
    """Read one image. An alpha channel is dropped.

    Args:
        file: The image file.
        size: Height and width to which the image is resized (bilinear). If None, it keeps its size.

    Returns:
        uint8 array of shape (H, W) if the image is grayscale, else (H, W, 3).
    """
    try:
        with Image.open(file, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise UserError(
                    f"{file} has {image.width}x{image.height} pixels, more than {MAX_PIXELS:,}; make it smaller."
                )
            if has_more_than_8_bits(image):
                raise UserError(f"{file} has more than 8 bits a pixel; convert it to 8 bits first.")
            converted = image.convert("L" if image.mode in _GRAYSCALE else "RGB")
        if size is not None and converted.size != (size, size):
            converted = converted.resize((size, size), Image.Resampling.BILINEAR)
        return np.asarray(converted)
    except UserError:
        raise
    except Image.DecompressionBombError:
        raise UserError(f"{file} has more than {MAX_PIXELS:,} pixels; make it smaller.") from None
    except Exception as error:  # PIL raises many types for damaged files
        unknown = isinstance(error, UnidentifiedImageError)
        reason = "it is not PNG, JPEG, PPM or BMP" if unknown else " ".join(str(error).split())
        raise UserError(f"{file} cannot be read as an image ({reason}); fix or remove it.") from error


def has_more_than_8_bits(image: Image.Image) -> bool:
    """Return True if a channel has more than 8 bits.

    PIL reduces color images to 8 bits when it reads them, so the mode is not sufficient.
    """
    details = [tile[3] for tile in getattr(image, "tile", [])]
    if image.format == "PNG" and any(str(raw_mode).endswith(";16B") for raw_mode in details):
        return True
    if image.format == "PPM" and any(isinstance(d, tuple) and isinstance(d[1], int) and d[1] > 255 for d in details):
        return True
    return image.mode[0] in "IF"
