"""advibp tune"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from advibp import nets
from advibp.cli.compare_command import fitting
from advibp.cli.console import NOTES, OUT, count, print_json, progress_console
from advibp.cli.parser import Parser, examples, output_options
from advibp.cli.train_command import NET_NOT_TYPED, options_of, recipe_options
from advibp.cli.tuning_sections import trial_cells, trial_head, tuning_sections
from advibp.errors import UserError
from advibp.recipe import Recipe
from advibp.report import write_page
from advibp.report.sections import TableSection
from advibp.runs.studies import OBJECTIVES
from advibp.runs.sweep_table import markdown
from advibp.runs.training_display import Display, Live, Silent
from advibp.runs.tuning import TrialResult, TuneOptions, Tuning, tune
from advibp.storage import checkpoint
from advibp.verify.verifiers import bounding_verifiers, in_order


def tune_options(parser: Parser) -> None:
    parser.usage = "advibp tune [DATA] [NET] --search KEY=RANGE [--out DIR] [--KEY VALUE ...]"
    parser.description = (
        "Search recipe keys for the best accuracies on validation images, with Optuna. The test set is not loaded. The "
        "folder DIR gets the trials, a table, a page, and the recipes of the best trials. Run the command again to "
        "continue an interrupted search; run it in several terminals to work on one search in parallel. `advibp train "
        "--recipe DIR/front/0007.yaml` trains with a recipe of the result."
    )
    parser.epilog = examples(
        ("tune mnist a --method mtl-ibp --search alpha=0.01..1:log --trials 20", "one key"),
        ("tune mnist a --search method=sabr,mtl-ibp lr=1e-4..1e-2 --minutes 60", "several methods"),
    )
    output_options(parser)
    parser.add_argument(
        "--search",
        nargs="+",
        required=True,
        metavar="KEY=RANGE",
        help="recipe keys and their ranges: KEY=LOW..HIGH, KEY=LOW..HIGH:log or KEY=VALUE,VALUE; a key that a method "
        "does not use is left out of its trials",
    )
    parser.add_argument("--trials", type=count, help="number of trials of the search; default: 20 without --minutes")
    parser.add_argument(
        "--minutes", type=float, help="no new trial begins when the finished trials have taken so long together"
    )
    parser.add_argument("--out", default="runs/tune", metavar="DIR", help="folder of the search")
    parser.add_argument("--recipe", help="a shipped recipe or a YAML file; other options take precedence")
    parser.add_argument(
        "--objectives",
        nargs="+",
        choices=OBJECTIVES,
        default=list(OBJECTIVES),
        help="accuracies to maximize; with both the result is a Pareto front",
    )
    parser.add_argument(
        "--by",
        nargs="+",
        default=[],
        metavar="VERIFIER",
        help=f"verifiers: {', '.join(bounding_verifiers())}, bab, ...; default: those that fit the methods",
    )
    parser.add_argument("--sample", type=count, default=200, help="number of validation images that are certified")
    parser.add_argument("--budget", type=float, default=5.0, metavar="SECONDS", help="time limit per certified image")
    parser.add_argument("--no-prune", action="store_true", help="train every trial to its end")
    parser.add_argument("--search-seed", type=lambda text: count(text, 0), default=0, help="seed of the search")
    recipe_options(parser)
    parser.set_defaults(command=run_tune)


class _Bar(Live):
    """A progress bar of the current trial, without lines per epoch."""

    def _print(self, line: str) -> None:
        pass


def run_tune(args: argparse.Namespace) -> None:
    if args.by:
        in_order(args.by)
    options = TuneOptions(
        objectives=tuple(name for name in OBJECTIVES if name in args.objectives),
        trials=args.trials if args.trials or args.minutes else 20,
        minutes=args.minutes,
        by=tuple(args.by),
        sample=args.sample,
        budget=args.budget,
        prune=not args.no_prune,
        seed=args.search_seed,
    )
    console = progress_console()

    def show(name: str) -> Display:
        return Silent() if args.quiet else _Bar(console)

    def on_trial(trial: TrialResult) -> None:
        params = "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in trial.params.items())
        values = "  ".join(f"{k} {v:.2f} %" for k, v in trial.values.items())
        outcome = values or trial.state + (f": {trial.failed}" if trial.failed else "")
        total = f" of {options.trials}" if options.trials else ""
        NOTES.print(escape(f"trial {trial.number + 1}{total}: {outcome}   {params}"), soft_wrap=True)

    keys = options_of(args)
    recipe = Recipe.load(args.recipe, **keys)
    if nets.is_user_code(recipe.net) and not args.net:
        raise UserError(NET_NOT_TYPED.format(net=recipe.net))
    tuning = tune(args.search, out=args.out, recipe=args.recipe, options=options, show=show, on_trial=on_trial, **keys)
    _write(tuning, args.typed)
    if args.json:
        print_json({**asdict(tuning), "table": tuning.path / "table.md", "page": tuning.path / "tune.html"})
    _print(tuning)
    if not tuning.front and not any(trial.state == "running" for trial in tuning.trials):
        raise UserError("No trial was completed; the table has the reasons.")


def _write(tuning: Tuning, command: str) -> None:
    """Write table.md and tune.html."""
    sections = tuning_sections(tuning, command)
    tables = [section for section in sections if isinstance(section, TableSection)]
    parts = [f"```sh\n{command}\n```\n"]
    for section in tables:
        parts += [f"## {section.title}\n", markdown([list(section.head), *map(list, section.rows)])]
    parts.append("Accuracies on validation images, in percent. The test set was not loaded.\n")
    checkpoint.write_atomically(tuning.path / "table.md", "\n".join(parts))
    write_page(tuning.path / "tune.html", [], sections=sections, title=f"Tuning {tuning.path.name}")


def _print(tuning: Tuning) -> None:
    head, rows = trial_head(tuning.trials), [trial_cells(trial, tuning.trials) for trial in tuning.front]
    section = TableSection(title="Pareto front", head=head, rows=rows)
    for number, columns in enumerate(fitting(section, OUT.width, leading=1)):
        printed = Table(*(head[i] for i in columns), title=None if number else "accuracy on validation images, %")
        for row in rows:
            printed.add_row(*(escape(row[i]) for i in columns))
        OUT.print(printed)
    running = [trial.number for trial in tuning.trials if trial.state == "running"]
    if running:
        OUT.print(f"Not finished yet: trials {', '.join(map(str, running))}, of other processes.", markup=False)
    for file in (*map(str, tuning.recipes), str(tuning.path / "table.md"), str(tuning.path / "tune.html")):
        NOTES.print(file, style="dim", markup=False, soft_wrap=True)
    if tuning.recipes:
        NOTES.print(f"next: advibp train --recipe {tuning.recipes[0]} --out {Path('runs') / 'best'}", markup=False)
