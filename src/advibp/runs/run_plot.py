"""Plot the metrics of a training over its epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from advibp.display.optional_packages import optional
from advibp.errors import UserError

#: Panels: title, and for each metric its label and color. A panel without numbers is left out.
_PANELS: dict[str, dict[str, tuple[str, str]]] = {
    "loss": {"loss_lower": ("lower", "#0072b2"), "loss_upper": ("upper", "#d55e00")},
    "error on validation images [%]": {
        "standard_error": ("standard", "#444444"),
        "verified_error": ("verified (IBP)", "#009e73"),
    },
    "eps": {"eps": ("eps", "#444444")},
    "share of the steps [%]": {
        "branch_agree": ("agree", "#009e73"),
        "branch_lower": ("lower", "#0072b2"),
        "branch_upper": ("upper", "#d55e00"),
        "branch_conflict": ("conflict", "#cc79a7"),
    },
}


def plot_history(history: Sequence[Mapping[str, Any]]) -> Any:
    """Plot losses, errors, eps and branch shares over the epochs; see `Run.plot`."""
    if not history:
        raise UserError("The run has no epochs, so there is nothing to plot; train it for at least one epoch.")
    pyplot = optional("matplotlib.pyplot", "run.plot()")
    known = {key for metrics in history for key in metrics}
    panels = {title: lines for title, lines in _PANELS.items() if known & lines.keys()}
    figure, axes = pyplot.subplots(1, len(panels), figsize=(3.2 * len(panels), 2.8), layout="constrained")
    for ax, (title, lines) in zip([axes] if len(panels) == 1 else axes, panels.items(), strict=True):
        for key, (label, color) in lines.items():
            points = [(m["epoch"], m[key]) for m in history if key in m]
            if points:
                scale = 100 if "%" in title else 1
                marker = "o" if len(points) == 1 else None
                ax.plot([e for e, _ in points], [scale * v for _, v in points], color=color, label=label, marker=marker)
        ax.set_title(title, fontsize=10)
        ax.set_xlabel("epoch")
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.grid(alpha=0.3)
        if len(lines) > 1:
            ax.legend(fontsize=8)
    return figure
