"""Converts the images, labels and radii that `certify` takes into one form."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from advibp.bounds import Perturbation
from advibp.data.features import radii_of_features
from advibp.data.user_data import Images, as_images
from advibp.errors import UserError
from advibp.verify.argument_checks import check_eps, shortened

USAGE = "certify(net, images, eps) or certify(net, x, y, eps)"


def parse_images_and_radii(
    images: Any, y: Any, eps: Any, perturbation: Any = None
) -> tuple[Images, list[float], Perturbation]:
    """Read the arguments of certify(net, images, eps) or certify(net, x, y, eps).

    If `images` is neither a tensor nor an array, it includes the labels, and a third positional argument is eps. An eps
    for each feature becomes one eps and a scale.
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
    images = as_images(images)
    around = parse_perturbation(images, perturbation)
    if isinstance(eps, Mapping):
        if around.scale is not None:
            raise UserError("eps has a radius for each feature, and the perturbation has a scale; give one of them.")
        names = getattr(images, "feature_names", None)
        eps, scaled = Perturbation.from_radii(radii_of_features(eps, names), around.low, around.high)
        around = scaled
    return images, parse_radii(eps, 1.0 if around.is_pixels else math.inf), around


def parse_perturbation(images: Any, perturbation: Any = None) -> Perturbation:
    """Return the perturbation of an argument; None stands for the range of the images' data set, without a scale."""
    if perturbation is None:
        within = getattr(images, "input_range", (0.0, 1.0))
        return Perturbation(*(within or (None, None)))
    if not isinstance(perturbation, Perturbation):
        raise UserError(f"perturbation is {shortened(perturbation)}, but must be an advibp.Perturbation or None.")
    return perturbation


def parse_radii(eps: Any, largest: float = 1.0) -> list[float]:
    """Convert one radius or several to a list without duplicates. Radii must not be above `largest`."""
    several = isinstance(eps, Iterable) and not isinstance(eps, str | bytes | Mapping)
    if isinstance(eps, Tensor | np.ndarray):
        several = eps.ndim > 0
    radii = list(dict.fromkeys(check_eps(e, largest) for e in (eps if several else [eps])))
    if not radii:
        raise UserError(f"eps is {shortened(eps)}, which holds no radius; give at least one, such as 0.3 or 8/255.")
    return radii
