"""Algorithm 2: natural and adversarial warm-up, joint training while eps ramps up, then layer-wise stages.

Randomness is a pure function of the seed and the step, so a run that is resumed has nothing to restore but weights,
optimiser and moments, and its data order and attacks are those of an uninterrupted run, to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from advibp import objectives, schedules
from advibp.data import Data
from advibp.errors import UserError
from advibp.execution import memory_format
from advibp.execution.seeds import mix, seed_everything
from advibp.methods import METHODS, WEIGHTINGS, Method
from advibp.objectives import PIXELS, Now, Objective, Settings, cost_of
from advibp.recipe import Recipe
from advibp.storage import checkpoint
from advibp.training import divergence, preflight
from advibp.training.batches import Feed
from advibp.training.metrics import Step
from advibp.training.passes import Passes
from advibp.training.stages import Stages
from advibp.verify import ibp_margins
from advibp.weighting import FlatGradients, Weighting, combine
from advibp.weighting.gate import Gate

#: FOSC costs a backward pass to the image: it is measured where it decides, and for the log in every so many steps.
FOSC_EVERY = 8


@dataclass
class Training:
    """A network on its way through a recipe; `steps` and the tensors of `state` are all there is to its position."""

    net: nn.Module
    data: Data
    recipe: Recipe
    own_method: Method | None = None  # what the recipe can only name
    steps: int = 0

    def __post_init__(self) -> None:
        recipe = self.recipe
        self.device = resolve_device(recipe.device)
        if recipe.threads:
            torch.set_num_threads(recipe.threads)
        self.net.to(self.device)
        self.channels_last = memory_format.prefers_channels_last(self.net, self.device)
        if self.channels_last:
            memory_format.to_channels_last(self.net)
        self.method = self._find_method()
        self.settings = Settings(
            attack_steps=recipe.attack_steps,
            beta=recipe.beta,
            domain=recipe.domain,
            symbols=recipe.symbols,
            regulariser=recipe.regulariser,
            projections=recipe.projections,
        )
        projections = recipe.projections if self.method.latent == "zonotope" else None
        fosc_within = PIXELS if recipe.fosc_set == "clipped" else None
        self.stages = Stages(self.net, projections, fosc_within)
        self.timeline = recipe.timeline()
        self.feed = Feed(self.data, recipe, self.device)
        self.batch_size, self.steps_per_epoch = self.feed.batch_size, self.feed.steps_per_epoch
        self.gate = self._make_gate()
        self.begin_stage(0)
        self.course = schedules.Course(
            main=max(1, round(recipe.epochs * self.steps_per_epoch)),
            each=max(1, round(recipe.stage_epochs * self.steps_per_epoch)),
            stages=self._count_stages(),
            per_epoch=self.steps_per_epoch,
        )

    def _find_method(self) -> Method:
        if self.own_method is not None:
            self.recipe.suits(self.own_method)
            return self.own_method
        if self.recipe.method not in METHODS:
            raise UserError(f"The recipe's method, {self.recipe.method}, is one of one's own; pass it as `method`.")
        return METHODS[self.recipe.method]

    # ------------------------------------------------------------------------------------------ position

    @property
    def epoch(self) -> int:
        """Epochs that are over, counting one that a stage ends within."""
        return self.course.at(self.steps).epoch

    @property
    def finished(self) -> bool:
        return self.steps >= self.course.total

    def work_left(self) -> float:
        """Forward-equivalents of all steps to come, for the time that is left."""
        per_epoch, now = self.steps_per_epoch, self.course.at(self.steps)
        begin, work = now.t if now.stage == 0 else math.inf, 0.0
        line = self.timeline
        ends = (line.natural, line.joint, line.joint + line.ramp, self.recipe.epochs)
        costs = cost_of(objectives.regular), cost_of(objectives.adversarial), self.cost(ramped=0.5), self.cost()
        for end, cost in zip(ends, costs, strict=True):
            work += max(0.0, end - begin) * per_epoch * cost
            begin = max(begin, end)
        latent = min(self.course.total - self.steps, self.course.stages * self.course.each)
        return work + latent * self.cost(latent=True)

    def cost(self, ramped: float = 1.0, latent: bool = False) -> float:
        """Forward-equivalents of a joint step."""
        lower, upper = self.method.lower, self.method.upper
        now = Now(ramped=ramped, latent=latent, settings=self.settings)
        cost = sum(cost_of(objective, now, self.data.classes) for objective in (lower, upper))
        if self.trains_batchnorm and upper:  # the gradient also flows through the statistics
            if self.passes.captures_clean(lower, upper):
                return cost + 3 + (2 if lower else 0)
            return cost + 2
        return cost

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed training needs: `net`, `optimizer`, `weighting` (tensors by name), `steps` and `c_max`."""
        return {
            "net": self.net.state_dict(),
            "optimizer": checkpoint.optimizer_tensors(self.optimizer),
            "weighting": self.weighting.state(),
            "steps": self.steps,
            "c_max": self.gate.level,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned. Raises a RuntimeError if the weights do not fit the network."""
        self.net.load_state_dict(state["net"])
        self.steps, self.gate.level = state["steps"], state["c_max"]
        if self.go_on():
            checkpoint.load_optimizer(self.optimizer, state["optimizer"])
            self.weighting.load_state({name: tensor.to(self.device) for name, tensor in state["weighting"].items()})

    # ------------------------------------------------------------------------------------------ stages

    def begin_stage(self, stage: int) -> None:
        """Stage 0 trains everything, stage k what follows its cut; each has a new optimiser and new moments."""
        self.params = self.stages.begin(stage, self.feed.example(self.batch_size)[0] if stage else None)
        if not self.params:
            raise UserError("The network has no trainable parameter; set requires_grad on the ones to be trained.")
        self.gradients = FlatGradients(self.params)
        self.optimizer = torch.optim.Adam(self.params, lr=self.recipe.lr, fused=True)
        self.weighting = self._make_weighting()
        self.trains_batchnorm = self._normalises_batches()
        self.passes = Passes(
            self.stages,
            self.gradients,
            trains_batchnorm=self.trains_batchnorm,
            batchnorm_of=self.recipe.batchnorm,
            at_once=self.recipe.at_once,
            recompute=self.recipe.recompute,
        )

    def _make_weighting(self) -> Weighting:
        recipe = self.recipe
        named = recipe.weighting or self.method.weighting
        if not isinstance(named, str):
            try:
                return named()
            except TypeError as error:
                raise UserError(f"The method's weighting can't be made without arguments ({error}).") from None
        ends = {"first": slice(self.params[0].numel()), "last": slice(-self.params[-1].numel(), None)}
        kappa = self.method.kappa if recipe.kappa is None else recipe.kappa
        return WEIGHTINGS[named](recipe.beta1, recipe.beta2, ends.get(recipe.scope), kappa)

    def _normalises_batches(self) -> bool:
        try:
            return self.stages.trains_batchnorm(self.feed.example(2)[0])
        except Exception:  # a network that can't take these images; `check` will say so
            return False

    @property
    def stage(self) -> int:
        return self.stages.stage

    def go_on(self) -> bool:
        """Begin the stage in which `steps` lies; True if it had begun before, and its optimiser is to be restored."""
        now = self.course.at(self.steps)
        begun = now.stage == 0 or self.steps > self.course.main + (now.stage - 1) * self.course.each
        if begun and now.stage:
            self.begin_stage(now.stage)
        return begun

    def _count_stages(self) -> int:
        if self.recipe.stages == 0:
            return 0
        return self.stages.count(self.recipe.stages, self.feed.example(2)[0])

    # ------------------------------------------------------------------------------------------ one step

    def check(self) -> None:
        """Find what can't be trained before an epoch is spent."""
        preflight.check(self)

    def run_epoch(self) -> Iterator[Step]:
        """The steps that are left of the current epoch."""
        if self.finished:
            return
        now, end = self.course.at(self.steps), self.course.epoch_ends(self.steps)
        if now.stage != self.stage:
            self.begin_stage(now.stage)
        self.stages.resume_modes()
        for x, y in self.feed.batches(now.epoch, now.into, now.into + end - self.steps):
            yield self.step(x, y)

    def step(self, x: Tensor, y: Tensor) -> Step:
        """One step of Algorithm 2 on a batch: losses -> gradients -> weights -> one gradient -> optimiser."""
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        self.passes.prepare(x)
        seed_everything(mix(self.recipe.seed, 1, self.steps), self.device)
        t = self.course.at(self.steps).t
        phase, eps = self._phase(t)
        lower, upper = self._objectives(phase)
        joint = lower and upper and not self.stage
        c_t = self.gate.threshold(t, partial(self._measure_fosc, x, y)) if joint else 0.0

        logs_fosc = self.steps % FOSC_EVERY == 0
        asks_fosc = logs_fosc or self.weighting.asks_fosc()
        ramped = eps / self.recipe.eps
        now = Now(ramped=ramped, wants_fosc=asks_fosc, latent=self.stage > 0, settings=self.settings)
        losses, weights = self.passes.run(lower, upper, x, y, eps, now), None
        if losses.lower is not None and losses.upper is not None:
            # Without an attack FOSC is infinite, i.e. the attack counts as weak.
            fosc, rows = math.inf if losses.fosc is None else losses.fosc, self.gradients.rows
            weights = self.weighting.weights(fosc, c_t, ramped=now.ramped, gradients=rows)
            combine(weights, self.gradients.rows, losses.upper, out=self.gradients.final)
            self.weighting.update(self.gradients.rows)
            if weights.branch in ("adv", "ibp") and not self.stage:
                self.gate.observe(t, fosc)
        taken = Step(phase, eps, losses.lower, losses.upper, losses.fosc if logs_fosc else None, weights, self.stage)
        self._descend(t, taken, x)
        self.steps += 1
        return taken

    def _phase(self, t: float) -> tuple[schedules.PhaseName, float]:
        if self.stage:
            return "latent", self.recipe.eps
        return self.timeline.phase(t), self.recipe.eps * self.timeline.eps_share(t)

    def _objectives(self, phase: schedules.PhaseName) -> tuple[Objective | None, Objective | None]:
        match phase:
            case "natural":
                return objectives.regular, None
            case "adversarial":
                return objectives.adversarial, None
            case _:
                return self.method.lower, self.method.upper

    def _make_gate(self) -> Gate:
        recipe, line = self.recipe, self.timeline
        extra, decay = recipe.in_epochs(recipe.c_extra), recipe.in_epochs(recipe.c_decay)

        def opened(t: float) -> float:
            return schedules.c_t(t - line.joint, ramp_epochs=line.ramp, extra=extra, decay=decay)

        return Gate(recipe.c_max, opened, scale=self.batch_size if recipe.fosc_scale == "batch" else 1)

    def _measure_fosc(self, x: Tensor, y: Tensor) -> float:
        """FOSC of the network as it is, at full eps."""
        with self.stages.traceless():
            losses = self.passes.run(objectives.adversarial, None, x, y, self.recipe.eps, Now(wants_fosc=True))
        assert losses.fosc is not None
        return float(losses.fosc)

    def _descend(self, t: float, step: Step, x: Tensor) -> None:
        recipe, gradient = self.recipe, self.gradients.final
        if recipe.l1:
            signs = torch.cat([(p.sign() if p.dim() > 1 else torch.zeros_like(p)).reshape(-1) for p in self.params])
            gradient.add_(signs.detach(), alpha=recipe.l1)
        norm = self._sound(torch.linalg.vector_norm(gradient), step, x)
        if recipe.clip and norm > recipe.clip:
            gradient.mul_(recipe.clip / norm)
        self.gradients.deliver()
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate(t)
        self.optimizer.step()

    def _sound(self, norm: Tensor, step: Step, x: Tensor) -> float:
        """The gradient's norm. A step that is no usable number is not taken: the weights stay as good as they were."""
        losses = {"L_adv": step.lower, "L_IBP": step.upper}
        measured = {name: loss for name, loss in losses.items() if loss is not None}
        length, *found = torch.stack([norm, *measured.values()]).tolist()
        named = zip(measured, found, strict=True)
        bad = [f"{name} is {value:.3g}" for name, value in named if not value <= self.recipe.max_loss]
        if bad or not math.isfinite(length):
            with self.stages.traceless():
                where = divergence.explain(self.net, x, step.eps or self.recipe.eps)
            self._diverged(" and ".join(bad) or "the gradient is not finite", where)
        return float(length)

    def check_weights(self) -> None:
        """Before they are kept: weights and running statistics are finite."""
        tensors = [t for t in self.net.state_dict().values() if t.is_floating_point()]
        if not all(bool(t.isfinite().all()) for t in tensors):
            self._diverged("a weight is not finite", "its losses were until then")

    def _diverged(self, what: str, where: str) -> NoReturn:
        now = self.course.at(self.steps)
        phase, eps = self._phase(now.t)
        raise divergence.Diverged(
            f"Training diverged in epoch {now.epoch + 1}, step {now.into + 1} (phase {phase}, eps {eps:.4g}): {what}, "
            f"and {where}; train again with a smaller lr, a longer ramp or a smaller eps."
        )

    def _learning_rate(self, t: float) -> float:
        recipe, line = self.recipe, self.timeline
        if recipe.lr_shape == "linear":
            if self.stage:
                return schedules.linear_decay(t, lr=recipe.stage_lr, start=0.0, end=recipe.stage_epochs)
            return schedules.linear_decay(t, lr=recipe.lr, start=line.joint + line.ramp, end=recipe.epochs)
        if self.stage:
            milestones = [recipe.in_epochs(m, recipe.stage_epochs) for m in recipe.stage_lr_milestones]
            return schedules.learning_rate(t, lr=recipe.stage_lr, milestones=milestones, factor=recipe.lr_factor)
        milestones = [recipe.in_epochs(m) for m in recipe.lr_milestones]
        return schedules.learning_rate(t, lr=recipe.lr, milestones=milestones, factor=recipe.lr_factor)

    def validation_errors(self) -> tuple[float, float]:
        """Standard and IBP-verified error at eps_train on the held-out part of the training set."""
        self.net.eval()
        held_out = self.data.validation
        return ibp_margins.errors(self.net, held_out.x.to(self.device), held_out.y.to(self.device), self.recipe.eps)


def resolve_device(name: str) -> torch.device:
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return accelerator or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).add(1).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(
            f"Device '{name}' can't be used here ({str(error).splitlines()[0]}); try --device auto."
        ) from None
    return device
