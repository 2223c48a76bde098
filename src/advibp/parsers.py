"""What an option of a recipe may be: parsers, which raise a ValueError that says what they wanted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Parser = Callable[[Any], Any]
Span = float | str  # epochs, or "30%" of all epochs


def number(low: float, high: float = math.inf, *, above: bool = False) -> Parser:
    """A finite number in [low, high], or in (low, high] with `above`; fractions such as 8/255 are read too."""
    interval = f"{'(' if above else '['}{low:g}, {high:g}{']' if high < math.inf else ')'}"

    def parse(value: Any) -> float:
        try:
            top, slash, bottom = str(value).partition("/")
            result = float(top) / float(bottom) if slash else float(top)
        except (ValueError, ZeroDivisionError):
            result = math.nan
        inside = low < result if above else low <= result
        if isinstance(value, bool) or not (inside and result <= high and math.isfinite(result)):
            raise ValueError(f"a number in {interval}")
        return result

    return parse


def integer(low: int, high: int = 2**31) -> Parser:
    def parse(value: Any) -> int:
        try:
            result = int(str(value))
        except ValueError:
            result = low - 1
        if isinstance(value, bool) or not low <= result <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return result

    return parse


def one_of(*names: str) -> Parser:
    def parse(value: Any) -> str:
        if value not in names:
            raise ValueError("one of " + ", ".join(names))
        return str(value)

    return parse


def flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "yes", "on", "1", "false", "no", "off", "0"):
        return str(value).lower() in ("true", "yes", "on", "1")
    raise ValueError("true or false")


def text(value: Any) -> str:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("a text")
    return str(value)


def span(value: Any) -> Span:
    """Epochs as a number, or a share of all epochs as a text such as 30%."""
    try:
        return share_or(lambda epochs: float(number(0)(epochs)))(value)
    except ValueError:
        raise ValueError("a number of epochs (at least 0), or a share of them from 0% to 100%") from None


def spans(value: Any) -> tuple[Span, ...]:
    if isinstance(value, str):
        value = value.split(",") if value.strip() else []
    if not isinstance(value, list | tuple):
        raise ValueError("a list of epochs or shares, such as 75%,90%")
    return tuple(span(v) for v in value)


def share_or(parse: Parser) -> Parser:
    """What `parse` reads, or a share as a text such as 30%."""

    def either(value: Any) -> Any:
        try:
            if isinstance(value, str) and value.strip().endswith("%"):
                return f"{number(0, 100)(value.strip()[:-1]):.12g}%"
            return parse(value)
        except ValueError:
            raise ValueError("a number of at least 0, or a share from 0% to 100%") from None

    return either


def or_word(word: str, parse: Parser) -> Parser:
    """What `parse` reads, or one fixed word in its place."""

    def either(value: Any) -> Any:
        if value == word or (word == "none" and value is None):
            return None if word == "none" else word
        try:
            return parse(value)
        except ValueError as wanted:
            raise ValueError(f"{wanted}, or {word}") from None

    return either


def numbers(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("a mapping of names to published numbers")
    return dict(value)
