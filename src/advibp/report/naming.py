"""What runs are called where several are shown."""

from __future__ import annotations

from collections.abc import Sequence

from advibp.display.terminal import printable
from advibp.errors import UserError
from advibp.runs.run_files import RunFiles


def names_of(runs: Sequence[RunFiles]) -> list[str]:
    """The folders' own names, or as much of their paths as tells them apart."""
    paths = [run.path.resolve() for run in runs]
    for path in paths:
        if paths.count(path) > 1:
            raise UserError(f"{path} is given twice; name runs that differ.")
    for parts in range(1, max((len(path.parts) for path in paths), default=0)):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return [printable(name) for name in names]
    return [printable(str(path)) for path in paths]
