"""Converts the images, labels and radii that `certify` takes into one form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from advibp.data.user_data import Images, as_images
from advibp.errors import UserError
from advibp.verify.argument_checks import check_eps, shortened

USAGE = "certify(net, images, eps) or certify(net, x, y, eps)"


def parse_images_and_radii(images: Any, y: Any, eps: Any) -> tuple[Images, list[float]]:
    """Read the arguments of certify(net, images, eps) or certify(net, x, y, eps).

    If `images` is neither a tensor nor an array, it includes the labels, and a third positional argument is eps.
    """
    if images is None:
        raise UserError(f"There are no images; call {USAGE}.")
    if isinstance(images, Tensor | np.ndarray):
        if not isinstance(y, Tensor | np.ndarray) or y.ndim == 0:
            raise UserError(
                "These are images without labels; call certify(net, x, y, eps) or certify(net, data.test, eps)."
            )
        images = (images, y)
    elif y is not None and eps is not None:
        raise UserError(f"There are too many arguments; call {USAGE}, and give the rest by name, such as by=['ibp'].")
    elif eps is None:
        eps = y
    if eps is None:
        raise UserError(f"eps is missing; call {USAGE}, and give the rest by name, such as by=['ibp'].")
    return as_images(images), parse_radii(eps)


def parse_radii(eps: Any) -> list[float]:
    """Convert one radius or several to a list without duplicates."""
    several = isinstance(eps, Iterable) and not isinstance(eps, str | bytes | Mapping)
    if isinstance(eps, Tensor | np.ndarray):
        several = eps.ndim > 0
    radii = list(dict.fromkeys(check_eps(e) for e in (eps if several else [eps])))
    if not radii:
        raise UserError(f"eps is {shortened(eps)}, which holds no radius; give at least one, such as 0.3 or 8/255.")
    return radii
