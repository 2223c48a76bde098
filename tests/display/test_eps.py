"""Radii as a person reads them."""

from __future__ import annotations

import pytest

from advibp.display.eps import exact_eps, format_eps
from advibp.parsers import number


@pytest.mark.parametrize(
    ("eps", "text"),
    [(0.3, "0.3"), (8 / 255, "8/255"), (0.0313725, "8/255"), (2.2 / 255, "0.00862745"), (0.0123, "0.0123"), (1.0, "1")],
)
def test_eps_is_formatted(eps: float, text: str) -> None:
    assert format_eps(eps) == text


def test_a_command_has_the_exact_number() -> None:
    for eps in [*(k / 255 for k in range(1, 256)), 0.0313725, 0.1, 0.1 + 1e-16, 0.123456789]:
        assert number(0, 1)(exact_eps(eps)) == eps
    assert exact_eps(8 / 255) == "8/255"
