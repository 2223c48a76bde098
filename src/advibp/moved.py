"""Old module names. They work for one release and warn."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

#: Modules that the documentation of release 0.1 named, and where they are now.
MOVED = {
    "advibp.apgd": "advibp.attacks.auto_pgd",
    "advibp.bounds.alpha": "advibp.bounds.linear.alpha_crown",
    "advibp.bounds.cut": "advibp.bounds.graph.cut",
    "advibp.bounds.dispatch": "advibp.bounds.domain",
    "advibp.bounds.tape": "advibp.bounds.graph.tape",
    "advibp.onnx": "advibp.vnncomp.onnx",
    "advibp.regularised": "advibp.objectives.regularizers",
    "advibp.report.reading": "advibp.runs.run_files",
    "advibp.surgery": "advibp.weighting.surgery",
    "advibp.sweep": "advibp.runs.sweep",
    "advibp.verify.property": "advibp.vnncomp.properties",
    "advibp.verify.vnnlib": "advibp.vnncomp.vnnlib.vnnlib_file",
    "advibp.weights": "advibp.storage.weights",
}


class _OldNames(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        new = MOVED[module.__name__]
        warnings.warn(f"{module.__name__} is now {new}; import that.", DeprecationWarning, stacklevel=2)
        names = vars(importlib.import_module(new))
        vars(module).update({name: value for name, value in names.items() if not name.startswith("__")})


def install() -> None:
    """Let old names be imported."""
    if not any(isinstance(finder, _OldNames) for finder in sys.meta_path):
        sys.meta_path.append(_OldNames())
