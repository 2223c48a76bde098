"""What a person sees while a network trains: a bar for the epoch, and a line for each finished one."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from advibp.training import Training
from advibp.training.metrics import Step
from advibp.training.step_cost import remaining_cost


class Display(Protocol):
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: Any) -> None: ...
    def start(self, training: Training, history: list[dict[str, Any]]) -> None: ...
    def step(self, training: Training, step: Step) -> None: ...
    def epoch(self, training: Training, metrics: dict[str, Any]) -> None: ...


class Silent:
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


class Live:
    """A live bar on a terminal; anywhere else one plain line per epoch."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[now]}"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self.task = self.bar.add_task("", now="")
        self.last_refresh = 0.0

    def __enter__(self) -> Self:
        if self.console.is_terminal:  # elsewhere even a disabled bar prints an empty line
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self.bar.stop()

    def start(self, training: Training, history: list[dict[str, Any]]) -> None:
        self.began, self.work_at_start = time.perf_counter(), remaining_cost(training)
        if training.finished:
            self._print("this run is finished; nothing is left to train")
            return
        self._print(HEADER)
        if history:
            self._print(f"continuing after epoch {history[-1]['epoch']}")

    def step(self, training: Training, step: Step) -> None:
        now = time.perf_counter()
        if not self.console.is_terminal or now - self.last_refresh < 0.1:
            return
        self.last_refresh = now
        self.bar.update(
            self.task,
            description=f"epoch {training.course.at(training.steps - 1).epoch + 1}",
            total=training.steps_per_epoch,
            completed=training.course.at(training.steps - 1).into + 1,
            now=f"{step.phase}  eps {step.eps:.4f}  {losses(step)}  left {self._left(training)}",
        )

    def epoch(self, training: Training, metrics: dict[str, Any]) -> None:
        self._print(epoch_line(metrics, training.course.epochs, self._left(training)))

    def _print(self, line: str) -> None:
        self.bar.console.print(line, highlight=False, soft_wrap=True)

    def _left(self, training: Training) -> str:
        left = remaining_cost(training)
        done = self.work_at_start - left
        return clock(left * (time.perf_counter() - self.began) / done) if done > 0 else "?"


HEADER = (
    "   epoch phase          eps L_lower L_upper k_lower k_upper   angle    agree/low/up"
    "   std.err  verified     time   left"
)


def losses(step: Step) -> str:
    below = f"L_lower {float(step.lower):.3f}" if step.lower is not None else ""
    above = f"  L_upper {float(step.upper):.3f}" if step.upper is not None else ""
    if step.weights is None:
        return below + above
    return f"{below}{above}  k {step.weights.lower:.2f}/{step.weights.upper:.2f}  {step.weights.branch}"


def epoch_line(m: dict[str, Any], epochs: float, left: str) -> str:
    """One finished epoch; a dash where its phase has no such number. Errors are those of the validation images."""
    shares = (
        "/".join(
            f"{100 * m[f'branch_{b}']:3.0f}" for b in ("agree", "lower", "upper", "conflict") if f"branch_{b}" in m
        )
        + "%"
        if "branch_agree" in m
        else "-"
    )
    return (
        f"{m['epoch']:>4d}/{epochs:<3g} {_phase(m):<11s} {m['eps']:.4f} {_number(m, 'loss_lower')} "
        f"{_number(m, 'loss_upper')} "
        f"{_number(m, 'kappa_lower')} {_number(m, 'kappa_upper')} {_number(m, 'angle', 0):>5s}  {shares:>14s}  "
        f"{100 * m['standard_error']:7.2f}%  {100 * m['verified_error']:7.2f}%  {m['seconds']:6.1f}s  {left:>5s}"
    )


def _phase(metrics: dict[str, Any]) -> str:
    return f"{metrics['phase']} {metrics['stage']}" if "stage" in metrics else str(metrics["phase"])


def _number(metrics: dict[str, Any], key: str, digits: int = 3) -> str:
    return f"{metrics[key]:7.{digits}f}" if key in metrics else "      -"


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
