"""advibp trains neural networks whose robustness can be proved, and proves it.

Names are imported on first use, so that commands that need no torch, such as `advibp --help`, start quickly.
"""

import importlib
from typing import TYPE_CHECKING, Any

from advibp import moved
from advibp.errors import UserError
from advibp.execution.allocator import keep_freed_memory
from advibp.version import __version__

if TYPE_CHECKING:
    from advibp import attacks, bounds, callbacks, data, nets, objectives, vnncomp, weighting
    from advibp.bounds import Box, Perturbation, Zonotope
    from advibp.cli.run_page import write_report
    from advibp.methods import METHODS, Method
    from advibp.recipe import Recipe
    from advibp.runs import Run, open_run, train
    from advibp.runs.run_files import read_run
    from advibp.runs.training_display import Silent
    from advibp.runs.tuning import TuneOptions, Tuning, tune
    from advibp.storage.weights import load_weights
    from advibp.verify import (
        Attack,
        Certificate,
        CollapseWarning,
        Prediction,
        Predictor,
        certify,
        largest_proved_eps,
        predict,
        smallest_broken_eps,
    )
    from advibp.weighting import Fixed, Moments, joint_backward

__all__ = [
    "METHODS",
    "Attack",
    "Box",
    "Certificate",
    "CollapseWarning",
    "Fixed",
    "Method",
    "Moments",
    "Perturbation",
    "Prediction",
    "Predictor",
    "Recipe",
    "Run",
    "Silent",
    "TuneOptions",
    "Tuning",
    "UserError",
    "Zonotope",
    "__version__",
    "attacks",
    "bounds",
    "callbacks",
    "certify",
    "data",
    "joint_backward",
    "keep_freed_memory",
    "largest_proved_eps",
    "load_weights",
    "nets",
    "objectives",
    "open_run",
    "predict",
    "read_run",
    "smallest_broken_eps",
    "train",
    "tune",
    "vnncomp",
    "weighting",
    "write_report",
]

#: Subpackages and modules that are attributes of the package.
_MODULES = frozenset(
    {
        *("attacks", "bounds", "callbacks", "data", "display", "methods", "nets", "objectives", "parsers", "recipe"),
        *("report", "reproduce", "runs", "schedules", "storage", "training", "user_code", "verify", "vnncomp"),
        "weighting",
    }
)
#: Module -> names that are imported from it.
_NAMES = {
    "advibp.bounds": "Box Perturbation Zonotope",
    "advibp.methods": "METHODS Method",
    "advibp.recipe": "Recipe",
    "advibp.cli.run_page": "write_report",
    "advibp.runs": "Run open_run train",
    "advibp.runs.run_files": "read_run",
    "advibp.runs.training_display": "Silent",
    "advibp.runs.tuning": "TuneOptions Tuning tune",
    "advibp.storage.weights": "load_weights",
    "advibp.verify": "Attack Certificate CollapseWarning Prediction Predictor certify largest_proved_eps predict "
    "smallest_broken_eps",
    "advibp.weighting": "Fixed Moments joint_backward",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}

moved.install()


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"advibp.{name}")
    if name in _MODULE_OF:
        value = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
        return value
    raise AttributeError(f"module 'advibp' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_MODULE_OF})
