"""One image file -> a tensor in [0, 1] of the shape a network expects."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from advibp.errors import UserError

# PIL's others include some that start programs, whatever a file is called.
_FORMATS = ("PNG", "JPEG", "PPM", "BMP")


def read(path: str | Path, input_shape: tuple[int, int, int]) -> Tensor:
    """PNG, JPEG, ... -> (C, H, W). The size must fit: resizing would certify another image."""
    channels, height, width = input_shape
    if channels not in (1, 3):
        raise UserError(f"The network takes {channels} channels; image files have 1 or 3, so give its data as .npz.")
    try:
        with Image.open(path, formats=_FORMATS) as image:
            if image.size != (width, height):
                raise UserError(
                    f"{path} is {image.size[0]}x{image.size[1]} pixels, but the network takes {width}x{height}; "
                    f"resize it first."
                )
            if image.mode[0] in "IF":  # would be cut off at 255, not scaled
                raise UserError(f"{path} has more than 8 bits a pixel; convert it to 8 bits first.")
            if image.has_transparency_data and image.convert("RGBA").getchannel("A").getextrema() != (255, 255):
                raise UserError(
                    f"{path} has transparent pixels, whose colour depends on what lies behind them; save it without an "
                    f"alpha channel first."
                )
            pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"), dtype=np.float32) / 255
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; give an image file, or test:17 for test image 17.") from None
    except UserError:
        raise
    except Exception as error:  # PIL's readers raise many kinds on a damaged file
        raise UserError(
            f"{path} is no image that can be read ({error}); give a PNG or JPEG of {width}x{height} pixels."
        ) from None
    return torch.from_numpy(pixels.reshape(height, width, channels)).permute(2, 0, 1).contiguous()
