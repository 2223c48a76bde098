"""The command `advibp watch`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from advibp.cli.console import OUT, print_json
from advibp.cli.parser import examples
from advibp.display.eps import format_eps
from advibp.display.terminal import printable
from advibp.errors import UserError
from advibp.recipe import Recipe
from advibp.report.naming import names_of
from advibp.report.watching import ASCII, BLOCKS, Remaining, Watched, remaining_after, sparkline, usual
from advibp.runs.next_steps import how_to_certify, how_to_go_on
from advibp.runs.resuming import recipe_of
from advibp.runs.training_display import HEADER, clock, epoch_line, eps_at
from advibp.storage.run_folder import RunFolder

EVERY = 1.0  # seconds between updates


def watch_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Follow runs while they train, from any machine that can read their folders. Shows a live view on a terminal, "
        "and a line per epoch elsewhere. Ends when all runs are finished. Ctrl-C does not stop the training."
    )
    parser.epilog = examples(
        ("watch runs/first", ""), ("watch runs/first runs/second --once --json", "the current state as JSON")
    )
    parser.add_argument("run", nargs="+", metavar="RUN", help="folder of a run")
    parser.add_argument("--once", action="store_true", help="print the current state and exit")
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="with --once: print the state as JSON on stdout")
    parser.set_defaults(command=run_watch)


def run_watch(args: argparse.Namespace) -> int:
    runs = [Watched(Path(path)) for path in args.run]
    names_of([run.files for run in runs])  # refuses duplicates
    if args.json and not args.once:
        raise UserError("--json prints the current state once; add --once.")
    if args.json:
        print_json([_state(run) for run in runs])
        return 0
    try:
        if args.once:
            _once(runs)
        elif OUT.is_terminal:
            _live(runs)
        else:
            _lines(runs)
    except KeyboardInterrupt:  # the training continues
        return 130
    return 0


def _state(run: Watched) -> dict[str, Any]:
    """Return the state of a run as plain data."""
    left = None if run.finished else run.remaining()
    return {
        "run": run.path,
        "finished": run.finished,
        "stalled": not run.finished and run.is_stalled(),
        "phase": run.phase,
        "epoch": run.done,
        "epochs": run.total,
        "remaining_seconds": None if left is None else left.seconds,
        "metrics": dict(run.history[-1]) if run.history else None,
    }


def _once(runs: Sequence[Watched]) -> None:
    for run in runs:
        for part in _block(run):
            OUT.print(part, soft_wrap=isinstance(part, Text))
        if run.finished:
            _print(f"  {_ending(run)}")


def _live(runs: Sequence[Watched]) -> None:
    with Live(_view(runs), console=OUT, auto_refresh=False) as live:
        while not _all_finished(runs):
            live.update(_view(runs), refresh=True)
            time.sleep(EVERY)
        live.update(_view(runs), refresh=True)
    for run in runs:  # below the view, where long commands are not truncated
        _print(_ending(run))


def _all_finished(runs: Sequence[Watched]) -> bool:
    for run in runs:
        run.look()
    return all(run.finished for run in runs)


def _lines(runs: Sequence[Watched]) -> None:
    """Print a line for each new epoch, as training does."""
    names = [f"{name}: " if len(runs) > 1 else "" for name in names_of([run.files for run in runs])]
    printers = [_EpochPrinter(run, name) for run, name in zip(runs, names, strict=True)]
    _print(" " * len(names[0]) + HEADER)
    while True:
        over = _all_finished(runs)
        for printer in printers:
            printer.update()
        if over:
            return
        time.sleep(EVERY)


class _EpochPrinter:
    """Prints the new epochs of a run, and when it ends or stalls."""

    def __init__(self, run: Watched, name: str) -> None:
        self.run, self.name, self.printed, self.state = run, name, 0, ""
        _print(f"{name}{_headline(run)}")

    def update(self) -> None:
        run = self.run
        if run.done < self.printed:  # resumed from a checkpoint that is older than the last epoch
            self.printed = run.done
            _print(f"{self.name}continuing after epoch {run.done}")
        for k, metrics in enumerate(run.history, 1):
            if metrics["epoch"] > self.printed:
                left = remaining_after(run.files, run.history[:k])
                _print(self.name + epoch_line(metrics, run.total, _left(left)))
        self.printed = run.done
        state = _ending(run) if run.finished or run.is_stalled() else ""
        if state and state != self.state:
            _print(f"{self.name}{state}")
        self.state = state


def _print(line: str) -> None:
    OUT.print(line, markup=False, emoji=False, soft_wrap=True)
    OUT.file.flush()


def _view(runs: Sequence[Watched]) -> RenderableType:
    return Group(*(part for run in runs for part in _block(run)))


def _block(run: Watched) -> list[RenderableType]:
    parts: list[RenderableType] = [Text(_headline(run), style="bold"), _progress(run)]
    if run.history:
        parts.append(_curves(run.history))
        parts += [Text(line) for line in _weights(run.history[-1])]
    elif not run.finished:
        parts.append(Text("  no epoch is finished yet", style="dim"))
    if warning := _warning(run):
        parts.append(Text(f"  {warning}", style="yellow"))
    return parts


def _headline(run: Watched) -> str:
    recipe = run.files.recipe
    parts = [f"{recipe.get('method', '?')} on {recipe.get('data', '?')}, {recipe.get('net', '?')}"]
    parts += [f"eps {_eps(recipe.get('eps'))}", f"seed {recipe.get('seed', '?')}"]
    return printable(f"{', '.join(parts)} -> {run.path}")


def _progress(run: Watched) -> RenderableType:
    row = Table.grid(padding=(0, 2))
    left = "" if run.finished else f"left {_left(run.remaining())}"
    last = run.history[-1] if run.history else None
    eps = f"eps {eps_at(str(last.get('phase')), last['eps'])}" if last else ""
    bar = ProgressBar(total=run.total, completed=run.done, width=24)
    phase = "finished" if run.finished else run.phase
    row.add_row(f"  {phase:<11s}", f"epoch {run.done}/{run.total}", bar, eps, left)
    return row


def _eps(eps: Any) -> str:
    return format_eps(eps) if isinstance(eps, float) else str(eps if eps is not None else "?")


def _left(left: Remaining | None) -> str:
    return "?" if left is None else f"{'>' * left.least}{clock(left.seconds)}"


def _curves(history: Sequence[dict[str, Any]]) -> RenderableType:
    """Losses and validation errors over all epochs, with their current values."""
    grid = Table.grid(padding=(0, 2))
    bars, width = (ASCII if OUT.options.ascii_only else BLOCKS), max(8, min(60, OUT.width - 40))
    for key, name, form in CURVES:
        values = [metrics.get(key) for metrics in history]
        now = values[-1]
        line = Text(sparkline(values, width, bars), style="cyan", no_wrap=True)
        grid.add_row(f"  {name:<11s}", Text("-" if now is None else form(now), justify="right"), line)
    return grid


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


CURVES = (
    ("loss_lower", "L_lower", "{:.3f}".format),
    ("loss_upper", "L_upper", "{:.3f}".format),
    ("standard_error", "std.err", _percent),
    ("verified_error", "verified", _percent),
)


def _weights(metrics: dict[str, Any]) -> list[str]:
    """The weights of the two losses in an epoch, if there are two."""
    weights = [f"{name} {form(metrics[key])}" for key, name, form in WEIGHTS if key in metrics]
    keys = [f"branch_{name}" for name in ("agree", "lower", "upper", "conflict")]
    branches = [f"{key.removeprefix('branch_')} {metrics[key]:.0%}" for key in keys if key in metrics]
    lines = ("weights", weights), ("branches", branches)
    return [f"  {name:<11s}  {'   '.join(values)}" for name, values in lines if values]


WEIGHTS = (
    ("kappa_lower", "k_lower", "{:.3f}".format),
    ("kappa_upper", "k_upper", "{:.3f}".format),
    ("angle", "angle", "{:.0f}".format),
)


def _warning(run: Watched) -> str:
    """A message if the run is late or stalled, otherwise ""."""
    if not run.late():
        return ""
    if run.is_stalled():
        return _ending(run)
    return f"no new epoch for {clock(run.waiting())}, usually {clock(usual(run.history))}; a process still trains it"


def _ending(run: Watched) -> str:
    """The next step: certify a finished run, or resume a stalled one."""
    if not run.finished:
        resume = how_to_go_on(_recipe(run), run.path)
        return f"no process trains this run, and there has been no new epoch for long; continue with: {resume}"
    if not (run.path / "model.safetensors").exists():
        return "finished; its weights were not kept"
    return f"finished; next: {how_to_certify(_recipe(run), run.path)}"


def _recipe(run: Watched) -> Recipe:
    return recipe_of(RunFolder(run.path))
