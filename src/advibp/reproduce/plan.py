"""A table or figure of the paper as data: the runs it takes, and what is made of them.

A new one is a module with a `Plan`, and a line in `plans.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from advibp.errors import UserError
from advibp.report.sections import Section
from advibp.reproduce.carry_out import Measured
from advibp.reproduce.wanted import Ask, Wanted


@dataclass(frozen=True, kw_only=True)
class Plan:
    says: str  # for the list of names
    wanted: Callable[[Ask], list[Wanted]]
    sections: Callable[[Ask, list[Measured]], list[Section]]  # one Measured for each Wanted, in the same order
    narrowed_by: tuple[str, ...] = ("models", "eps", "methods", "seeds", "data")  # what else is asked for is refused

    def check(self, name: str, ask: Ask) -> None:
        for key in ("models", "eps", "methods", "seeds", "data"):
            if getattr(ask, key) and key not in self.narrowed_by:
                option = {"models": "model"}.get(key, key)
                raise UserError(f"{name} has no choice of {key}; leave --{option} out.")
