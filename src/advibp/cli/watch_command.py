"""advibp watch"""

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

from advibp.cli.console import OUT
from advibp.display.terminal import printable
from advibp.recipe import Recipe
from advibp.report.naming import names_of
from advibp.report.watching import ASCII, BLOCKS, Left, Watched, left_after, sparkline, usual
from advibp.runs.next_steps import how_to_certify, how_to_go_on
from advibp.runs.resuming import recipe_of
from advibp.runs.training_display import HEADER, clock, epoch_line
from advibp.storage.run_folder import RunFolder

EVERY = 1.0  # seconds between two looks


def watch_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Follow runs while they train, from anywhere that sees their folders: a live view on a terminal, elsewhere a\n"
        "line per epoch. Ends when all are finished; Ctrl-C ends the watching, not the training.\n\n"
        "  advibp watch runs/first\n"
        "  advibp watch runs/first runs/second --once"
    )
    parser.add_argument("run", nargs="+", metavar="RUN", help="folder of a run")
    parser.add_argument("--once", action="store_true", help="print how it stands, and return")
    parser.set_defaults(command=run_watch)


def run_watch(args: argparse.Namespace) -> int:
    runs = [Watched(Path(path)) for path in args.run]
    names_of([run.files for run in runs])  # none twice
    try:
        if args.once:
            _once(runs)
        elif OUT.is_terminal:
            _live(runs)
        else:
            _lines(runs)
    except KeyboardInterrupt:  # what was watched goes on
        return 130
    return 0


def _once(runs: Sequence[Watched]) -> None:
    for run in runs:
        for part in _block(run):
            OUT.print(part, soft_wrap=isinstance(part, Text))
        if run.finished:
            _say(f"  {_ending(run)}")


def _live(runs: Sequence[Watched]) -> None:
    with Live(_view(runs), console=OUT, auto_refresh=False) as live:
        while not _all_finished(runs):
            live.update(_view(runs), refresh=True)
            time.sleep(EVERY)
        live.update(_view(runs), refresh=True)
    for run in runs:  # below the view, where a long command is not cut in two
        _say(_ending(run))


def _all_finished(runs: Sequence[Watched]) -> bool:
    for run in runs:
        run.look()
    return all(run.finished for run in runs)


def _lines(runs: Sequence[Watched]) -> None:
    """One line per epoch as it appears, as training prints them."""
    names = [f"{name}: " if len(runs) > 1 else "" for name in names_of([run.files for run in runs])]
    tellers = [_Teller(run, name) for run, name in zip(runs, names, strict=True)]
    _say(" " * len(names[0]) + HEADER)
    while True:
        over = _all_finished(runs)
        for teller in tellers:
            teller.tell()
        if over:
            return
        time.sleep(EVERY)


class _Teller:
    """What was said of one run, and what is new."""

    def __init__(self, run: Watched, name: str) -> None:
        self.run, self.name, self.said, self.told_of = run, name, 0, ""
        _say(f"{name}{_headline(run)}")

    def tell(self) -> None:
        run = self.run
        if run.done < self.said:  # resumed from a checkpoint that is older than the last epoch
            self.said = run.done
            _say(f"{self.name}continuing after epoch {run.done}")
        for k, metrics in enumerate(run.history, 1):
            if metrics["epoch"] > self.said:
                left = left_after(run.files, run.history[:k])
                _say(self.name + epoch_line(metrics, run.total, _left(left)))
        self.said = run.done
        state = _ending(run) if run.finished or run.stands_still() else ""
        if state and state != self.told_of:
            _say(f"{self.name}{state}")
        self.told_of = state


def _say(line: str) -> None:
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
    if told := _trouble(run):
        parts.append(Text(f"  {told}", style="yellow"))
    return parts


def _headline(run: Watched) -> str:
    recipe = run.files.recipe
    said = [f"{recipe.get('method', '?')} on {recipe.get('data', '?')}, {recipe.get('net', '?')}"]
    said += [f"eps {recipe.get('eps', '?')}", f"seed {recipe.get('seed', '?')}"]
    return printable(f"{', '.join(said)} -> {run.path}")


def _progress(run: Watched) -> RenderableType:
    row = Table.grid(padding=(0, 2))
    left = "" if run.finished else f"left {_left(run.left())}"
    eps = f"eps {run.history[-1]['eps']:.4f}" if run.history else ""
    bar = ProgressBar(total=run.total, completed=run.done, width=24)
    phase = "finished" if run.finished else run.phase
    row.add_row(f"  {phase:<11s}", f"epoch {run.done}/{run.total}", bar, eps, left)
    return row


def _left(left: Left | None) -> str:
    return "?" if left is None else f"{'>' * left.least}{clock(left.seconds)}"


def _curves(history: Sequence[dict[str, Any]]) -> RenderableType:
    """Losses and validation errors over all epochs, and where they are now."""
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
    """How the two losses were weighed in an epoch, where there are two."""
    weights = [f"{name} {form(metrics[key])}" for key, name, form in WEIGHTS if key in metrics]
    keys = [f"branch_{name}" for name in ("agree", "lower", "upper", "conflict")]
    branches = [f"{key.removeprefix('branch_')} {metrics[key]:.0%}" for key in keys if key in metrics]
    lines = ("weights", weights), ("branches", branches)
    return [f"  {name:<11s}  {'   '.join(said)}" for name, said in lines if said]


WEIGHTS = (
    ("kappa_lower", "k_lower", "{:.3f}".format),
    ("kappa_upper", "k_upper", "{:.3f}".format),
    ("angle", "angle", "{:.0f}".format),
)


def _trouble(run: Watched) -> str:
    """Late, or standing still; "" while all is well."""
    if not run.late():
        return ""
    if run.stands_still():
        return _ending(run)
    return f"no new epoch for {clock(run.waiting())}, usually {clock(usual(run.history))}; a process is still at it"


def _ending(run: Watched) -> str:
    """What is to be done now: certify what is finished, resume what stands still."""
    if not run.finished:
        return f"nobody trains it, and no new epoch came for long; go on with: {how_to_go_on(_recipe(run), run.path)}"
    if not (run.path / "model.safetensors").exists():
        return "finished; kept for its numbers alone"
    return f"finished; next: {how_to_certify(_recipe(run), run.path)}"


def _recipe(run: Watched) -> Recipe:
    return recipe_of(RunFolder(run.path))
