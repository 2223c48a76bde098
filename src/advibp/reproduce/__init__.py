"""The paper's tables and figures, each by one command: what is missing is trained, what is there is reused.

made = reproduce("mnist-table", scale="tiny", out="runs/reproduce")
made.sections[0].rows
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from advibp.reproduce.carry_out import Work
from advibp.reproduce.making import Made, make
from advibp.reproduce.plans import PLANS
from advibp.reproduce.wanted import Ask

__all__ = ["PLANS", "Ask", "Made", "Work", "make", "reproduce"]


def reproduce(name: str, *, out: str | Path = "runs/reproduce", reuse: Sequence[str | Path] = (), **asked: Any) -> Made:
    """Make one of PLANS; `asked` are the fields of `Ask`: scale="tiny", models=("a",), seeds=(0, 1), ..."""
    folders = (Path(out), *map(Path, reuse))
    said = ", ".join([repr(name), *(f"{key}={value!r}" for key, value in asked.items())])
    return make(name, Work(Ask(folders=folders, command=f"advibp.reproduce.reproduce({said})", **asked)))
