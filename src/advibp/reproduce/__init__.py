"""Reproduce the tables and figures of the paper. Missing runs are trained, existing runs are reused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from advibp.reproduce.carry_out import Work
from advibp.reproduce.making import Made, make
from advibp.reproduce.plans import PLANS
from advibp.reproduce.run_specs import Ask

__all__ = ["PLANS", "Ask", "Made", "Work", "make", "reproduce"]


def reproduce(
    name: str, *, out: str | Path = "runs/reproduce", reuse: Sequence[str | Path] = (), **options: Any
) -> Made:
    """Reproduce a table or figure of the paper.

    Args:
        name: a key of `PLANS`, such as "mnist-table".
        out: folder of runs and tables.
        reuse: folders of runs that may be used instead of training.
        options: fields of `Ask`: scale="tiny", models=("a",), seeds=(0, 1), ...

    Returns:
        The tables and charts, and the files that were written.

    Examples:
        ```python
        made = reproduce("mnist-table", scale="tiny", out="runs/reproduce")
        print(made.sections[0].rows)
        ```
    """
    folders = (Path(out), *map(Path, reuse))
    arguments = ", ".join([repr(name), *(f"{key}={value!r}" for key, value in options.items())])
    return make(name, Work(Ask(folders=folders, command=f"advibp.reproduce.reproduce({arguments})", **options)))
