"""Plot the accuracies of a certificate, with confidence intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from advibp.display.optional_packages import optional
from advibp.errors import UserError
from advibp.verify.confidence import wilson

if TYPE_CHECKING:
    from advibp.verify.certificate_views import CertificateViews

#: Accuracy -> the error that it is the complement of, and its color.
_CURVES = {
    "standard": ("standard_error", "#444444"),
    "attack": ("attack_error", "#d55e00"),
    "certified": ("verified_error", "#009e73"),
}


def plot_accuracies(certificate: CertificateViews, ax: Any = None, confidence: float = 0.95) -> Any:
    """Plot standard, attack and certified accuracy over eps; see `Certificate.plot`."""
    if not certificate.records:
        raise UserError("The certificate has no records, so there is nothing to plot; certify at least one image.")
    if not 0 < confidence < 1:
        raise UserError(f"confidence is {confidence}, but must be between 0 and 1, such as 0.95.")
    pyplot = optional("matplotlib.pyplot", "cert.plot()")
    if ax is None:
        _, ax = pyplot.subplots(figsize=(5, 3.2), layout="constrained")
    radii = certificate.eps
    for number, (name, (error, color)) in enumerate(_CURVES.items()):
        shares, ends = [], []
        for eps in radii:
            total = certificate.counts(eps).total()
            right = round((1 - certificate.errors(eps)[error]) * total)
            shares.append(100 * right / total)
            ends.append([100 * end for end in wilson(right, total, confidence)])
        low, high = [e[0] for e in ends], [e[1] for e in ends]
        if len(radii) == 1:
            lengths = [[max(0.0, shares[0] - low[0])], [max(0.0, high[0] - shares[0])]]
            ax.bar([number], shares, color=color, width=0.6, yerr=lengths, capsize=4)
        else:
            ax.plot(radii, shares, color=color, marker="o", markersize=4, label=name)
            ax.fill_between(radii, low, high, color=color, alpha=0.15, linewidth=0)
    if len(radii) == 1:
        ax.set_xticks(range(len(_CURVES)), list(_CURVES))
        ax.set_title(f"{certificate.counts(radii[0]).total()} images, eps {radii[0]:g}", fontsize=10)
    else:
        ax.set_xlabel("eps")
        ax.legend()
    ax.set_ylabel("accuracy [%]")
    ax.set_ylim(0, 103)
    ax.grid(alpha=0.3)
    return ax
