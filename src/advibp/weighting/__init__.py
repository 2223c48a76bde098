"""Weights of two losses: Algorithm 1, and the rules it is compared with."""

from advibp.moved import renamed
from advibp.weighting.constant import BaseWeighting, Fixed, Scheduled
from advibp.weighting.flat_gradients import FlatGradients
from advibp.weighting.joint import combine, joint_backward
from advibp.weighting.moments import BETA1, BETA2, Branch, Moments, Weighting, Weights, compute_weights, with_state_dict

__all__ = [
    "BETA1",
    "BETA2",
    "BaseWeighting",
    "Branch",
    "Fixed",
    "FlatGradients",
    "Moments",
    "Scheduled",
    "Weighting",
    "Weights",
    "combine",
    "compute_weights",
    "joint_backward",
    "with_state_dict",
]

__getattr__ = renamed(__name__, {"Memoryless": "BaseWeighting"})
