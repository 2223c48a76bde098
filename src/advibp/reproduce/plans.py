"""All plans by name."""

from __future__ import annotations

from advibp.errors import UserError
from advibp.reproduce.ablations import ABLATIONS
from advibp.reproduce.baseline import BASELINE_FIGURE
from advibp.reproduce.error_tables import CIFAR_TABLE, CNN_TABLE, MNIST_TABLE
from advibp.reproduce.gradient_cases import GRADIENT_CASES
from advibp.reproduce.layerwise import LAYERWISE_FIGURE
from advibp.reproduce.models_table import MODELS_TABLE
from advibp.reproduce.plan import Plan
from advibp.reproduce.post_verification import POST_VERIFICATION
from advibp.reproduce.theory import THEORY
from advibp.reproduce.training_time import TRAINING_TIME

PLANS: dict[str, Plan] = {
    "cifar-table": CIFAR_TABLE,
    "mnist-table": MNIST_TABLE,
    "models-table": MODELS_TABLE,
    "cnn-table": CNN_TABLE,
    "post-verification": POST_VERIFICATION,
    "training-time": TRAINING_TIME,
    "baseline-figure": BASELINE_FIGURE,
    "layerwise-figure": LAYERWISE_FIGURE,
    "gradient-cases": GRADIENT_CASES,
    "theory": THEORY,
    "ablations": ABLATIONS,
}


def plan_of(name: str) -> Plan:
    """Return a plan by its name."""
    if name not in PLANS:
        raise UserError(f"'{name}' is not a table or figure; choose from {', '.join(PLANS)}.")
    return PLANS[name]
