"""Plan: a table or figure of the paper as data.

To add one, write a module with a `Plan` and a line in `plans.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from advibp.errors import UserError
from advibp.report.sections import Section
from advibp.reproduce.carry_out import Measured
from advibp.reproduce.run_specs import Ask, RunSpec


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A table or figure of the paper.

    Attributes:
        description: text for the list of plans.
        specs: returns the runs that the plan needs.
        sections: computes tables and charts from the measured runs, which are in the order of `specs`.
        narrowed_by: fields of `Ask` that the plan supports; others raise a UserError.
    """

    description: str
    specs: Callable[[Ask], list[RunSpec]]
    sections: Callable[[Ask, list[Measured]], list[Section]]
    narrowed_by: tuple[str, ...] = ("models", "eps", "methods", "seeds", "data")

    def check(self, name: str, ask: Ask) -> None:
        """Raise a UserError if an option is not supported."""
        for key in ("models", "eps", "methods", "seeds", "data"):
            if getattr(ask, key) and key not in self.narrowed_by:
                option = {"models": "model"}.get(key, key)
                raise UserError(f"{name} does not support a choice of {key}; leave --{option} out.")
