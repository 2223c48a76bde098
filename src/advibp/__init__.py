"""advibp trains neural networks whose robustness can be proved, and proves it."""

from advibp import attacks, bounds, data, moved, nets, objectives, vnncomp
from advibp.bounds import Box
from advibp.errors import UserError
from advibp.execution.allocator import keep_freed_memory
from advibp.methods import Method
from advibp.recipe import Recipe
from advibp.runs import Run, open_run, train
from advibp.verify import Attack, Certificate, certify
from advibp.version import __version__
from advibp.weighting import Fixed, Moments, joint_backward

__all__ = [
    "Attack",
    "Box",
    "Certificate",
    "Fixed",
    "Method",
    "Moments",
    "Recipe",
    "Run",
    "UserError",
    "__version__",
    "attacks",
    "bounds",
    "certify",
    "data",
    "joint_backward",
    "keep_freed_memory",
    "nets",
    "objectives",
    "open_run",
    "train",
    "vnncomp",
]

moved.install()
