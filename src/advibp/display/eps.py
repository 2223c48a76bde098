"""How a person reads a radius."""

from __future__ import annotations


def format_eps(eps: float) -> str:
    """Format a radius: 8/255 if it is a multiple of 1/255 that has no short decimal form, otherwise 0.3.

    A radius that was rounded to six digits, such as 0.0313725, is recognized too.

    Args:
        eps: The radius.

    Returns:
        The text. Files keep the number.

    Examples:
        >>> format_eps(8 / 255), format_eps(0.2), format_eps(0.0313725)
        ('8/255', '0.2', '8/255')
    """
    steps = eps * 255
    if eps < 1 and float(f"{eps:.3g}") != eps and round(steps) and abs(steps - round(steps)) < 1e-3:
        return f"{round(steps)}/255"
    return f"{eps:g}"


def exact_eps(eps: float) -> str:
    """Format a radius for a command: the shortest text that is read as the same number.

    Args:
        eps: The radius.

    Examples:
        >>> exact_eps(8 / 255), exact_eps(0.0313725)
        ('8/255', '0.0313725')
    """
    short = format_eps(eps)
    numerator, _, denominator = short.partition("/")
    return short if float(numerator) / float(denominator or 1) == eps else repr(eps)
