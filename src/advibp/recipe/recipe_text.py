"""Recipe keys as text: their topics for help and documentation, and their values as options and as YAML."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from advibp.display.eps import exact_eps

#: Topic -> keys. A test checks that every key has one topic.
KEY_GROUPS: dict[str, tuple[str, ...]] = {
    title: tuple(keys.split())
    for title, keys in {
        "Task": "data net method eps eps_scale input_range train_eps_factor seed",
        "Phases": "epochs extended warmup_natural warmup_adversarial warmup_adversarial_ramp ramp ramp_shape",
        "Weights of the two losses": "weighting kappa beta1 beta2 scope c_max c_extra c_decay fosc_scale fosc_set",
        "Keys of single methods": "attack_steps attack_restarts attack_eps_factor alpha sabr_lambda relu_shrink "
        "taps_layers taps_weight beta loss_fusion domain symbols regularizer projections",
        "Terms beside the losses of the method": "clean_share shi l1",
        "Optimizer": "optimizer weight_decay batch_size lr lr_shape lr_milestones lr_milestones_from lr_factor clip "
        "swa_start swa_every max_loss",
        "Layer-wise stages": "stages stage_epochs stage_lr stage_lr_milestones",
        "Network": "weights init normalize batchnorm batchnorm_evaluation",
        "Images": "data_root label size flip crop crop_padding limit validation select",
        "Machine": "threads device at_once recompute compile",
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


def as_yaml(value: Any) -> str:
    """Return a value as JSON, which YAML can read, with the characters escaped that YAML forbids."""
    plain = json.dumps(value, ensure_ascii=False)
    return re.sub("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]", lambda c: f"\\u{ord(c[0]):04x}", plain)


def as_option(key: str, value: Any) -> str:
    """Return a key as an option of the command line."""
    name = key.replace("_", "-")
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {exact_eps(value) if key == 'eps' else shown_value(value)}"


def shown_value(value: Any) -> str:
    """Return a value as a word of the command line, which is read as the same value."""
    if isinstance(value, dict):
        pairs = (
            (name, ":".join(map(shown_value, each)) if isinstance(each, list) else each) for name, each in value.items()
        )
        return shlex.quote(
            ",".join(f"{name}={each if isinstance(each, str) else shown_value(each)}" for name, each in pairs)
        )
    if isinstance(value, tuple | list):
        return shlex.quote(",".join(map(shown_value, value)))
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return "none" if value is None else shlex.quote(str(value))
