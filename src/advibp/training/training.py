"""Algorithm 2: natural and adversarial warm-up, joint training while eps ramps up, then layer-wise stages.

All randomness is a function of the seed and the step. A resumed run therefore restores weights, optimizer and moments
only, and its data order and attacks equal those of an uninterrupted run bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from advibp import objectives, schedules
from advibp.bounds import Perturbation
from advibp.bounds.compiling import compiled_relus
from advibp.data import Data
from advibp.display.eps import format_eps
from advibp.errors import UserError
from advibp.execution import memory_format
from advibp.execution.device import resolve_device
from advibp.execution.seeds import mix, seed_everything
from advibp.methods import METHODS, Method, make_weighting
from advibp.objectives import Context, Objective, Settings
from advibp.recipe import Recipe
from advibp.storage import checkpoint
from advibp.training import divergence, preflight
from advibp.training.averaging import WeightAverage, population_statistics
from advibp.training.batches import Feed
from advibp.training.metrics import Step
from advibp.training.optimizers import make_optimizer
from advibp.training.passes import Losses, Passes
from advibp.training.stages import Stages
from advibp.verify import ibp_margins
from advibp.weighting import FlatGradients, Weights, combine
from advibp.weighting.gate import Gate

#: FOSC costs an input gradient. It is computed if the weights depend on it, and for the log in every so many steps.
FOSC_EVERY = 8


@dataclass
class Training:
    """A network that is trained by a recipe.

    Args:
        net: the network. It is moved to the recipe's device and trained in place.
        data: the data set.
        recipe: the hyperparameters.
        own_method: the user's method, if the recipe's method is not one of METHODS.
        steps: number of finished steps.

    Examples:
        >>> import torch, advibp
        >>> x, y = torch.rand(60, 1, 2, 2), torch.arange(60) % 2
        >>> data = advibp.data.from_tensors(x, y, x, y, validation=10)
        >>> net = advibp.nets.build("FC 4", input_shape=(1, 2, 2), classes=2, seed=0)
        >>> options = dict(eps=0.1, method="standard", epochs=1, batch_size=10)
        >>> training = Training(net, data, advibp.Recipe.load(**options))
        >>> len([step.phase for step in training.run_epoch()]), training.finished
        (5, True)
    """

    net: nn.Module
    data: Data
    recipe: Recipe
    own_method: Method | None = None
    steps: int = 0

    def __post_init__(self) -> None:
        recipe = self.recipe
        self.device, self.eps = resolve_device(recipe.device), recipe.train_eps
        if recipe.threads:
            torch.set_num_threads(recipe.threads)
        self.net.to(self.device)
        self.channels_last = memory_format.prefers_channels_last(self.net, self.device)
        if self.channels_last:
            memory_format.to_channels_last(self.net)
        self.method = self._find_method()
        self.settings = Settings.of(recipe)
        projections = recipe.projections if self.method.latent == "zonotope" else None
        self.perturbation = self._find_perturbation()
        self.stages = Stages(self.net, projections, self.perturbation, clips_fosc=recipe.fosc_set == "clipped")
        self.timeline = recipe.timeline()
        self.feed = Feed(self.data, recipe, self.device)
        self.batch_size, self.steps_per_epoch = self.feed.batch_size, self.feed.steps_per_epoch
        self.gate = self._make_gate()
        self.begin_stage(0)
        self.course = schedules.Course(
            main=max(1, round(recipe.epochs * self.steps_per_epoch)),
            each=max(1, round(recipe.stage_epochs * self.steps_per_epoch)),
            stages=self.stages.count(recipe.stages, self.feed.example(2)[0]) if recipe.stages else 0,
            per_epoch=self.steps_per_epoch,
        )
        start = None if recipe.swa_start is None else recipe.in_epochs(recipe.swa_start) * self.steps_per_epoch
        self.average = WeightAverage(self.net, start, recipe.swa_every)

    def _find_method(self) -> Method:
        if self.own_method is not None:
            self.recipe.check_method(self.own_method)
            return self.own_method
        if self.recipe.method not in METHODS:
            raise UserError(f"The recipe's method, {self.recipe.method}, is a user's; pass the Method as `method`.")
        return METHODS[self.recipe.method]

    def _find_perturbation(self) -> Perturbation:
        """Return the set of allowed changes of an input, on the device."""
        found = self.recipe.perturbation(self.data)
        if found.is_pixels:
            self.recipe.check_eps_of_images()
        return found.on(torch.empty(0, device=self.device))

    def _make_gate(self) -> Gate:
        recipe, line = self.recipe, self.timeline
        extra, decay = recipe.in_epochs(recipe.c_extra), recipe.in_epochs(recipe.c_decay)

        def relative_threshold(t: float) -> float:
            return schedules.c_t_share(t - line.joint, ramp_epochs=line.ramp, extra=extra, decay=decay)

        return Gate(recipe.c_max, relative_threshold, scale=self.batch_size if recipe.fosc_scale == "batch" else 1)

    # ------------------------------------------------------------------------------------------ the loop

    @property
    def epoch(self) -> int:
        """Number of finished epochs. The last epoch of a stage may be shorter."""
        return self.course.at(self.steps).epoch

    @property
    def finished(self) -> bool:
        """Whether all steps were taken."""
        return self.steps >= self.course.total

    @property
    def stage(self) -> int:
        """The layer-wise stage; 0 in the main phase."""
        return self.stages.stage

    def check(self) -> None:
        """Raise a UserError if the network, the data or the options can't be trained."""
        preflight.check(self)

    def run_epoch(self) -> Iterator[Step]:
        """Run the steps that are left of the current epoch."""
        if self.finished:
            return
        now, end = self.course.at(self.steps), self.course.epoch_ends(self.steps)
        if now.stage != self.stage:
            self.begin_stage(now.stage)
        self.stages.resume_modes()
        for x, y in self.feed.batches(now.epoch, now.step_in_epoch, now.step_in_epoch + end - self.steps):
            yield self.step(x, y)

    def step(self, x: Tensor, y: Tensor) -> Step:
        """Run one step of Algorithm 2: losses -> gradients -> weights -> one gradient -> optimizer.

        Args:
            x: inputs, (B, ...).
            y: labels, (B,).
        """
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        self.passes.prepare(x)
        seed_everything(mix(self.recipe.seed, 1, self.steps), self.device)
        t = self.course.at(self.steps).t
        phase, eps = self._phase(t)
        lower, upper = self._objectives(phase)
        c_t = None
        if lower and upper:
            c_t = 0.0 if self.stage else self.gate.threshold(t, partial(self._measure_fosc, x, y))

        logs_fosc = self.steps % FOSC_EVERY == 0
        ramped, joint = eps / self.eps, phase in ("ramp", "full", "latent")
        context = Context(
            ramped=ramped,
            wants_fosc=logs_fosc or self.weighting.needs_fosc(),
            latent=self.stage > 0,
            settings=self.settings,
            shi=self.recipe.shi * (1 - ramped) if phase == "ramp" else 0.0,
        )
        with compiled_relus(self.recipe.compile):
            losses = self.passes.run(lower, upper, x, y, eps, context, self.recipe.clean_share if joint else 0.0)
        weights = None if c_t is None else self._combine(t, losses, c_t, context)
        fosc = losses.fosc if logs_fosc else None
        step = Step(phase, eps, losses.lower, losses.upper, fosc, weights, self.stage, c_t)
        step = step._replace(regularizer=losses.regularizer, clean=losses.clean)
        self._descend(t, step, x)
        self.steps += 1
        self.average.observe(self.steps)
        return step

    def _phase(self, t: float) -> tuple[schedules.PhaseName, float]:
        """Return the phase and eps_t at epoch t."""
        if self.stage:
            return "latent", self.eps
        return self.timeline.phase(t), self.eps * self.timeline.eps_share(t)

    def _objectives(self, phase: schedules.PhaseName) -> tuple[Objective | None, Objective | None]:
        """Return the lower and upper objective of a phase."""
        match phase:
            case "natural":
                return objectives.regular, None
            case "adversarial":
                return objectives.adversarial, None
            case _:
                return self.method.lower, self.method.upper

    def _measure_fosc(self, x: Tensor, y: Tensor) -> float:
        """Return FOSC of the current network at full eps."""
        with self.stages.with_buffers_restored():
            losses = self.passes.run(objectives.adversarial, None, x, y, self.eps, Context(wants_fosc=True))
        assert losses.fosc is not None
        return float(losses.fosc)

    def _combine(self, t: float, losses: Losses, c_t: float, context: Context) -> Weights:
        """Weight the two gradients and write their combination to `gradients.final`."""
        assert losses.upper is not None
        # Without an attack FOSC is infinite, i.e. the attack counts as weak.
        fosc, rows = math.inf if losses.fosc is None else losses.fosc, self.gradients.rows[:2]
        weights = self.weighting.weights(fosc, c_t, ramped=context.ramped, gradients=rows)
        combine(weights, rows, losses.upper, out=self.gradients.final)
        if losses.clean is not None:
            self.gradients.final.mul_(1 - self.recipe.clean_share)
        if losses.clean is not None or losses.regularizer is not None:
            self.gradients.final.add_(self.gradients.rows[2])
        self.weighting.update(rows)
        if weights.branch in ("lower", "upper") and not self.stage:
            self.gate.observe(t, fosc)
        return weights

    def _descend(self, t: float, step: Step, x: Tensor) -> None:
        """Take a step of the optimizer by `gradients.final`, with L1 regularization and gradient clipping."""
        recipe, gradient = self.recipe, self.gradients.final
        if recipe.l1:
            signs = torch.cat([(p.sign() if p.dim() > 1 else torch.zeros_like(p)).reshape(-1) for p in self.params])
            gradient.add_(signs.detach(), alpha=recipe.l1)
        norm = self._check_finite(torch.linalg.vector_norm(gradient), step, x)
        if recipe.clip and norm > recipe.clip:
            gradient.mul_(recipe.clip / norm)
        self.gradients.deliver()
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate(t)
        self.optimizer.step()

    def _learning_rate(self, t: float) -> float:
        recipe, line = self.recipe, self.timeline
        if recipe.lr_shape == "linear":
            if self.stage:
                return schedules.linear_decay(t, lr=recipe.stage_lr, start=0.0, end=recipe.stage_epochs)
            return schedules.linear_decay(t, lr=recipe.lr, start=line.joint + line.ramp, end=recipe.decay_end(t))
        if self.stage:
            milestones = [recipe.in_epochs(m, recipe.stage_epochs) for m in recipe.stage_lr_milestones]
            return schedules.learning_rate(t, lr=recipe.stage_lr, milestones=milestones, factor=recipe.lr_factor)
        return schedules.learning_rate(t, lr=recipe.lr, milestones=recipe.milestones, factor=recipe.lr_factor)

    # ------------------------------------------------------------------------------------------ divergence

    def _check_finite(self, norm: Tensor, step: Step, x: Tensor) -> float:
        """Return the norm of the gradient. Raise Diverged before the weights change if the step is not usable."""
        losses = {"the lower loss": step.lower, "the upper loss": step.upper}
        measured = {name: loss for name, loss in losses.items() if loss is not None}
        length, *values = torch.stack([norm, *measured.values()]).tolist()
        named = zip(measured, values, strict=True)
        bad = [f"{name} is {value:.3g}" for name, value in named if not value <= self.recipe.max_loss]
        if bad or not math.isfinite(length):
            with self.stages.with_buffers_restored():
                where = divergence.explain(self.net, x, step.eps or self.eps, self.perturbation)
            self._diverged(" and ".join(bad) or "the gradient is not finite", where)
        return float(length)

    def check_weights(self) -> None:
        """Raise Diverged if a weight or a running statistic is not finite."""
        tensors = [t for t in self.net.state_dict().values() if t.is_floating_point()]
        if not all(bool(t.isfinite().all()) for t in tensors):
            self._diverged("a weight is not finite", "all losses were finite")

    def _diverged(self, what: str, where: str) -> NoReturn:
        now = self.course.at(self.steps)
        phase, eps = self._phase(now.t)
        raise divergence.Diverged(
            f"Training diverged in epoch {now.epoch + 1}, step {now.step_in_epoch + 1} (phase {phase}, "
            f"eps {format_eps(eps)}): {what}, and {where}; train again with a smaller lr, a longer ramp or "
            "a smaller eps."
        )

    # ------------------------------------------------------------------------------------------ stages

    def begin_stage(self, stage: int) -> None:
        """Begin a stage, with a new optimizer and new moments. Stage k > 0 trains the layers behind its cut."""
        self.params = self.stages.begin(stage, self.feed.example(self.batch_size)[0] if stage else None)
        if not self.params:
            raise UserError("The network has no trainable parameter; set requires_grad on the ones to be trained.")
        outside = bool(self.recipe.shi or self.recipe.clean_share)
        self.gradients = FlatGradients(self.params, rows=3 if outside else 2)
        self.optimizer = make_optimizer(self.recipe, self.params)
        self.weighting = make_weighting(self.method, self.recipe, self.params)
        self.trains_batchnorm = self._has_batch_statistics()
        self.passes = Passes(
            self.stages,
            self.gradients,
            trains_batchnorm=self.trains_batchnorm,
            batchnorm_of=self.recipe.batchnorm,
            at_once=self.recipe.at_once,
            recompute=self.recipe.recompute,
            taps_layers=self.recipe.taps_layers if "taps_layers" in self.method.recipe_keys else None,
        )

    def _has_batch_statistics(self) -> bool:
        try:
            return self.stages.trains_batchnorm(self.feed.example(2)[0])
        except Exception:  # the network can't run on these inputs; `check` reports it
            return False

    # ------------------------------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed training needs.

        Returns:
            `net`, `optimizer`, `weighting` and `average` (tensors by name), `steps` and `c_max` (the state of the FOSC
            gate).
        """
        return {
            "net": self.net.state_dict(),
            "optimizer": checkpoint.optimizer_tensors(self.optimizer),
            "weighting": self.weighting.state_dict(),
            "average": self.average.state_dict(),
            "steps": self.steps,
            "c_max": self.gate.level,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Raises a RuntimeError if the weights do not fit the network."""
        self.net.load_state_dict(state["net"])
        self.average.load_state_dict(state.get("average", {}))  # older checkpoints have none
        self.steps, self.gate.level = state["steps"], state["c_max"]
        now = self.course.at(self.steps)
        stage_begun = now.stage == 0 or self.steps > self.course.main + (now.stage - 1) * self.course.each
        if not stage_begun:
            return  # the next step begins the stage, with a new optimizer
        if now.stage:
            self.begin_stage(now.stage)
        checkpoint.load_optimizer(self.optimizer, state["optimizer"])
        self.weighting.load_state_dict({name: tensor.to(self.device) for name, tensor in state["weighting"].items()})

    @contextmanager
    def evaluation_weights(self) -> Iterator[None]:
        """Give the network the weights and BatchNorm statistics that are evaluated, until the context ends."""
        with ExitStack() as stack:
            averaged = stack.enter_context(self.average.applied())
            if averaged or self.recipe.batchnorm_evaluation == "population":
                layers = [m for m, mode in self.stages.modes if mode and isinstance(m, _BatchNorm)]
                layers = [layer for layer in layers if layer.track_running_stats]
                stack.enter_context(population_statistics(self.net, layers, self.feed.plain_batches))
            yield

    def adopt_evaluation_weights(self) -> None:
        """Give the network the weights and BatchNorm statistics that are evaluated, for good: the training is over."""
        with self.evaluation_weights():
            final = {name: tensor.clone() for name, tensor in self.net.state_dict().items()}
        self.net.load_state_dict(final)

    def validate(self) -> ibp_margins.Evaluation:
        """Classify the validation images, and bound them by IBP at eps."""
        self.net.eval()
        held_out = self.data.validation
        x, y = held_out.x.to(self.device), held_out.y.to(self.device)
        return ibp_margins.evaluate(self.net, x, y, self.recipe.eps, self.perturbation)
