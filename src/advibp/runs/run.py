"""A finished training: network, recipe and metrics."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from advibp.bounds import Perturbation
from advibp.data import Data, Split, as_images
from advibp.data.features import check_features, radii_of_features
from advibp.data.user_data import Images
from advibp.display.object_summary import Summarized
from advibp.errors import UserError
from advibp.execution.modes import preserve_modes
from advibp.moved import RenamedKeys
from advibp.recipe import Recipe
from advibp.runs.run_files import set_suffix
from advibp.runs.run_plot import plot_history
from advibp.runs.run_sources import load_run_data
from advibp.storage.metric_names import OLD_NAMES
from advibp.verify import Attack, Certificate, CollapseWarning, Predictor, certify
from advibp.verify.argument_checks import check_eps
from advibp.verify.attack_all import Attacks, attack_all


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
        facts: input_shape and classes of the network, and what is known: class_names, feature_names, perturbation.
        data: the data set of the training; None if the run was opened from its folder.

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
    facts: dict[str, Any] = field(default_factory=dict)
    data: Data | None = None

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

    def certify(self, eps: Any = None, *, data: Any = None, limit: int | None = None, **options: Any) -> Certificate:
        """Certify the network on the test images of the run.

        The records are kept in the run's folder, where the report reads them, if these images are used.

        Args:
            eps: one radius or several, or a radius for each feature by name. Default: the run's eps.
            data: other images with labels, as in `advibp.certify`. Default: the test images of the run, which are
                loaded if the run was opened from its folder.
            limit: use only the first images. Default: all.
            options: as for `advibp.certify`: by, arithmetic, attack, budget, sample, workers, out, seed.

        Returns:
            The certificate.

        Raises:
            UserError: an argument is wrong, or the images of the run are not known.

        Examples:
            ```python
            run = advibp.open_run("runs/first")
            print(run.certify(eps=0.1, limit=100).table())
            ```
        """
        images = self._images(data, limit)
        eps, around = self._radii(eps)
        if data is None and self.path is not None:
            options = {"out": self.path / f"certify{set_suffix(self.perturbation, around)}", **options}
        return certify(self.net, images, eps, **{"perturbation": around, **options})

    def attack(
        self,
        eps: Any = None,
        *,
        data: Any = None,
        limit: int | None = None,
        attack: Attack | None = None,
        seed: int = 0,
    ) -> Attacks:
        """Attack the test images of the run.

        Args:
            eps: the radius, or a mapping from names of features to radii. Default: the run's eps.
            data: other images with labels, as in `certify`. Default: the test images of the run.
            limit: use only the first images. Default: all.
            attack: the attack. Default: PGD with 200 steps.
            seed: seed of the random starts.

        Returns:
            x_adv (N, C, H, W), and which images are misclassified (`wrong`) and broken (`broken`), both (N,).

        Raises:
            UserError: an argument is wrong, or the images of the run are not known.

        Examples:
            ```python
            result = advibp.open_run("runs/first").attack(eps=0.1, limit=100)
            print(result.broken.float().mean())
            ```
        """
        images, (eps, around) = self._images(data, limit), self._radii(eps)
        radius = check_eps(eps, 1.0 if around.is_pixels else math.inf)
        with preserve_modes(self.net):
            return attack_all(self.net.eval(), images, radius, attack or Attack(), seed=seed, perturbation=around)

    def _images(self, data: Any, limit: int | None) -> Images:
        """Return the given images, or the test images of the run."""
        if data is None and self.data is None:
            if self.path is None:
                raise UserError("The run has no folder, so its images are not known; give data.")
            data = load_run_data(self.path, self.recipe)[0]
        images = as_images(self.data if data is None else data)
        check_features(self.facts.get("feature_names"), getattr(images, "feature_names", None), "data")
        if limit is None:
            return images
        x, y = images.batch(torch.arange(min(limit, len(images))))
        described = {name: getattr(images, name) for name in ("input_range", "feature_names") if hasattr(images, name)}
        return Split(x, y, **described)

    def predictor(self, **options: Any) -> Predictor:
        """Return an object that classifies images with certificates, prepared for many calls.

        A network that collapsed in training gives a `CollapseWarning`.

        Args:
            options: as for `advibp.Predictor`: eps, radius, by, arithmetic, tolerance, fast.

        Raises:
            UserError: an option is wrong, or the network can't be certified.

        Examples:
            ```python
            predictor = advibp.open_run("runs/first").predictor(eps=0.1, fast=True)
            prediction = predictor(image)
            ```
        """
        for message in self.summary.get("warnings") or []:
            warnings.warn(str(message), CollapseWarning, stacklevel=2)
        names = {"class_names": self.facts.get("class_names"), "input_shape": self.facts.get("input_shape")}
        around = self._around(options.get("eps"))
        known = {**names, "perturbation": around, "feature_names": self.facts.get("feature_names")}
        known["most"] = None if around.widest() < math.inf else 10 * self.recipe.eps
        return Predictor(self.net, **{**known, **options})

    def _radii(self, eps: Any) -> tuple[Any, Perturbation]:
        """Return eps, or the run's eps, and the set. Radii by name become the largest one and a scale."""
        around = self._around(eps)
        if not isinstance(eps, Mapping):
            return (self.recipe.eps if eps is None else eps), around
        return Perturbation.from_radii(radii_of_features(eps, self.facts.get("feature_names")), around.low, around.high)

    def _around(self, eps: Any) -> Perturbation:
        """The set of the training; without its scale if eps names features, because it then has a scale of its own."""
        around = self.perturbation
        return Perturbation(around.low, around.high) if isinstance(eps, Mapping) else around

    @property
    def perturbation(self) -> Perturbation:
        """Range of the inputs, and scale of each feature's radius, with which the network was trained."""
        return Perturbation(**self.facts.get("perturbation", {}))

    def predict(self, x: Any, **options: Any) -> Any:
        """Classify images, and prove their classes. See `advibp.predict`.

        Args:
            x: one image (C, H, W) or a batch (B, C, H, W): a tensor or an array, floating point in [0, 1], or uint8.
            options: as for `advibp.Predictor`: eps, radius, by, arithmetic, tolerance.

        Returns:
            A `Prediction` for one image, a list of them for a batch.

        Raises:
            UserError: an argument is wrong, or the network can't be certified.

        Examples:
            ```python
            run = advibp.open_run("runs/first")
            print(run.predict(image, eps=0.1).certified)
            ```
        """
        return self.predictor(**options)(x)

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
