"""Plots of a certificate show its accuracies."""

from __future__ import annotations

import sys

import matplotlib as mpl
import pytest
import torch

import advibp
from advibp.errors import UserError
from advibp.verify.records import Certificate

mpl.use("Agg")


def certificate(eps: float | list[float]) -> Certificate:
    net = advibp.nets.build("FC 4", input_shape=(1, 2, 2), classes=3, seed=0)
    x = torch.rand(6, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    return advibp.certify(net, x, net(x).argmax(1), eps)


def test_curves_have_the_accuracies() -> None:
    cert = certificate([0.001, 0.1, 0.5])
    ax = cert.plot()
    assert [line.get_label() for line in ax.lines] == ["standard", "attack", "certified"]
    proved = [100 * (1 - cert.errors(eps)["verified_error"]) for eps in cert.eps]
    assert list(ax.lines[2].get_ydata()) == pytest.approx(proved)
    assert list(ax.lines[2].get_xdata()) == cert.eps


def test_one_eps_gives_bars_on_given_axes() -> None:
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    assert certificate(0.001).plot(ax) is ax
    assert [bar.get_height() for bar in ax.patches] == [100, 100, 100]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["standard", "attack", "certified"]


def test_bad_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="nothing to plot"):
        Certificate([]).plot()
    cert = certificate(0.001)
    with pytest.raises(UserError, match="confidence is 95, but must be between 0 and 1"):
        cert.plot(confidence=95)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(UserError, match=r"cert.plot\(\) needs matplotlib, which is not installed"):
        cert.plot()
