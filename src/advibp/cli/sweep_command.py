"""advibp sweep"""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from advibp import nets
from advibp.cli.compare_command import fitting
from advibp.cli.console import NOTES, OUT, count, fraction, print_json, progress_console
from advibp.cli.parser import Parser, examples, output_options
from advibp.cli.train_command import NET_NOT_TYPED, options_of, recipe_options, user_method
from advibp.errors import UserError
from advibp.methods import METHODS
from advibp.recipe import Recipe
from advibp.report.sections import TableSection
from advibp.runs.fitting_verifiers import CHEAP
from advibp.runs.sweep import SAMPLE, DataCache, Evaluation, Sweep, choose_verifiers, combinations, sweep
from advibp.runs.sweep_table import choices, markdown, seed_table, table
from advibp.runs.training_display import Display, Live, Silent
from advibp.storage import checkpoint
from advibp.verify import Attack
from advibp.verify.verifiers import bounding_verifiers


def sweep_options(parser: Parser) -> None:
    parser.usage = "advibp sweep [DATA] [NET] --vary KEY=V,V [--out DIR] [--KEY VALUE ...]"
    parser.description = (
        "Train and certify one run for each combination of values, and print one table, which is also DIR/table.md. "
        "Finished runs are reused and interrupted runs are continued."
    )
    parser.epilog = examples(
        ("sweep mnist a --eps 0.1 --minutes 5 --vary method=all", "all methods, for five minutes each"),
        ("sweep mnist a --vary weighting=moments,fixed --vary seed=0,1", "four combinations"),
        ("sweep mnist a --one-by-one --vary beta1=0,0.9 --vary lr=1e-3,2e-3", "one key at a time"),
    )
    output_options(parser)
    parser.add_argument(
        "--vary",
        action="append",
        required=True,
        metavar="KEY=V,V,...",
        help="values of a recipe key; repeat the option for several keys; method=all means every method",
    )
    parser.add_argument("--one-by-one", action="store_true", help="change one key at a time; default: all combinations")
    parser.add_argument("--minutes", type=float, help="time limit per training; epochs are reduced to meet it")
    parser.add_argument("--out", default="runs/sweep", metavar="DIR", help="folder of the runs")
    parser.add_argument("--recipe", help="a shipped recipe or a YAML file; other options take precedence")
    parser.add_argument("--test-eps", nargs="+", type=fraction, help="radii to certify; default: each run's eps")
    names = ", ".join(bounding_verifiers())
    parser.add_argument(
        "--by",
        nargs="+",
        default=[],
        metavar="VERIFIER",
        help=f"verifiers: {names}. Default: ibp if all methods train for it; otherwise {', '.join(CHEAP)} and the one "
        "that the method trains for",
    )
    parser.add_argument(
        "--test-attack-steps", type=count, default=40, metavar="N", help="steps of PGD on the trained networks"
    )
    parser.add_old_name("--pgd-steps", "--test-attack-steps", type=count)
    parser.add_argument(
        "--sample",
        type=count,
        metavar="N",
        help=f"certify N random images; default: all, or {SAMPLE} if --by is not given and ibp is not enough",
    )
    parser.add_argument(
        "--split",
        choices=["test", "validation"],
        default="test",
        help="images to certify; test includes the validation images, by which you may choose a run",
    )
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="time limit per image")
    recipe_options(parser)
    parser.set_defaults(command=run_sweep)


def run_sweep(args: argparse.Namespace) -> None:
    options = options_of(args)
    vary = _parse_vary(args.vary)
    if args.minutes is not None and not 0 < args.minutes < math.inf:
        raise UserError(f"--minutes is {args.minutes:g}, but must be above 0.")
    # User code is run only if its name is on the command line. Each method is loaded once.
    names = [str(name) for name in (args.method, *vary.get("method", [])) if name]
    methods = {name: method for name in names if (method := user_method(name)) is not None}
    recipes = []
    for change in combinations(vary, one_by_one=args.one_by_one):  # all recipes are checked before the first training
        keys = {**options, **change}
        recipe = Recipe.load(args.recipe, methods.get(str(keys.get("method"))), **keys)
        if nets.is_user_code(recipe.net) and "net" not in keys:
            raise UserError(NET_NOT_TYPED.format(net=recipe.net))
        recipes.append((change, recipe))
    out, numbers = Path(args.out), iter(range(1, len(recipes) + 1))
    out.mkdir(parents=True, exist_ok=True)

    def show(name: str) -> Display:
        NOTES.print(f"[bold]{next(numbers)} of {len(recipes)}: {escape(name)}[/]")
        return Silent() if args.quiet else Live(progress_console())

    settings = Sweep(
        out=out,
        load=DataCache(),
        evaluation=Evaluation(
            eps=tuple(args.test_eps or ()),
            by=tuple(args.by),
            attack=Attack(steps=args.test_attack_steps),
            sample=args.sample,
            split=args.split,
            budget=args.budget,
        ),
        seconds=60 * args.minutes if args.minutes else None,
        methods=methods,
        show=show,
    )
    rows = sweep(settings, recipes)
    tables = [cells for cells in (table(rows), seed_table(rows)) if cells]
    notes = _notes(settings, [recipe for _, recipe in recipes]) + choices(rows)
    if args.json:
        print_json({"out": out, "table": out / "table.md", "rows": rows, "notes": notes})
    for title, cells in zip((str(out), "mean and standard deviation over seeds"), tables, strict=False):
        section = TableSection(title=title, head=cells[0], rows=cells[1:])
        for number, columns in enumerate(fitting(section, OUT.width, leading=cells[0].index("test eps") + 1)):
            printed = Table(*(cells[0][i] for i in columns), title=None if number else escape(title))
            for row in cells[1:]:
                printed.add_row(*(escape(row[i]) for i in columns))
            OUT.print(printed)
    for note in notes:
        OUT.print(note, markup=False, soft_wrap=True)
    command = args.typed if "--out" in args.typed else f"{args.typed} --out {shlex.quote(str(out))}"
    parts = [f"```sh\n{command}\n```\n", *map(markdown, tables), "".join(f"- {note}\n" for note in notes)]
    checkpoint.write_atomically(out / "table.md", "\n".join(part for part in parts if part))
    NOTES.print(f"table: {out / 'table.md'}", style="dim", markup=False, soft_wrap=True)
    if all("failed" in row for row in rows):
        raise UserError("All runs of the sweep failed; the table has the reasons.")


def _notes(settings: Sweep, recipes: Sequence[Recipe]) -> list[str]:
    """Sentences about the verifiers and images that the sweep chose."""
    evaluation, chosen = settings.evaluation, choose_verifiers(settings, recipes)
    if evaluation.by or all(one.by == ("ibp",) for one in chosen):
        return []
    images = f" on {chosen[0].sample} random images" if evaluation.sample is None else ""
    return [f"Every run is certified by {', '.join(CHEAP)} and the verifier that its method trains for{images}."]


def _parse_vary(texts: list[str]) -> dict[str, list[str]]:
    vary: dict[str, list[str]] = {}
    for key, values in map(_parse_values, texts):
        if key in vary:
            raise UserError(f"--vary {key} is given twice; write all values in one option: {key}=V,V.")
        vary[key] = values
    return vary


def _parse_values(text: str) -> tuple[str, list[str]]:
    key, equals, values = text.partition("=")
    key = key.strip().replace("-", "_")
    if not equals or not values:
        raise UserError(f"'{text}' has no values; write --vary KEY=VALUE,VALUE.")
    if (key, values) == ("method", "all"):
        return key, list(METHODS)
    return key, [value.strip() for value in values.split(",")]
