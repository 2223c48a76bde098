"""The keys of a recipe that describe the set of allowed changes: eps, eps_scale and input_range.

A radius for each feature is stored as one eps, the largest radius, and a scale relative to it. Schedules, records and
tables then have one number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from advibp.bounds import Perturbation
from advibp.data.features import input_range as range_of
from advibp.data.features import radii_of_features
from advibp.errors import UserError
from advibp.parsers import number

if TYPE_CHECKING:
    from advibp.data import Data

_RADIUS = number(0, above=True)
_SHARE = number(0)


def split_eps(eps: Any) -> tuple[Any, Any] | None:
    """Return eps and eps_scale for a radius per feature; None if eps is one number.

    Args:
        eps: a number; or radii by name, as a mapping or a text such as age=0.1,income=500; or a list, tensor or array
            with one radius for each element of an input.
    """
    if isinstance(eps, str) and "=" in eps:
        eps = by_name(eps, "eps")
    if hasattr(eps, "tolist") and eps.ndim:
        eps = eps.tolist()
    if not isinstance(eps, Mapping | list | tuple):
        return None
    try:
        radii = scale(eps)
    except ValueError as expected:
        raise UserError(f"eps is {eps!r}, but must be a number, or radii: {expected}.") from None
    largest = max(_flat(radii), default=0.0)
    if not largest > 0:
        raise UserError("All radii in eps are 0; give at least one feature a radius above 0.")
    return largest, _mapped(radii, lambda radius: radius / largest)


def by_name(text: str, what: str) -> dict[str, str]:
    """Parse name=value,name=value."""
    pairs = [part.rpartition("=") for part in text.split(",")]
    if not all(name.strip() and sign for name, sign, _ in pairs):
        raise UserError(f"{what} is {text!r}, but must be a number, or name=value for features, separated by commas.")
    names = [name.strip() for name, _, _ in pairs]
    if len(set(names)) < len(names):
        raise UserError(f"{what} is {text!r}, which has a feature twice; name each once.")
    return {name: value.strip() for name, (_, _, value) in zip(names, pairs, strict=True)}


def scale(value: Any) -> Any:
    """Parse eps_scale: numbers of at least 0 by name of the feature, or a list of them."""
    if isinstance(value, str) and "=" in value:
        value = by_name(value, "eps_scale")
    elif isinstance(value, str):
        value = value.split(",")
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, Mapping | list | tuple) or not len(value):
        raise ValueError("numbers of at least 0 by name of the feature, or one per feature")
    return _mapped(value, lambda each: float(_SHARE(each)))


def input_range(value: Any) -> Any:
    """Parse input_range: two numbers, of which None is no limit, or a mapping from features to such pairs."""
    if isinstance(value, str) and "=" in value:
        return {name: _pair(pair.split(":")) for name, pair in by_name(value, "input_range").items()}
    if isinstance(value, Mapping):
        return {str(name): None if pair is None else _pair(pair) for name, pair in value.items()}
    if isinstance(value, str):
        value = value.split(",")
    return _pair(value)


def _pair(value: Any) -> list[Any]:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise ValueError("the lowest and highest value, such as 0,1, or name=0:1 for features")
    return [_end(end) for end in value]


def _end(end: Any) -> Any:
    if hasattr(end, "tolist"):
        end = end.tolist()
    if isinstance(end, list | tuple):
        return [_end(each) for each in end]
    if end is None or str(end).strip().lower() in ("", "none", "inf", "-inf"):
        return None
    return float(number(-math.inf)(end))


def _mapped(value: Any, function: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): function(each) for name, each in value.items()}
    return [_mapped(each, function) if isinstance(each, list | tuple) else function(each) for each in value]


def _flat(value: Any) -> list[float]:
    parts = value.values() if isinstance(value, Mapping) else value
    return [number for part in parts for number in (_flat(part) if isinstance(part, list) else [part])]


def perturbation_of(data: Data, eps_scale: Any, within: Any) -> Perturbation:
    """Return the set of allowed changes of a data set's inputs.

    Args:
        data: it has the shape of an input, the names of the features and, by default, the range.
        eps_scale: scale of each feature by name, or numbers in the shape of an input; None for 1.
        within: range of valid inputs; "auto" for that of the data set.
    """
    names = data.feature_names
    valid = data.input_range if within == "auto" else range_of(within, names)
    low, high = valid or (None, None)
    if eps_scale is None:
        return Perturbation(low, high)
    if isinstance(eps_scale, Mapping):
        shares = torch.tensor(radii_of_features(eps_scale, names), dtype=torch.float64)
    else:
        shares = torch.tensor(eps_scale, dtype=torch.float64)
    if shares.numel() != math.prod(data.input_shape):
        raise UserError(
            f"eps or eps_scale has {shares.numel()} numbers, but an input has {math.prod(data.input_shape)} elements "
            f"({tuple(data.input_shape)}); give one number for each, or name the features."
        )
    return Perturbation(low, high, shares.view(tuple(data.input_shape)))
