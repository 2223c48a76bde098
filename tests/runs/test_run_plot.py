"""The plot and the repr of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
import torch

import advibp
from advibp.errors import UserError

mpl.use("Agg")


def trained(out: Path | None = None, **options: Any) -> advibp.Run:
    x, y = torch.rand(60, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
    data = advibp.data.from_tensors(x, y, x, y, validation=10)
    net = advibp.nets.build("FC 4", input_shape=(1, 4, 4), classes=2, seed=0)
    options = {"eps": 0.1, "epochs": 3, "batch_size": 10, **options}
    return advibp.train(net, data, out=out, show=advibp.Silent(), **options)


def test_a_method_with_two_losses_has_all_panels() -> None:
    figure = trained(warmup_natural=0.5, warmup_adversarial=0.5, ramp=1).plot()
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["loss", "error on validation images [%]", "eps", "share of the steps [%]"]
    assert len(figure.axes[1].lines[0].get_xdata()) == 3


def test_a_method_with_one_loss_has_no_branches(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", method="standard")
    assert len(run.plot().axes) == 3
    assert len(advibp.open_run(tmp_path / "run", run.net).plot().axes) == 3


def test_a_run_without_epochs_is_refused() -> None:
    run = trained(method="standard")
    with pytest.raises(UserError, match="no epochs"):
        advibp.Run(run.net, run.recipe, [], {}, None).plot()


def test_repr_is_short_and_unpacking_still_works() -> None:
    run = trained(method="standard")
    assert repr(run).startswith("Run(method='standard', data=")
    assert "epochs=3, standard_error='" in repr(run)
    assert len(repr(run)) < 300
    assert "<table>" in run._repr_html_()
    with pytest.warns(DeprecationWarning, match="use run.net and run.recipe"):
        net, recipe = run
    assert (net, recipe) == (run.net, run.recipe)
