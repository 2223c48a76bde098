"""A finished training: network, recipe and metrics."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from advibp.display.object_summary import Summarized
from advibp.moved import RenamedKeys
from advibp.recipe import Recipe
from advibp.runs.run_plot import plot_history
from advibp.storage.metric_names import OLD_NAMES


@dataclass(frozen=True, repr=False)
class Run(Summarized):
    """A finished training, returned by `train` and `open_run`.

    Attributes:
        net: the trained network. `open_run` returns it in evaluation mode.
        recipe: all options of the run.
        history: metrics of each epoch, as in metrics.jsonl: losses, weights, errors on the validation images as
            fractions, seconds.
        summary: contents of summary.json: command, seconds, number of parameters, validation errors, hardware.
        path: the run's folder; None if `train` was called without `out`.

    Examples:
        >>> import torch, advibp
        >>> x, y = torch.rand(60, 1, 2, 2), torch.arange(60) % 2
        >>> data = advibp.data.from_tensors(x, y, x, y, validation=10)
        >>> net = advibp.nets.build("FC 4", input_shape=(1, 2, 2), classes=2, seed=0)
        >>> options = dict(eps=0.1, method="standard", epochs=1, batch_size=10)
        >>> run = advibp.train(net, data, out="runs/first", **options)
        >>> run = advibp.open_run("runs/first", net)
        >>> run.recipe.eps, len(run.history), run.net(x).shape
        (0.1, 1, torch.Size([60, 2]))
    """

    net: nn.Module
    recipe: Recipe
    history: list[dict[str, Any]]
    summary: dict[str, Any]
    path: Path | None

    def __iter__(self) -> Iterator[Any]:
        """Deprecated: `open_run` returned the pair (net, recipe)."""
        return iter(self._as_pair())

    def __getitem__(self, index: int | slice) -> Any:
        """Deprecated: `open_run` returned the pair (net, recipe)."""
        return self._as_pair()[index]

    def _as_pair(self) -> tuple[nn.Module, Recipe]:
        warnings.warn(
            "open_run returns a Run; use run.net and run.recipe instead of unpacking it.",
            DeprecationWarning,
            stacklevel=3,
        )
        return self.net, self.recipe

    def __post_init__(self) -> None:
        object.__setattr__(self, "history", [RenamedKeys(metrics, OLD_NAMES) for metrics in self.history])

    def _summary(self) -> dict[str, object]:
        recipe = self.recipe
        facts: dict[str, object] = {"method": recipe.method, "data": recipe.data, "net": recipe.net, "eps": recipe.eps}
        facts["epochs"] = self.history[-1]["epoch"] if self.history else 0
        validation = self.summary.get("validation") or {}
        for key in ("standard_error", "verified_error"):
            if isinstance(validation.get(key), int | float):
                facts[key] = f"{100 * validation[key]:.2f} %"
        return {**facts, "path": None if self.path is None else str(self.path)}

    def plot(self) -> Any:
        """Plot losses, errors on the validation images, eps, and the shares of the weighting's branches over epochs.

        A panel without numbers is left out: a method with one loss has no branches.

        Returns:
            The matplotlib Figure.

        Raises:
            UserError: matplotlib is not installed, or the run has no epochs.

        Examples:
            ```python
            run = advibp.open_run("runs/first")
            run.plot().savefig("training.png")
            ```
        """
        return plot_history(self.history)
