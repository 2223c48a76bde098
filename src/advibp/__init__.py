"""advibp trains neural networks whose robustness can be proved, and proves it.

`advibp.report` and `advibp.reproduce` are imported on first use.
"""

import importlib
from typing import Any

from advibp import attacks, bounds, callbacks, data, moved, nets, objectives, vnncomp, weighting
from advibp.bounds import Box, Perturbation, Zonotope
from advibp.errors import UserError
from advibp.execution.allocator import keep_freed_memory
from advibp.methods import METHODS, Method
from advibp.recipe import Recipe
from advibp.runs import Run, open_run, train
from advibp.runs.run_files import read_run
from advibp.runs.training_display import Silent
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
from advibp.version import __version__
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
    "vnncomp",
    "weighting",
]

moved.install()


def __getattr__(name: str) -> Any:
    if name in ("report", "reproduce"):
        return importlib.import_module(f"advibp.{name}")
    raise AttributeError(f"module 'advibp' has no attribute '{name}'")
