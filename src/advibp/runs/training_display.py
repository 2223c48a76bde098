"""Show the progress of a training: a bar for the current epoch and a line per finished epoch."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from advibp import nets
from advibp.display.eps import format_eps
from advibp.display.progress import progress_is_hidden
from advibp.training import Training
from advibp.training.metrics import Step
from advibp.training.step_cost import remaining_cost


class Display(Protocol):
    """Interface of the argument `show` of `advibp.train`. A display is a context manager with three callbacks.

    Examples:
        ```python
        class Losses(advibp.Silent):
            def epoch(self, training, metrics):
                print(metrics["epoch"], metrics["verified_error"])

        advibp.train(net, data, eps=0.1, show=Losses())
        ```
    """

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: Any) -> None: ...
    def start(self, training: Training, history: list[dict[str, Any]]) -> None:
        """Called once before the first step; `history` has the epochs before a resume."""

    def step(self, training: Training, step: Step) -> None:
        """Called after each step."""

    def epoch(self, training: Training, metrics: dict[str, Any]) -> None:
        """Called after each epoch with its metrics, as in metrics.jsonl."""


class Silent:
    """A display that shows nothing.

    Examples:
        ```python
        advibp.train(net, data, eps=0.1, show=advibp.Silent())
        ```
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def start(self, training: Training, history: list[dict[str, Any]]) -> None:
        pass

    def step(self, training: Training, step: Step) -> None:
        pass

    def epoch(self, training: Training, metrics: dict[str, Any]) -> None:
        pass


def initial_note(training: Training, history: list[dict[str, Any]]) -> str:
    """Return a sentence about where the training starts; "" for a new network of advibp.

    Args:
        training: the training.
        history: metrics of the epochs before a resume.
    """
    recipe = training.recipe
    if training.finished:
        return "this run is already finished"
    if history:
        return f"continuing after epoch {history[-1]['epoch']}"
    if nets.is_known(recipe.net) and recipe.init != "given":
        return ""
    if recipe.init == "ibp":
        return "the network is new: its weights were initialized for IBP (to keep its weights: init=given)"
    return "the training starts from the weights of the network"


class TimeLeft:
    """Estimates the remaining time of a training from the cost of its steps.

    Args:
        training: the training, before its first step.
    """

    def __init__(self, training: Training) -> None:
        self.began, self.work_at_start = time.perf_counter(), remaining_cost(training)

    def __call__(self, training: Training) -> str:
        """Return the remaining time as text; "?" before the first step."""
        work = remaining_cost(training)
        done = self.work_at_start - work
        return clock(work * (time.perf_counter() - self.began) / done) if done > 0 else "?"


class Live:
    """Shows a progress bar on a terminal, and a line per epoch everywhere. This is the default display.

    Args:
        console: a rich console.
    """

    def __init__(self, console: Console) -> None:
        self.console, self.has_bar = console, console.is_terminal and not progress_is_hidden()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[now]}"),
            console=console,
            disable=not self.has_bar,
            transient=True,
        )
        self.task = self.bar.add_task("", now="")
        self.last_refresh = 0.0

    def __enter__(self) -> Self:
        if self.has_bar:  # without a terminal, a disabled bar prints an empty line
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.has_bar:
            self.bar.stop()

    def start(self, training: Training, history: list[dict[str, Any]]) -> None:
        self.time_left = TimeLeft(training)
        lines = [note] if (note := initial_note(training, history)) else []
        if not training.finished:
            lines.insert(0 if history else len(lines), HEADER)
        for line in lines:
            self._print(line)

    def step(self, training: Training, step: Step) -> None:
        now = time.perf_counter()
        if not self.has_bar or now - self.last_refresh < 0.1:
            return
        self.last_refresh = now
        self.bar.update(
            self.task,
            description=f"epoch {training.course.at(training.steps - 1).epoch + 1}",
            total=training.steps_per_epoch,
            completed=training.course.at(training.steps - 1).step_in_epoch + 1,
            now=f"{step.phase}  eps {eps_at(step.phase, step.eps)}  {losses(step)}  left {self.time_left(training)}",
        )

    def epoch(self, training: Training, metrics: dict[str, Any]) -> None:
        self._print(epoch_line(metrics, training.course.epochs, self.time_left(training)))

    def _print(self, line: str) -> None:
        self.bar.console.print(line, highlight=False, soft_wrap=True)


HEADER = (
    "   epoch phase          eps L_lower L_upper k_lower k_upper   angle    agree/low/up"
    "   std.err  verified     time   left"
)


def eps_at(phase: str, eps: float) -> str:
    """Return eps_t as text with up to four decimals; as 8/255 once it is eps_train and such a fraction."""
    short = format_eps(eps) if phase in ("full", "latent") else ""
    digits = max(0, min(4, 5 - len(f"{eps:.0f}")))  # six characters, so that large radii of tables keep the columns
    return short if "/" in short else f"{eps:.{digits}f}"


def losses(step: Step) -> str:
    """Return the losses and weights of a step as text."""
    lower = f"L_lower {float(step.lower):.3f}" if step.lower is not None else ""
    upper = f"  L_upper {float(step.upper):.3f}" if step.upper is not None else ""
    if step.weights is None:
        return lower + upper
    return f"{lower}{upper}  k {step.weights.lower:.2f}/{step.weights.upper:.2f}  {step.weights.branch}"


def epoch_line(m: dict[str, Any], epochs: float, left: str) -> str:
    """Return the line of one epoch, in the columns of HEADER. Errors are on the validation images.

    Args:
        m: the metrics of the epoch. Missing numbers are shown as "-".
        epochs: number of all epochs.
        left: remaining time.
    """
    shares = (
        "/".join(
            f"{100 * m[f'branch_{b}']:3.0f}" for b in ("agree", "lower", "upper", "conflict") if f"branch_{b}" in m
        )
        + "%"
        if "branch_agree" in m
        else "-"
    )
    return (
        f"{m['epoch']:>4d}/{epochs:<3g} {_phase(m):<11s} {eps_at(m['phase'], m['eps']):>6s} {_number(m, 'loss_lower')} "
        f"{_number(m, 'loss_upper')} "
        f"{_number(m, 'kappa_lower')} {_number(m, 'kappa_upper')} {_number(m, 'angle', 0):>5s}  {shares:>14s}  "
        f"{100 * m['standard_error']:7.2f}%  {100 * m['verified_error']:7.2f}%  {m['seconds']:6.1f}s  {left:>5s}"
    )


def _phase(metrics: dict[str, Any]) -> str:
    return f"{metrics['phase']} {metrics['stage']}" if "stage" in metrics else str(metrics["phase"])


def _number(metrics: dict[str, Any], key: str, digits: int = 3) -> str:
    return f"{metrics[key]:7.{digits}f}" if key in metrics else "      -"


def clock(seconds: float) -> str:
    """Format seconds as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
