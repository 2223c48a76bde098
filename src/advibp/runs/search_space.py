"""The search space of a tuning: which recipe keys are searched, and in which ranges.

lr=1e-4..1e-2:log       a number between two ends, on a logarithmic scale
alpha=0.01..1           a number between two ends
attack_steps=1..10      an integer, because the recipe key is one
method=sabr,mtl-ibp     one of several values
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from advibp.errors import UserError, suggestion
from advibp.methods import METHODS
from advibp.recipe import Recipe

#: Keys that define what is measured. Trials that differ in them can't be compared.
FIXED = ("data", "eps", "eps_scale", "input_range", "validation", "extended", "published", "label", "size", "data_root")


@dataclass(frozen=True)
class Dimension:
    """The values of one recipe key.

    Attributes:
        key: the recipe key.
        choices: its values, if it has finitely many; else ().
        low: lower end of its range.
        high: upper end of its range.
        log: whether the scale of the range is logarithmic.
        whole: whether the values are integers.
    """

    key: str
    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False

    def __str__(self) -> str:
        if self.choices:
            return f"{self.key}={','.join(map(str, self.choices))}"
        return f"{self.key}={self.low:g}..{self.high:g}{':log' if self.log else ''}"

    def suggest(self, trial: Any) -> Any:
        """Return the value of an Optuna trial."""
        if self.choices:
            return trial.suggest_categorical(self.key, list(self.choices))
        if self.whole:
            return trial.suggest_int(self.key, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(self.key, self.low, self.high, log=self.log)

    def applies_to(self, method: str) -> bool:
        """Return whether a method uses the key."""
        users = [name for name, row in METHODS.items() if self.key in row.recipe_keys]
        return not users or method in users


def parse_search(search: Sequence[str] | Mapping[str, Any]) -> tuple[Dimension, ...]:
    """Return the dimensions of a search space; the method is first.

    Args:
        search: texts such as "lr=1e-4..1e-2:log", or a mapping of keys to such ranges or to lists of values.

    Raises:
        UserError: if a key is unknown or given twice, or a range or value is not valid.

    Examples:
        >>> from advibp.runs.search_space import parse_search
        >>> [str(d) for d in parse_search(["lr=1e-4..1e-2:log", "method=sabr,mtl-ibp"])]
        ['method=sabr,mtl-ibp', 'lr=0.0001..0.01:log']
    """
    if isinstance(search, Mapping):
        pairs = [(str(key), value) for key, value in search.items()]
    else:
        pairs = [_split(text) for text in search]
    dimensions: dict[str, Dimension] = {}
    for name, value in pairs:
        key = name.strip().replace("-", "_")
        if key in dimensions:
            raise UserError(f"The search names {key} twice; give all its values once.")
        dimensions[key] = _dimension(key, value)
    if not dimensions:
        raise UserError("The search is empty; give at least one key with a range, such as lr=1e-4..1e-2:log.")
    return tuple(sorted(dimensions.values(), key=lambda d: d.key != "method"))


def _split(text: str) -> tuple[str, str]:
    key, equals, values = str(text).partition("=")
    if not equals or not values.strip():
        raise UserError(f"'{text}' has no values; write KEY=LOW..HIGH, KEY=LOW..HIGH:log or KEY=VALUE,VALUE.")
    return key, values


def _dimension(key: str, value: Any) -> Dimension:
    fields = Recipe.__dataclass_fields__
    if key not in fields:
        raise UserError(f"'{key}' is no recipe key; {suggestion(key, fields)}")
    if key in FIXED:
        raise UserError(f"{key} can't be searched, because trials with different values can't be compared; fix it.")
    if isinstance(value, str) and ".." in value:
        return _range(key, value)
    values = value.split(",") if isinstance(value, str) else value
    if not isinstance(values, Sequence) or not values:
        raise UserError(f"The search of {key} is {value!r}, but must be LOW..HIGH, LOW..HIGH:log or a list of values.")
    if (key, list(values)) == ("method", ["all"]):
        values = list(METHODS)
    return Dimension(key, tuple(_parse(key, v.strip() if isinstance(v, str) else v) for v in values))


def _range(key: str, text: str) -> Dimension:
    ends, _, scale = text.partition(":")
    values = [_parse(key, end.strip()) for end in ends.split("..")]
    if len(values) != 2 or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        raise UserError(f"The search of {key} is '{text}', but must be LOW..HIGH or LOW..HIGH:log.")
    low, high = map(float, values)
    if scale not in ("", "log", "linear") or not low < high or (scale == "log" and low <= 0):
        raise UserError(
            f"The search of {key} is '{text}', but must be LOW..HIGH or LOW..HIGH:log with LOW < HIGH, and LOW > 0 for "
            "log."
        )
    whole = Recipe.__dataclass_fields__[key].type == "int"
    return Dimension(key, low=low, high=high, log=scale == "log", whole=whole)


def _parse(key: str, value: Any) -> Any:
    """Check a value by the parser of the key."""
    try:
        parsed = Recipe.__dataclass_fields__[key].metadata["parse"](value)
    except ValueError as expected:
        raise UserError(f"The search gives {key} the value {value!r}, but it must be {expected}.") from None
    return list(parsed) if isinstance(parsed, tuple) else parsed
