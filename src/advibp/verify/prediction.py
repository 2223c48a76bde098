"""Classify images with a certificate: the class, whether it is proved at eps, and the largest eps that is proved."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from advibp.bounds import Box, Perturbation
from advibp.bounds.labels import smallest_margin
from advibp.bounds.perturbation import PIXELS
from advibp.bounds.rounded import Rounded
from advibp.data.features import radii_of_features
from advibp.errors import UserError
from advibp.execution.modes import preserve_modes
from advibp.execution.own_copy import run_on_copy
from advibp.verify.argument_checks import check_eps, check_net, is_finite, named, shortened
from advibp.verify.certification import arithmetic_of, check_range
from advibp.verify.collapse import CollapseWarning, constant_message
from advibp.verify.precision import check_types, full_precision
from advibp.verify.prediction_inputs import check_autocast, image_shape, list_names, plain_array
from advibp.verify.radius import per_image, proved_images
from advibp.verify.radius_search import FIRST_RADII, search_radii
from advibp.verify.recorded_bounds import Program, record
from advibp.verify.selftest import check_function, spread_over
from advibp.verify.verifiers import bounding_verifiers, check_arithmetic, in_order

USAGE = "predict(net, x, eps=0.1)"

#: Images of a batch that are bounded together.
TOGETHER = 100


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The class of one image, and what is proved about it.

    Attributes:
        index: The predicted class; -1 if the logits are not finite.
        name: Name of the class; its number if the names are not known.
        score: Softmax of the class, from 0 to 1.
        eps: The eps at which the class was to be proved; None if none was given.
        certified: Whether the class is proved for every change of up to `eps` per pixel, or of up to `eps` times its
            scale per feature; None without `eps`.
        radius: Largest eps that was proved, up to the tolerance of the search; None if it was not asked for.
        arithmetic: What the proof covers: "float32", "float64" or "real".

    Examples:
        >>> from advibp.verify import Prediction
        >>> proof = dict(eps=0.1, certified=False, radius=None, arithmetic="float32")
        >>> Prediction(index=3, name="3", score=0.9, **proof).abstains
        True
    """

    index: int
    name: str
    score: float
    eps: float | None
    certified: bool | None
    radius: float | None
    arithmetic: str

    @property
    def abstains(self) -> bool:
        """Whether the class should not be used: it is not proved at `eps`, or not at any eps."""
        return self.index < 0 or not (self.radius if self.certified is None else self.certified)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON: class, name, score, eps, certified, abstains, radius, arithmetic."""
        return {
            "class": self.index,
            "name": self.name,
            "score": round(self.score, 6),
            "eps": self.eps,
            "certified": self.certified,
            "abstains": self.abstains,
            "radius": self.radius,
            "arithmetic": self.arithmetic,
        }


class Predictor:
    """Classifies images with certificates. It prepares a network once, and is then called for one image or many.

    The predictor keeps its own copy of the network, so that later changes of `net` have no effect. The same predictor
    may be used by several threads.

    Args:
        net: The network. It is used in evaluation mode and is not changed.
        eps: Prove the class at this eps, a number, in (0, 1] for images, or a text such as "8/255"; or a radius for
            each feature by name. Default: None.
        radius: Also find the largest eps that is proved. Default: only if `eps` is None.
        by: Names of verifiers that are not searches. Default: IBP.
        arithmetic: What the proofs cover, as in `certify`. Default: every evaluation in the network's own type.
        class_names: Names of the classes. Default: their numbers.
        input_shape: Shape of one image. Default: None; then images are (C, H, W) or (F,), and batches have one more
            dimension.
        tolerance: The search for the radius stops when a radius that is larger by this share of itself is not proved.
            Default: 1e-3, for three digits.
        fast: Record the IBP pass of single images as a program, which takes a few seconds and makes later calls several
            times faster. The results are the same. Needs `input_shape`. Default: False.
        perturbation: Range of the inputs, and scale of each feature's radius. Default: those of images in [0, 1].
        feature_names: Names of the features, for an `eps` by name.
        most: Radii are searched up to this eps. Default: the eps at which the set is the whole range, which is 1 for
            images; 1 if a feature has no limit.

    Raises:
        UserError: If an argument is wrong, or the network can't be certified.

    Examples:
        >>> import torch, advibp
        >>> net = advibp.nets.build("FC 4", input_shape=(1, 2, 2), classes=3, seed=0)
        >>> predictor = advibp.Predictor(net, eps=0.001, class_names=["a", "b", "c"])
        >>> one = predictor(torch.full((1, 2, 2), 0.5))
        >>> one.name in "abc", one.certified, one.radius
        (True, True, None)
        >>> len(predictor(torch.rand(5, 1, 2, 2)))
        5
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        eps: float | str | Mapping[str, float | str] | None = None,
        radius: bool | None = None,
        by: str | Sequence[str] = ("ibp",),
        arithmetic: str | None = None,
        class_names: Sequence[str] | None = None,
        input_shape: Sequence[int] | None = None,
        tolerance: float = 1e-3,
        fast: bool = False,
        perturbation: Perturbation | None = None,
        feature_names: Sequence[str] | None = None,
        most: float | None = None,
    ) -> None:
        check_net(net, None, USAGE)
        perturbation = PIXELS if perturbation is None else perturbation
        if not isinstance(perturbation, Perturbation):
            raise UserError(f"perturbation is {shortened(perturbation)}, but must be an advibp.Perturbation.")
        if isinstance(eps, Mapping):
            if perturbation.scale is not None:
                raise UserError("eps by name and perturbation both give a radius per feature; give one of them.")
            radii = radii_of_features(eps, list_names("feature_names", feature_names))
            eps, perturbation = Perturbation.from_radii(radii, perturbation.low, perturbation.high)
        self.eps = None if eps is None else check_eps(eps, 1.0 if perturbation.is_pixels else math.inf)
        if radius is not None and not isinstance(radius, bool):
            raise UserError(f"radius is {shortened(radius)}, but must be True, False or None.")
        if not isinstance(fast, bool):
            raise UserError(f"fast is {shortened(fast)}, but must be True or False.")
        self.radius = eps is None if radius is None else radius
        self.by = in_order(by, list(bounding_verifiers()))
        if not is_finite(tolerance) or not tolerance > 0:
            raise UserError(f"tolerance is {shortened(tolerance)}, but must be a number above 0, such as 1e-3.")
        self.tolerance = float(tolerance)
        self.arithmetic = arithmetic_of(net, arithmetic)
        check_arithmetic(self.by, self.arithmetic)
        self.class_names = list_names("class_names", class_names)
        self.input_shape = image_shape(input_shape)
        self._first_shape: tuple[int, ...] | None = None  # of an input in the first call
        first = next(net.parameters(), None)
        if first is None:
            raise UserError("The network has no parameters; there is nothing to certify.")
        self._like = first.detach()[..., :0].clone()
        if self.input_shape is not None:
            perturbation.check_shape(self.input_shape)
        self.perturbation = perturbation.on(self._like)
        if most is not None and not (is_finite(most) and 0 < most <= torch.finfo(self._like.dtype).max):
            raise UserError(f"most is {shortened(most)}, but must be a number above 0: the largest eps to try.")
        widest = self.perturbation.widest()
        self._most = float(most) if most is not None else widest if widest < math.inf else 1.0
        self._net, self._is_copy = _copied(net)
        self._programs: dict[int, Program] = {}
        self._tested = False
        if self.input_shape is not None:
            with self._certifying():
                middle = torch.full((1, *self.input_shape), 0.5, dtype=self._like.dtype, device=self._like.device)
                self._test(spread_over(middle, self.perturbation))
        if fast:
            self._record()

    @property
    def fast(self) -> bool:
        """Whether the IBP pass of single images is recorded."""
        return bool(self._programs)

    def __call__(self, x: Any) -> Any:
        """Classify images.

        Args:
            x: One image (C, H, W), or a batch (B, C, H, W): a tensor or an array, floating point in [0, 1], or uint8
                from 0 to 255. Or one row of a table (F,), or a batch (B, F), of numbers in their range. They are
                converted to the network's type; proofs are about the converted inputs.

        Returns:
            A `Prediction` for one image, a list of them for a batch.

        Raises:
            UserError: If the shape, the type or the pixels are wrong.
        """
        images, single = self._images(x)
        shape = tuple(images.shape[1:])
        if self._first_shape not in (None, shape):
            raise UserError(f"The images have shape {shape}, but the earlier ones {self._first_shape}; give these.")
        with self._certifying():
            self._test(images)
            self._first_shape = shape
            predictions = [one for part in images.split(TOGETHER) for one in self._predict(part)]
        return predictions[0] if single else predictions

    def _certifying(self) -> ExitStack:
        """Return the context of a proof: full precision, no gradients, evaluation mode."""
        check_types(self._net) if not self._is_copy else check_autocast(self._like)
        stack = ExitStack()
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(full_precision())
        if not self._is_copy:
            stack.enter_context(preserve_modes(self._net))
            self._net.eval()
        return stack

    def _images(self, x: Any) -> tuple[Tensor, bool]:
        """Return a batch of images in the type of the network, and whether one image was given."""
        if not isinstance(x, Tensor | np.ndarray):
            raise UserError(f"The images are {named(x)}, but must be a tensor or an array: call {USAGE}.")
        x = plain_array(x)
        try:
            images = torch.as_tensor(x).detach()
        except (TypeError, ValueError, RuntimeError):
            raise UserError(f"The images are of type {x.dtype}; give floats in [0, 1], or uint8.") from None
        if images.layout != torch.strided or images.is_nested or images.is_meta:
            raise UserError("The images are a sparse, nested or meta tensor; give a dense one.")
        shape = tuple(images.shape)
        if not shape:
            raise UserError("The images are a single number; give an image (C, H, W), a row (F,), or a batch of them.")
        if self.input_shape is not None:
            single = shape == self.input_shape
            if not single and shape[1:] != self.input_shape:
                raise UserError(
                    f"The images have shape {shape}; expected {self.input_shape} for one image, or "
                    f"{('B', *self.input_shape)} for a batch.".replace("'", "")
                )
        else:
            single = len(shape) in (1, 3)
        if not self.perturbation.is_pixels:
            return self._features(images[None] if single else images), single
        if images.dtype == torch.uint8:
            images = images.to(torch.float32) / 255
        if not images.is_floating_point():
            raise UserError(f"The images are of type {images.dtype}; give floats in [0, 1], or uint8.")
        images = (images[None] if single else images).to(self._like.device, self._like.dtype)
        low, high = map(float, images.aminmax()) if images.numel() else (0.0, 0.0)  # NaN if any pixel is
        if not (low >= 0 and high <= 1):
            raise UserError("The images leave [0, 1] or hold NaN; scale them to [0, 1].")
        return images, single

    def _features(self, x: Tensor) -> Tensor:
        """Return inputs that are not images in the type of the network."""
        if x.is_complex():
            raise UserError(f"The inputs are of type {x.dtype}; give real numbers.")
        x, around = x.to(self._like.device, self._like.dtype), self.perturbation
        around.check_shape(x.shape[1:])
        check_range(x, around)
        return x

    def _test(self, images: Tensor) -> None:
        """Test once that the network is a function of one image, on these images and on noise."""
        if not self._tested and len(images):
            check_function(self._net, images, self.perturbation.within)
            self._tested = True
            if self.perturbation.is_pixels:
                self._warn_if_constant(images[:1])

    def _warn_if_constant(self, image: Tensor) -> None:
        """Warn if black, white, noise and an image (1, C, H, W) have nearly the same logits."""
        noise = torch.rand(8, *image.shape[1:], generator=torch.Generator().manual_seed(0)).to(image)
        inputs = torch.cat([image, torch.zeros_like(image), torch.ones_like(image), noise])
        message = constant_message(run_on_copy(self._net, inputs), self.class_names)
        if message:
            warnings.warn(message, CollapseWarning, stacklevel=4)

    def _record(self) -> None:
        """Record the IBP pass of one image, and of the radii of one round of the search."""
        if self.input_shape is None:
            raise UserError("fast needs the shape of an image; give input_shape, such as (1, 28, 28).")
        if self.by != ["ibp"] or self.arithmetic == "real" or not self._is_copy:
            return
        sizes = [1] * (self.eps is not None) + [len(FIRST_RADII)] * bool(self.radius)
        with self._certifying():
            for size in sizes:
                program = record(self._net, self.input_shape, size, self._like, self.perturbation)
                if program is not None:
                    self._programs[size] = program

    def _predict(self, x: Tensor) -> list[Prediction]:
        if not len(x):  # the split of an empty batch has one part
            return []
        logits = run_on_copy(self._net, x)
        if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(x):
            raise UserError("The network does not return logits of shape (images, classes).")
        if self.class_names is not None and len(self.class_names) != logits.shape[1]:
            count = f"class_names has {len(self.class_names)} names, but the network has {logits.shape[1]} classes"
            raise UserError(f"{count}; give one name for each class.")
        finite, y = logits.isfinite().all(1), logits.argmax(1)
        proofs = self._proofs(x, y, finite)
        scores = logits.softmax(1).amax(1).nan_to_num().tolist()
        return [
            Prediction(
                index=index if ok else -1,
                name=self._name(index) if ok else "",
                score=score,
                eps=self.eps,
                certified=certified,
                radius=radius,
                arithmetic=self.arithmetic,
            )
            for index, ok, score, (certified, radius) in zip(y.tolist(), finite.tolist(), scores, proofs, strict=True)
        ]

    def _proofs(self, x: Tensor, y: Tensor, finite: Tensor) -> Sequence[tuple[bool | None, float | None]]:
        """Return for each image whether it is proved at eps, and its radius."""
        holds: list[bool] = []
        radii: list[float] = []
        if self.eps is not None:
            eps_of_all = torch.full((len(x), 1), self.eps, dtype=torch.float64, device=x.device)
            holds = (self._prove(x, eps_of_all, y)[:, 0] & finite).tolist()
        if self.radius:
            found = search_radii(lambda tried: self._prove(x, tried, y), len(x), x, self.tolerance, self._most)
            radii = [radius if ok else 0.0 for radius, ok in zip(found, finite.tolist(), strict=True)]
        if self.eps is None or not self.radius:
            certified: Sequence[bool | None] = holds or [None] * len(x)
            found_radii: Sequence[float | None] = radii or [None] * len(x)
            return list(zip(certified, found_radii, strict=True))
        # Both are proofs, which may differ by the rounding of the bounds. A proof at one eps holds at smaller ones.
        eps = self.eps
        return [(h or r >= eps, max(r, eps) if h else r) for h, r in zip(holds, radii, strict=True)]

    def _name(self, index: int) -> str:
        return str(index) if self.class_names is None else self.class_names[index]

    def _prove(self, x: Tensor, radii: Tensor, y: Tensor) -> Tensor:
        """Return which radii (B, R) of images (B, ...) are proved for the classes y (B,), as bools (B, R)."""
        count = radii.shape[1]
        if len(x) == 1 and count in self._programs:
            with torch.inference_mode():  # each operation is faster
                return (self._programs[count](x, per_image(radii[0].double(), x), y) > 0)[None].clone()
        inputs, labels = x.repeat_interleave(count, 0), y.repeat_interleave(count)
        eps = per_image(radii.flatten(), x)
        ball: Box | Rounded
        if self.arithmetic == "real":
            ball = self.perturbation.box(inputs, eps.to(x.dtype))
        else:
            ball = self.perturbation.rounded(inputs, eps.double())
        if self.by == ["ibp"]:
            holds = smallest_margin(run_on_copy(self._net, ball).lower_margins(labels), labels) > 0
        else:
            holds = proved_images(self._net, ball, labels, self.by)
        return holds.view(len(x), count)


def _copied(net: nn.Module) -> tuple[nn.Module, bool]:
    """Return a copy of the network in evaluation mode; the network itself if it can't be copied."""
    try:
        return copy.deepcopy(net).eval().requires_grad_(False), True
    except Exception:  # such as networks with weights that are results of computations
        return net, False


def predict(net: nn.Module, x: Any, **options: Any) -> Any:
    """Classify images, and prove their classes. To classify many images one after the other, use a `Predictor`.

    Args:
        net: The network. It is used in evaluation mode and is not changed.
        x: One image (C, H, W) or a batch (B, C, H, W): a tensor or an array, floating point in [0, 1], or uint8.
        options: As for `Predictor`: eps, radius, by, arithmetic, class_names, input_shape, tolerance.

    Returns:
        A `Prediction` for one image, a list of them for a batch.

    Raises:
        UserError: If an argument is wrong, or the network can't be certified.

    Examples:
        >>> import torch, advibp
        >>> net = advibp.nets.build("FC 4", input_shape=(1, 2, 2), classes=3, seed=0)
        >>> advibp.predict(net, torch.full((1, 2, 2), 0.5)).radius > 0
        True
    """
    return Predictor(net, **options)(x)
