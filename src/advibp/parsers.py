"""Parsers of option values. A parser raises a ValueError that names the expected value, such as "true or false"."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Parser = Callable[[Any], Any]
Span = float | str  # a number of epochs, or a percentage of all epochs such as "30%"


def number(low: float, high: float = math.inf, *, above: bool = False) -> Parser:
    """Return a parser of finite numbers in [low, high], or in (low, high] with `above`. It accepts 8/255."""
    interval = f"{'(' if above else '['}{low:g}, {high:g}{']' if high < math.inf else ')'}"

    def parse(value: Any) -> float:
        try:
            numerator, slash, denominator = str(value).partition("/")
            result = float(numerator) / float(denominator) if slash else float(numerator)
        except (ValueError, ZeroDivisionError):
            result = math.nan
        inside = low < result if above else low <= result
        if isinstance(value, bool) or not (inside and result <= high and math.isfinite(result)):
            raise ValueError(f"a number in {interval}")
        return result

    return parse


def integer(low: int, high: int = 2**31) -> Parser:
    """Return a parser of integers in [low, high]."""

    def parse(value: Any) -> int:
        try:
            result = int(str(value))
        except ValueError:
            result = low - 1
        if isinstance(value, bool) or not low <= result <= high:
            raise ValueError(f"an integer from {low} to {high}")
        return result

    return parse


def one_of(*names: str) -> Parser:
    """Return a parser that accepts these names."""

    def parse(value: Any) -> str:
        if value not in names:
            raise ValueError("one of " + ", ".join(names))
        return str(value)

    return parse


def flag(value: Any) -> bool:
    """Parse true, yes, on, 1, false, no, off or 0."""
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "yes", "on", "1", "false", "no", "off", "0"):
        return str(value).lower() in ("true", "yes", "on", "1")
    raise ValueError("true or false")


def text(value: Any) -> str:
    """Parse a string or path that is not empty."""
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("a text that is not empty")
    return str(value)


def span(value: Any) -> Span:
    """Parse a number of epochs, or a percentage of all epochs such as 30%."""
    try:
        return share_or(lambda epochs: float(number(0)(epochs)))(value)
    except ValueError:
        raise ValueError("a number of epochs of at least 0, or a percentage from 0% to 100%") from None


def spans(value: Any) -> tuple[Span, ...]:
    """Parse a list of epochs or percentages, such as 75%,90%."""
    if isinstance(value, str):
        value = value.split(",") if value.strip() else []
    if not isinstance(value, list | tuple):
        raise ValueError("a list of epochs or percentages, such as 75%,90%")
    return tuple(span(v) for v in value)


def epoch_numbers(value: Any) -> tuple[float, ...]:
    """Parse a list of whole numbers of epochs, such as 60,80."""
    if isinstance(value, str):
        value = value.split(",") if value.strip() else []
    try:
        epochs = tuple(float(number(1)(v)) for v in value)
    except (TypeError, ValueError):
        epochs = (math.nan,)
    if not all(e.is_integer() for e in epochs):
        raise ValueError("a list of whole numbers of epochs, such as 60,80")
    return epochs


def share_or(parse: Parser) -> Parser:
    """Return a parser that accepts percentages such as 30%, and the values of `parse`."""

    def either(value: Any) -> Any:
        try:
            if isinstance(value, str) and value.strip().endswith("%"):
                return f"{number(0, 100)(value.strip()[:-1]):.12g}%"
            return parse(value)
        except ValueError:
            raise ValueError("a number of at least 0, or a percentage from 0% to 100%") from None

    return either


def or_word(word: str, parse: Parser) -> Parser:
    """Return a parser that accepts one word, and the values of `parse`. The word "none" becomes None."""

    def either(value: Any) -> Any:
        if value == word or (word == "none" and value is None):
            return None if word == "none" else word
        try:
            return parse(value)
        except ValueError as expected:
            raise ValueError(f"{expected}, or {word}") from None

    return either


def numbers(value: Any) -> dict[str, Any]:
    """Parse a mapping of names to published numbers."""
    if not isinstance(value, Mapping):
        raise ValueError("a mapping of names to published numbers")
    return dict(value)
