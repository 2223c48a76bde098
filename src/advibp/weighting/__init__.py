"""Algorithm 1 and its rivals: weights for two objectives."""

from advibp.weighting.constant import Fixed, Memoryless, Scheduled
from advibp.weighting.flat_gradients import FlatGradients
from advibp.weighting.joint import combine, joint_backward
from advibp.weighting.moments import BETA1, BETA2, Branch, Moments, Weighting, Weights, compute_weights

__all__ = [
    "BETA1",
    "BETA2",
    "Branch",
    "Fixed",
    "FlatGradients",
    "Memoryless",
    "Moments",
    "Scheduled",
    "Weighting",
    "Weights",
    "combine",
    "compute_weights",
    "joint_backward",
]
