"""Names of features, and numbers that are given by these names: radii and ranges of valid inputs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from advibp.bounds import Perturbation
from advibp.bounds.box import Range
from advibp.errors import UserError
from advibp.parsers import number

#: The range of pixels.
PIXELS: Range = (0.0, 1.0)
#: In a mapping by name, the value of all features that are not named.
OTHERS = "*"


def radii_of_features(radii: Mapping[str, Any], names: Sequence[str] | None) -> list[float]:
    """Return the radius of each feature.

    Args:
        radii: radius by name. Features that are not named have the radius of "*", or else 0: they never change.
        names: names of the features, in the order of the columns.

    Raises:
        UserError: if there is no such feature, or a radius is not a number of at least 0.
    """
    values = _by_name(radii, names, "eps", 0.0)
    return [_parse(value, 0.0, f"eps of {name}") for name, value in zip(names or (), values, strict=True)]


def input_range(value: Any, names: Sequence[str] | None = None) -> Range:
    """Return a range of valid inputs in the form that `Data` keeps: None, two numbers, or two float32 tensors.

    The numbers are rounded to float32, as the inputs are.

    Args:
        value: None for no limit; a pair (lowest, highest) of numbers, or of one number per feature, where None is no
            limit; or a mapping from names of features to such pairs. Features that are not named have the range of "*",
            or else no limit.
        names: names of the features, in the order of the columns.

    Raises:
        UserError: if the value has another form, or the range is empty.
    """
    if isinstance(value, Mapping):
        pairs = [_pair(pair) for pair in _by_name(value, names, "input_range", None)]
        value = [low for low, _ in pairs], [high for _, high in pairs]
    low, high = _pair(value)
    around = Perturbation(low, high).on(torch.empty(0))
    return around.within


def _pair(value: Any) -> tuple[Any, Any]:
    if value is None:
        return None, None
    if not isinstance(value, Sequence | Tensor) or isinstance(value, str) or len(value) != 2:
        raise UserError(f"input_range is {value!r}, but must be (lowest, highest) value of the inputs, or None.")
    low, high = value
    return low, high


def _by_name(values: Mapping[str, Any], names: Sequence[str] | None, what: str, missing: Any) -> list[Any]:
    """Return the value of each feature, in the order of the columns."""
    if not names:
        raise UserError(
            f"{what} is given by names of features, but the data set has no such names; give numbers without names."
        )
    for name in values:
        if name not in names and name != OTHERS:
            close = difflib.get_close_matches(str(name), names, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"the features are {shortened_names(names)}."
            raise UserError(f"{what} names the feature '{name}', which the data set does not have; {hint}")
    return [values.get(name, values.get(OTHERS, missing)) for name in names]


def check_features(trained: Sequence[str] | None, given: Sequence[str] | None, source: str) -> None:
    """Raise a UserError if a table has other columns than the network was trained on, or in another order.

    Args:
        trained: names of the features of the training; None if they are not known.
        given: names of the columns of the table.
        source: name of the table.
    """
    expected, names = list(trained or ()), list(given or ())
    if not expected or not names or expected == names:
        return
    if sorted(expected) == sorted(names):  # before the next check: columns may really be called x0, x1, ...
        at = next(i for i, name in enumerate(names) if name != expected[i])
        raise UserError(
            f"{source} has the columns of the training in another order: column {at + 1} is '{names[at]}', but the "
            f"network expects '{expected[at]}' there; order the columns as {shortened_names(expected)}."
        )
    if [f"x{i}" for i in range(len(names))] in (expected, names):  # the names of features without names
        return
    missing = [name for name in expected if name not in names]
    raise UserError(
        f"{source} has the columns {shortened_names(names)}, but the network was trained on "
        f"{shortened_names(expected)}; rename or add {shortened_names(missing) if missing else 'columns'}."
    )


def _parse(value: Any, low: float, what: str) -> float:
    try:
        return float(number(low)(value))
    except ValueError as expected:
        raise UserError(f"{what} is {value!r}, but must be {expected}.") from None


def shortened_names(names: Sequence[str], most: int = 8) -> str:
    """Return names as a text, not more than `most` of them."""
    return ", ".join(names[:most]) + (f", ... ({len(names)} in total)" if len(names) > most else "")


def plain_range(within: Range, shape: Sequence[int]) -> Any:
    """Return a range as plain data for a recipe; "auto" if it is the default for inputs of this shape."""
    content = Perturbation(*(within or (None, None))).as_dict()
    if (len(shape) == 3 and not content) or (len(shape) == 1 and within is None):
        return "auto"
    return [content["low"], content["high"]] if content else [0.0, 1.0]
