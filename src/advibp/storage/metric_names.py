"""Names of training metrics, and their names in release 0.1, which old run folders have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OLD_NAMES = {
    "loss_adv": "loss_lower",
    "loss_ibp": "loss_upper",
    "kappa_adv": "kappa_lower",
    "kappa_ibp": "kappa_upper",
    "branch_adv": "branch_lower",
    "branch_ibp": "branch_upper",
    "adv": "lower",
    "ibp": "upper",
}


def with_current_names(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics, or the counts of branches, under their current names."""
    return {OLD_NAMES.get(name, name): value for name, value in metrics.items()}
