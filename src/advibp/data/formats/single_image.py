"""One image file to a tensor for a network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from advibp.data.formats.image_files import FORMATS, has_more_than_8_bits
from advibp.errors import UserError


def read(path: str | Path, input_shape: tuple[int, int, int]) -> Tensor:
    """Read a PNG, JPEG, PPM or BMP file.

    Args:
        path: The image file.
        input_shape: (C, H, W) of the network. The image must have this height and width: it is not resized, because
            the certificate would be for another image.

    Returns:
        float32 tensor of shape (C, H, W) with values in [0, 1].

    Raises:
        UserError: If the file is not an image of this size, or has transparent pixels or more than 8 bits per channel.
    """
    channels, height, width = input_shape
    if channels not in (1, 3):
        raise UserError(f"The network takes {channels} channels; image files have 1 or 3, so give its data as .npz.")
    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.size != (width, height):
                raise UserError(
                    f"{path} is {image.size[0]}x{image.size[1]} pixels, but the network takes {width}x{height}; "
                    f"resize it first."
                )
            if has_more_than_8_bits(image):
                raise UserError(f"{path} has more than 8 bits a pixel; convert it to 8 bits first.")
            if image.has_transparency_data and image.convert("RGBA").getchannel("A").getextrema() != (255, 255):
                raise UserError(
                    f"{path} has transparent pixels, whose color depends on the background; save it without an alpha "
                    f"channel first."
                )
            pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"), dtype=np.float32) / 255
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; give an image file, or test:17 for test image 17.") from None
    except UserError:
        raise
    except Exception as error:  # PIL raises many types for damaged files
        raise UserError(
            f"{path} cannot be read as an image ({error}); give a PNG or JPEG of {width}x{height} pixels."
        ) from None
    return torch.from_numpy(pixels.reshape(height, width, channels)).permute(2, 0, 1).contiguous()
