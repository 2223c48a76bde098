"""advibp sweep"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from advibp import nets
from advibp.cli.console import OUT, count, fraction
from advibp.cli.train_command import NET_NOT_TYPED, options_of, recipe_options, user_method
from advibp.errors import UserError
from advibp.methods import METHODS
from advibp.recipe import Recipe
from advibp.runs.sweep import DataCache, Evaluation, Sweep, combinations, markdown, sweep, table
from advibp.runs.training_display import Display, Live
from advibp.storage import checkpoint
from advibp.verify import Attack
from advibp.verify.verifiers import bounding_verifiers


def sweep_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "advibp sweep [DATA] [NET] --vary KEY=V,V,... [--out DIR] [OPTIONS] [--KEY VALUE ...]"
    parser.description = (
        "Train and certify one run for each combination of values, and print one table, which is also DIR/table.md.\n"
        "Finished runs are reused and interrupted runs are continued.\n\n"
        "  advibp sweep mnist a --eps 0.1 --limit 10000 --minutes 5 --vary method=all --out runs/methods\n"
        "  advibp sweep mnist a --eps 0.1 --vary weighting=moments,fixed,pcgrad,mgda --vary seed=0,1,2\n"
        "  advibp sweep mnist a --eps 0.1 --one-by-one --vary beta1=0,0.9,0.999 --vary c_max=0,0.01,auto"
    )
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
    parser.add_argument("--by", nargs="+", default=["ibp"], metavar="VERIFIER", help=f"verifiers: {names}")
    parser.add_argument("--pgd-steps", type=count, default=40, metavar="N", help="steps of the PGD attack")
    parser.add_argument("--sample", type=count, metavar="N", help="certify N random images; default: all")
    parser.add_argument(
        "--split",
        choices=["test", "validation"],
        default="test",
        help="images to certify; use validation if you choose a run by this table",
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
        OUT.print(f"[bold]{next(numbers)} of {len(recipes)}: {escape(name)}[/]")
        return Live(OUT)

    rows = sweep(
        Sweep(
            out=out,
            load=DataCache(),
            evaluation=Evaluation(
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
    cells = table(rows)
    printed = Table(*cells[0], title=escape(str(out)))
    for row in cells[1:]:
        printed.add_row(*map(escape, row))
    OUT.print(printed)
    checkpoint.write_atomically(out / "table.md", f"```sh\n{args.typed}\n```\n\n{markdown(cells)}")
    OUT.print(f"table: {out / 'table.md'}", style="dim", markup=False, soft_wrap=True)
    if all("failed" in row for row in rows):
        raise UserError("All runs of the sweep failed; the table has the reasons.")


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
