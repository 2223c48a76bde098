"""The keys of a recipe by topic, for the help of the commands and for the documentation."""

from __future__ import annotations

from typing import Any

#: Topic -> keys. A test checks that every key has one topic.
KEY_GROUPS: dict[str, tuple[str, ...]] = {
    title: tuple(keys.split())
    for title, keys in {
        "Task": "data net method eps seed",
        "Phases": "epochs extended warmup_natural warmup_adversarial warmup_adversarial_ramp ramp ramp_shape",
        "Weights of the two losses": "weighting kappa beta1 beta2 scope c_max c_extra c_decay fosc_scale fosc_set",
        "Keys of single methods": "attack_steps beta domain symbols regularizer projections",
        "Optimizer": "batch_size lr lr_shape lr_milestones lr_factor clip l1 max_loss",
        "Layer-wise stages": "stages stage_epochs stage_lr stage_lr_milestones",
        "Network": "weights init normalize batchnorm",
        "Images": "data_root size flip crop limit validation select",
        "Machine": "threads device at_once recompute",
        "Comparison": "published",
    }.items()
}


def option_text(value: Any) -> str:
    """Return the value of a recipe key in the form of a command-line option."""
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
