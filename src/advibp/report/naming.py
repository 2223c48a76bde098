"""Names of runs that are shown together."""

from __future__ import annotations

from collections.abc import Sequence

from advibp.display.terminal import printable
from advibp.errors import UserError
from advibp.runs.run_files import RunFiles


def names_of(runs: Sequence[RunFiles]) -> list[str]:
    """The names of the folders, with as many parents as needed to distinguish them."""
    paths = [run.path.resolve() for run in runs]
    for path in paths:
        if paths.count(path) > 1:
            raise UserError(f"{path} is given twice; give each run once.")
    for parts in range(1, max((len(path.parts) for path in paths), default=0)):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return [printable(name) for name in names]
    return [printable(str(path)) for path in paths]
