"""advibp sweep"""

from __future__ import annotations

import argparse
import dataclasses
import math
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from advibp import nets
from advibp.cli.console import OUT, count, fraction
from advibp.cli.train_command import own_method, recipe_options
from advibp.errors import UserError
from advibp.methods import METHODS
from advibp.recipe import Recipe
from advibp.runs.sweep import Examination, Loaded, Sweep, combined, markdown, sweep, table
from advibp.runs.training_display import Display, Live
from advibp.storage import checkpoint
from advibp.verify import Attack
from advibp.verify.verifiers import bounding_verifiers


def sweep_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Train and certify one run for every combination of values, into DIR, and print one table (DIR/table.md).\n"
        "What is finished is not done again.\n\n"
        "  advibp sweep mnist a --eps 0.1 --limit 10000 --minutes 5 --vary method=all --out runs/methods\n"
        "  advibp sweep mnist a --eps 0.1 --vary weighting=moments,fixed,pcgrad,mgda --vary seed=0,1,2\n"
        "  advibp sweep mnist a --eps 0.1 --one-by-one --vary beta1=0,0.9,0.999 --vary c_max=0,0.01,auto"
    )
    recipe_options(parser)
    parser.add_argument(
        "--vary",
        action="append",
        required=True,
        metavar="KEY=V,V,...",
        help="values of a recipe's key; may be given for several keys; method=all: every method",
    )
    parser.add_argument("--one-by-one", action="store_true", help="one key at a time instead of all combinations")
    parser.add_argument("--minutes", type=float, help="most that a training may take: fewer epochs where needed")
    parser.add_argument("--out", default="runs/sweep", metavar="DIR", help="folder of the runs (default: runs/sweep)")
    parser.add_argument("--recipe", help="a shipped recipe or a YAML file; options given here win")
    parser.add_argument("--test-eps", nargs="+", type=fraction, help="radii to certify at; default: each run's eps")
    names = ", ".join(bounding_verifiers())
    parser.add_argument("--by", nargs="+", default=["ibp"], metavar="PROVER", help=f"who may prove: {names}")
    parser.add_argument("--pgd-steps", type=count, default=40, help="steps of the attack that judges (default: 40)")
    parser.add_argument("--sample", type=count, metavar="N", help="N of these images, by chance")
    parser.add_argument(
        "--split",
        choices=["test", "validation"],
        default="test",
        help="images that networks are judged on; validation, if a choice is made by the table (default: test)",
    )
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="of provers, per image")
    parser.set_defaults(command=run_sweep)


def run_sweep(args: argparse.Namespace) -> None:
    given = {f.name: getattr(args, f.name) for f in dataclasses.fields(Recipe) if getattr(args, f.name) is not None}
    vary = _varied(args.vary)
    if args.minutes is not None and not 0 < args.minutes < math.inf:
        raise UserError(f"--minutes is {args.minutes:g}, but must be above 0.")
    # Code of one's own runs only if it is typed; a method is loaded once.
    typed = [str(name) for name in (args.method, *vary.get("method", [])) if name]
    methods = {name: method for name in typed if (method := own_method(name)) is not None}
    recipes = []
    for change in combined(vary, one_by_one=args.one_by_one):  # what has no meaning is found before hours are spent
        named = {**given, **change}
        recipe = Recipe.load(args.recipe, methods.get(str(named.get("method"))), **named)
        if nets.is_own(recipe.net) and "net" not in named:
            raise UserError(f"The recipe names a network of one's own; type DATA and NET too ({recipe.net}).")
        recipes.append((change, recipe))
    out, numbers = Path(args.out), iter(range(1, len(recipes) + 1))
    out.mkdir(parents=True, exist_ok=True)

    def show(name: str) -> Display:
        OUT.print(f"[bold]{next(numbers)} of {len(recipes)}: {escape(name)}[/]")
        return Live(OUT)

    rows = sweep(
        Sweep(
            out=out,
            load=Loaded(),
            examination=Examination(
                eps=tuple(args.test_eps or ()),
                by=tuple(args.by),
                attack=Attack(steps=args.pgd_steps),
                sample=args.sample,
                split=args.split,
                budget=args.budget,
            ),
            seconds=60 * args.minutes if args.minutes else None,
            methods=methods,
            show=show,
        ),
        recipes,
    )
    found = table(rows)
    shown = Table(*found[0], title=escape(str(out)))
    for row in found[1:]:
        shown.add_row(*map(escape, row))
    OUT.print(shown)
    checkpoint.write_atomically(out / "table.md", f"```sh\n{args.typed}\n```\n\n{markdown(found)}")
    OUT.print(f"the same: {out / 'table.md'}", style="dim", markup=False, soft_wrap=True)
    if all("failed" in row for row in rows):
        raise UserError("No run of the sweep could be made; the table says why.")


def _varied(texts: list[str]) -> dict[str, list[str]]:
    vary: dict[str, list[str]] = {}
    for key, values in map(_values, texts):
        if key in vary:
            raise UserError(f"--vary {key} is given twice; write all its values behind one: {key}=V,V.")
        vary[key] = values
    return vary


def _values(text: str) -> tuple[str, list[str]]:
    key, equals, values = text.partition("=")
    key = key.strip().replace("-", "_")
    if not equals or not values:
        raise UserError(f"'{text}' varies nothing; write --vary KEY=VALUE,VALUE.")
    if (key, values) == ("method", "all"):
        return key, list(METHODS)
    return key, [value.strip() for value in values.split(",")]
