"""Algorithm 2: natural and adversarial warm-up, then joint training while eps ramps up.

Randomness is a pure function of the seed and the step, so a run that is resumed has nothing to restore but weights,
optimiser and moments, and its data order and attacks are those of an uninterrupted run, to the bit.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from advibp import attacks, objectives, schedules
from advibp.data import Data
from advibp.errors import UserError
from advibp.methods import METHODS
from advibp.objectives import Objective
from advibp.recipe import Recipe
from advibp.verify import ibp
from advibp.weighting import FlatGradients, Weights, combine


class Step(NamedTuple):
    """What one step saw. Losses stay tensors: they are read once an epoch, not once a step."""

    phase: schedules.PhaseName
    eps: float
    lower: Tensor | None
    upper: Tensor | None
    fosc: Tensor | None
    weights: Weights | None


@dataclass
class Training:
    """A network on its way through a recipe; `steps` and the tensors of `state` are all there is to its position."""

    net: nn.Module
    data: Data
    recipe: Recipe
    steps: int = 0
    c_max: float | None = None  # settled at the start of the joint phase when the recipe says auto

    def __post_init__(self) -> None:
        recipe = self.recipe
        self.device = resolve_device(recipe.device)
        if recipe.threads:
            torch.set_num_threads(recipe.threads)
        self.net.to(self.device)
        self.mode = self.net.training  # a network given in evaluation mode is trained in it: BatchNorm stays frozen
        self.method = METHODS[recipe.method]
        self.timeline = recipe.timeline()
        self.params = [p for p in self.net.parameters() if p.requires_grad]
        if not self.params:
            raise UserError("The network has no trainable parameter; set requires_grad on the ones to be trained.")
        self.gradients = FlatGradients.zeros(self.params)
        self.optimizer = torch.optim.Adam(self.params, lr=recipe.lr, fused=True)
        self.weighting = self.method.weighting(recipe.beta1, recipe.beta2)
        self.x, self.y = self.data.train.x.to(self.device), self.data.train.y.to(self.device)
        self.batch_size = min(recipe.batch_size, len(self.x))
        # The remainder of an epoch is left out: the data order differs in each, so every image has its turn.
        self.steps_per_epoch = len(self.x) // self.batch_size
        self.total_steps = max(1, round(recipe.epochs * self.steps_per_epoch))

    @property
    def epoch(self) -> int:
        """Epochs finished, counting the last one even if the recipe ends within it."""
        return math.ceil(self.steps / self.steps_per_epoch)

    @property
    def finished(self) -> bool:
        return self.steps >= self.total_steps

    def check(self) -> None:
        """Find a network that can't be bounded, or data that do not fit it, before an epoch is spent."""
        x, y = self.x[:2], self.y[:2]
        with torch.no_grad():
            self.net.eval()  # looking must not touch BatchNorm's statistics
            try:
                logits = self.net(x)
            except Exception as error:  # a network of one's own may raise anything
                raise UserError(f"The network can't take images of shape {tuple(x.shape[1:])}: {error}") from error
            if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[1] < self.data.classes:
                found = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
                raise UserError(
                    f"The network returns {found} for two images, but (2, {self.data.classes}) was expected: one logit "
                    f"per class."
                )
            if len(self.data.validation) == 0:
                raise UserError("There are no validation images; hold some out: data.load(..., validation=1000).")
            try:
                ibp.errors(self.net, x, y, self.recipe.eps)  # what every epoch ends with, whatever the method
                self.net.train(self.mode)
                if self.method.upper:
                    self.method.upper(self.net, x, y, self.recipe.eps)
            except UserError:
                raise
            except Exception as error:
                raise UserError(f"The network can't be run on a set of images: {error!r}") from error

    def run_epoch(self) -> Iterator[Step]:
        """The steps that are left of the current epoch."""
        order = self._order(self.steps // self.steps_per_epoch)
        self.net.train(self.mode)
        for k in range(self.steps % self.steps_per_epoch, self.steps_per_epoch):
            if self.finished:
                return
            rows = order[k * self.batch_size : (k + 1) * self.batch_size]
            yield self.step(self.x[rows], self.y[rows])

    def step(self, x: Tensor, y: Tensor) -> Step:
        """One step of Algorithm 2 on a batch: losses -> gradients -> weights -> one gradient -> optimiser."""
        torch.manual_seed(_mix(self.recipe.seed, 1, self.steps))
        t = self.steps / self.steps_per_epoch
        phase, eps = self.timeline.phase(t), self.recipe.eps * self.timeline.eps_share(t)
        lower, upper = self._objectives(phase)
        c_t = self._c_t(t, x, y) if lower and upper else 0.0

        rows = self.gradients.rows
        loss_lower = loss_upper = fosc = weights = None
        if lower:
            loss_lower, fosc = self._below(lower, x, y, eps)
            final = rows[0]
        if upper:
            loss_upper = self._above(upper, x, y, eps)
            final = rows[1]
        if loss_lower is not None and loss_upper is not None:
            weights = self.weighting.weights(0.0 if fosc is None else fosc, c_t)
            final = combine(weights, rows, loss_upper)
            self.weighting.update(rows)
        self._descend(final, t)
        self.steps += 1
        return Step(phase, eps, loss_lower, loss_upper, fosc, weights)

    def _below(self, objective: Objective, x: Tensor, y: Tensor, eps: float) -> tuple[Tensor, Tensor | None]:
        """The lower loss, its gradient into row 0, and FOSC where there was an attack."""
        loss, point = objective(self.net, x, y, eps)
        if point is None:
            self.gradients.take(0, loss)
            return loss.detach(), None
        (at_point,) = self.gradients.take(0, loss, (point,))
        return loss.detach(), self._fosc(x, eps, point, at_point)

    def _above(self, objective: Objective, x: Tensor, y: Tensor, eps: float) -> Tensor:
        """The upper loss, its gradient into row 1."""
        loss = objective(self.net, x, y, eps).loss
        self.gradients.take(1, loss)
        return loss.detach()

    def _objectives(self, phase: schedules.PhaseName) -> tuple[Objective | None, Objective | None]:
        match phase:
            case "natural":
                return objectives.regular, None
            case "adversarial":
                return objectives.adversarial, None
            case _:
                return self.method.lower, self.method.upper

    def _c_t(self, t: float, x: Tensor, y: Tensor) -> float:
        recipe = self.recipe
        if self.c_max is None:
            scale = self.batch_size if recipe.fosc_scale == "batch" else 1
            self.c_max = self._measure_fosc(x, y) if recipe.c_max == "auto" else float(recipe.c_max) * scale
        return schedules.c_t(
            t - self.timeline.joint,
            c_max=self.c_max,
            ramp_epochs=self.timeline.ramp,
            extra=recipe.in_epochs(recipe.c_extra),
            decay=recipe.in_epochs(recipe.c_decay),
        )

    def _measure_fosc(self, x: Tensor, y: Tensor) -> float:
        """c_max = auto: FOSC of the warmed-up network at full eps, as the paper's appendix says."""
        loss, point = objectives.adversarial(self.net, x, y, self.recipe.eps)
        assert point is not None
        (gradient,) = torch.autograd.grad(loss, point)
        return float(self._fosc(x, self.recipe.eps, point, gradient))

    @staticmethod
    def _fosc(x: Tensor, eps: float, point: Tensor, gradient: Tensor) -> Tensor:
        """Mean FOSC of the batch, each sample in the scale of its own loss."""
        return attacks.fosc(point.detach(), gradient, *attacks.feasible(x, eps)).mean() * len(x)

    def _descend(self, gradient: Tensor, t: float) -> None:
        recipe = self.recipe
        if recipe.l1:
            signs = torch.cat([(p.sign() if p.dim() > 1 else torch.zeros_like(p)).reshape(-1) for p in self.params])
            gradient = gradient.add(signs.detach(), alpha=recipe.l1)
        if recipe.clip:
            norm = torch.linalg.vector_norm(gradient)
            gradient = gradient.mul(torch.clamp(recipe.clip / (norm + 1e-12), max=1.0))
        self.gradients.assign(gradient)
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate(t)
        self.optimizer.step()

    def _learning_rate(self, t: float) -> float:
        recipe, line = self.recipe, self.timeline
        if recipe.lr_shape == "linear":
            return schedules.linear_decay(t, lr=recipe.lr, start=line.joint + line.ramp, end=recipe.epochs)
        milestones = [recipe.in_epochs(m) for m in recipe.lr_milestones]
        return schedules.learning_rate(t, lr=recipe.lr, milestones=milestones, factor=recipe.lr_factor)

    def _order(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(_mix(self.recipe.seed, 2, epoch))
        return torch.randperm(len(self.x), generator=generator).to(self.device)

    def work_left(self) -> float:
        """Forward-equivalents of all steps to come, for the time that is left."""
        t0, per_epoch = self.steps / self.steps_per_epoch, self.steps_per_epoch
        ends = (self.timeline.natural, self.timeline.joint, self.recipe.epochs)
        costs = (3, 5, self.joint_cost)
        begin, work = t0, 0.0
        for end, cost in zip(ends, costs, strict=True):
            work += max(0.0, end - begin) * per_epoch * cost
            begin = max(begin, end)
        return work

    @property
    def joint_cost(self) -> int:
        """Forward-equivalents of a joint step; a backward pass counts two, one to the input alone counts one."""
        below: dict[Objective | None, int] = {objectives.regular: 3, objectives.adversarial: 5}
        return below.get(self.method.lower, 0) + (6 if self.method.upper else 0)

    def validation_errors(self) -> tuple[float, float]:
        """Standard and IBP-verified error at eps_train on the held-out part of the training set."""
        self.net.eval()
        held_out = self.data.validation
        return ibp.errors(self.net, held_out.x.to(self.device), held_out.y.to(self.device), self.recipe.eps)


class EpochMeans:
    """Means over the steps of an epoch, for metrics.jsonl and the display."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.started = time.perf_counter()

    def add(self, step: Step) -> None:
        self.steps.append(step)

    def means(self) -> dict[str, Any]:
        weights = [s.weights for s in self.steps if s.weights is not None]
        branches = Counter(w.branch for w in weights)
        found = {
            "phase": self.steps[-1].phase,
            "eps": self.steps[-1].eps,
            "loss_adv": _mean(s.lower for s in self.steps),
            "loss_ibp": _mean(s.upper for s in self.steps),
            "fosc": _mean(s.fosc for s in self.steps),
            "kappa_adv": _mean(w.adv for w in weights),
            "kappa_ibp": _mean(w.ibp for w in weights),
            "kappa_reg": _mean(w.reg for w in weights),
            "angle": _mean(w.angle for w in weights if not math.isnan(w.angle)),
            **{
                f"branch_{b}": branches[b] / len(weights)
                for b in ("agree", "adv", "ibp")
                if "fixed" not in branches and weights
            },
            "steps": len(self.steps),
            "seconds": time.perf_counter() - self.started,
        }
        return {k: v for k, v in found.items() if v is not None}


def _mean(values: Iterable[Tensor | float | None]) -> float | None:
    """Mean of what was measured; None where a phase has no such number."""
    measured = [torch.as_tensor(v, dtype=torch.float64) for v in values if v is not None]
    return float(torch.stack(measured).mean()) if measured else None


def _mix(seed: int, stream: int, count: int) -> int:
    """One 63-bit seed from three numbers (splitmix64), so that neighbouring steps share nothing."""
    z = (seed * 0x9E3779B97F4A7C15 + stream * 0xD1B54A32D192ED03 + count * 0x8CB92BA72F3D8DD7) & (2**64 - 1)
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (z ^ (z >> 31)) & (2**63 - 1)


def resolve_device(name: str) -> torch.device:
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return accelerator or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"Device '{name}' can't be used here ({str(error).splitlines()[0]}); try --device auto."
        ) from None
    return device


@contextmanager
def untouched_global_state() -> Iterator[None]:
    """Training seeds torch's global generator and sets the thread count; the caller gets both back."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            torch.set_num_threads(threads)
