"""Show the progress of a training in a notebook: a progress bar and a table of epochs, updated in place."""

from __future__ import annotations

from html import escape
from typing import Any, Self

from advibp.display.notebook_output import NotebookOutput
from advibp.display.object_summary import html_table
from advibp.display.terminal import Terminal
from advibp.runs.training_display import Display, Live, TimeLeft, eps_at, initial_note, losses
from advibp.training import Training
from advibp.training.metrics import Step

_ROWS = 10  # epochs in the table; earlier ones are in run.history
_HEAD = ["epoch", "phase", "eps", "L lower", "L upper", "standard error", "verified error", "seconds"]


class NotebookDisplay:
    """Shows a progress bar and the last ten epochs in one output of a notebook cell. The default in a notebook.

    Examples:
        ```python
        advibp.train(net, data, eps=0.1)                          # in a notebook: this display
        advibp.train(net, data, eps=0.1, show=advibp.Silent())    # shows nothing
        ```
    """

    def __init__(self) -> None:
        self.output = NotebookOutput()
        self.epochs: list[dict[str, Any]] = []
        self.note = self.progress = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.progress = ""
        self._show(now=True)

    def start(self, training: Training, history: list[dict[str, Any]]) -> None:
        self.time_left, self.epochs = TimeLeft(training), list(history)
        self.note = initial_note(training, history)
        self._show(now=True)

    def step(self, training: Training, step: Step) -> None:
        at = training.course.at(training.steps - 1)
        done, total = at.step_in_epoch + 1, training.steps_per_epoch
        text = f"epoch {at.epoch + 1}/{training.course.epochs:g}  {step.phase}  "
        text += f"eps {eps_at(step.phase, step.eps)}  {losses(step)}  left {self.time_left(training)}"
        self.progress = f'<progress value="{done}" max="{total}"></progress> <code>{escape(text)}</code>'
        self._show()

    def epoch(self, training: Training, metrics: dict[str, Any]) -> None:
        self.epochs.append(metrics)
        self._show()

    def _show(self, now: bool = False) -> None:
        parts = [f"<p>{escape(self.note)}</p>"] if self.note else []
        if self.epochs:
            parts.append(html_table([_HEAD, *map(_row, self.epochs[-_ROWS:])]))
        if len(self.epochs) > _ROWS:
            parts.append(f"<p>{len(self.epochs) - _ROWS} earlier epochs are in run.history</p>")
        if self.progress:
            parts.append(f"<p>{self.progress}</p>")
        if any(parts):
            self.output.show(f"<div>{''.join(parts)}</div>", now=now)


def _row(m: dict[str, Any]) -> list[str]:
    def number(key: str, form: str, scale: float = 1) -> str:
        return format(scale * m[key], form) if key in m else "-"

    errors = [f"{number(key, '.2f', 100)} %" for key in ("standard_error", "verified_error")]
    phase = f"{m['phase']} {m['stage']}" if "stage" in m else str(m["phase"])
    loss = [number("loss_lower", ".3f"), number("loss_upper", ".3f")]
    return [str(m["epoch"]), phase, number("eps", ".4f"), *loss, *errors, number("seconds", ".1f")]


def default_display() -> Display:
    """Return the display of `train` if `show` is not given: that of a notebook or that of a terminal."""
    terminal = Terminal(stderr=True)
    return NotebookDisplay() if terminal.is_jupyter else Live(terminal)
