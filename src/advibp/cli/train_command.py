"""advibp train"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from rich.markup import escape

from advibp import nets
from advibp.callbacks import LOGGERS
from advibp.cli.console import NOTES, OUT, print_json, print_warnings, progress_console
from advibp.cli.parser import Parser, examples, output_options
from advibp.display.eps import format_eps
from advibp.errors import UserError
from advibp.methods import METHODS, Method, method_at
from advibp.parsers import flag
from advibp.recipe import KEY_GROUPS, OLD_KEYS, Recipe, option_text, read
from advibp.runs import first_net, train
from advibp.runs.next_steps import how_to_certify
from advibp.runs.recipe_data import load_data
from advibp.runs.resuming import recipe_of, refuse_fewer_epochs, should_resume
from advibp.runs.run_sources import data_source, net_option
from advibp.runs.training_display import Live, Silent
from advibp.storage.run_folder import RunFolder


def train_options(train_parser: Parser) -> None:
    train_parser.usage = "advibp train [DATA] [NET] [--out DIR] [--resume] [--KEY VALUE ...]"
    train_parser.description = (
        "Train NET on DATA. The folder DIR gets recipe.yaml, metrics.jsonl, TensorBoard events, checkpoints, "
        "model.safetensors and summary.json. Each recipe key is an option."
    )
    train_parser.epilog = examples(
        ("train mnist dm-small --eps 0.3 --out runs/first", ""),
        ('train digits.npz "Conv 16 4x4+2, FC 100" --eps 8/255 --epochs 20', "your own images"),
        ("train cifar10 cnn7-narrow --eps 2/255 --flip --crop 2", "with augmentation"),
        ("train mnist my_net.py:make --weights w.safetensors --eps 0.1", "your own network"),
        ("train --resume --out runs/first", "continue an interrupted run"),
        ("train --resume --out runs/first --epochs 90", "train a finished run for longer"),
        ("train --resume --out runs/first --stages 2", "add layer-wise stages to a finished run"),
    )
    run = train_parser.add_argument_group("run")
    run.add_argument("--out", metavar="DIR", help="folder of the run; default: runs/DATA-NET-METHOD-epsEPS")
    run.add_argument(
        "--resume",
        action="store_true",
        help="continue the run in --out where it stopped; with a larger --epochs, train it for longer",
    )
    run.add_argument(
        "--recipe", help="a shipped recipe (see advibp recipes) or a YAML file; other options take precedence"
    )
    run.add_argument(
        "--log",
        nargs="+",
        choices=sorted(LOGGERS),
        default=[],
        help="also log the run to these services: mlflow, wandb; their own environment variables configure them",
    )
    output_options(train_parser)
    recipe_options(train_parser)
    train_parser.set_defaults(command=run_train)


def recipe_options(parser: Parser) -> None:
    """Add the arguments DATA and NET, and an option for each recipe key, in groups."""
    parser.add_argument("data", nargs="?", metavar="DATA", help=_description("data"))
    parser.add_argument("net", nargs="?", metavar="NET", help=_description("net"))
    fields = Recipe.__dataclass_fields__
    for title, keys in KEY_GROUPS.items():
        names = [key for key in keys if key not in ("data", "net", "published")]
        group = parser.add_argument_group(f"recipe: {title.lower()}") if names else None
        for key in names:
            dashed = key.replace("_", "-")
            alias = [f"--{key}"] * (key != dashed)
            if fields[key].metadata["parse"] is flag:
                parser.add_flag(dashed, help=_help(key), dest=key, group=group, aliases=alias)
            else:
                assert group is not None
                group.add_argument(f"--{dashed}", *alias, dest=key, help=_help(key), metavar=key.split("_")[-1].upper())
    for old, new in OLD_KEYS.items():
        parser.add_old_name(f"--{old}", f"--{new}")
    parser.set_defaults(published=None)


def _help(key: str) -> str:
    """Return the description of a recipe key with its default."""
    return f"{_description(key)} (default: {option_text(getattr(Recipe, key))})".replace("%", "%%")


def _description(key: str) -> str:
    return str(Recipe.__dataclass_fields__[key].metadata["description"])


#: User code is run only if its name is on the command line, not if a file names it.
NET_NOT_TYPED = "The recipe has a user-defined network; to run its code, add DATA and NET ({net}) to the command."
METHOD_NOT_TYPED = "The recipe has a user-defined method; to run its code, add --method {method} to the command."


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the recipe keys that are on the command line."""
    names = [f.name for f in dataclasses.fields(Recipe)]
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def run_train(args: argparse.Namespace) -> None:
    options = options_of(args)
    method = user_method(args.method)
    if args.out and should_resume(RunFolder(Path(args.out)), args.resume):
        # The recipe comes from the folder. `train` checks that the options agree with it.
        stored = recipe_of(RunFolder(Path(args.out))).as_dict()
        requested = {**stored, **(read(args.recipe) if args.recipe else {}), **options}
        if requested["method"] != stored["method"]:
            raise UserError(
                f"{args.out} was started with method = {stored['method']}, not {requested['method']}; resume it "
                "without changing method, or train into another --out."
            )
        if "epochs" in options:  # perhaps an extension, which `train` handles
            refuse_fewer_epochs(RunFolder(Path(args.out)), options["epochs"])
            requested["extended"] = []
        recipe = Recipe.of(requested)
    else:
        if args.resume and not (args.data or args.recipe):
            problem = f"{args.out} has no run" if args.out else "--resume needs --out"
            raise UserError(f"{problem}; give the folder of a run, or DATA and NET to start one.")
        recipe = Recipe.load(args.recipe, method, **options)
    if nets.is_user_code(recipe.net) and not args.net:
        raise UserError(NET_NOT_TYPED.format(net=recipe.net))
    if recipe.method not in METHODS and method is None:
        raise UserError(METHOD_NOT_TYPED.format(method=recipe.method))
    out = Path(
        args.out
        or f"runs/{Path(recipe.data).stem}-{Path(recipe.net).stem}-{recipe.method.rpartition(':')[2]}-eps{recipe.eps:g}"
    )
    should_resume(RunFolder(out), args.resume)
    source = recipe.data
    if RunFolder(out).exists:
        if not nets.is_known(recipe.net) and not nets.is_user_code(recipe.net):
            raise UserError(net_option(out, recipe))
        begun = recipe_of(RunFolder(out))
        # The name of the run's data means the same data in another folder.
        source = data_source(out, begun) if args.data in (None, begun.data) else args.data
    data = load_data(recipe, source, recipe.limit)
    net = first_net(recipe, data, weights=not RunFolder(out).has_weights)
    inputs = "images" if len(data.input_shape) == 3 else "rows" if len(data.input_shape) == 1 else "inputs"
    NOTES.print(
        f"[bold]{recipe.method}[/] on {escape(data.name)} ({len(data.train):,} {inputs}), {escape(recipe.net)} "
        f"({sum(p.numel() for p in net.parameters()):,} parameters), eps {format_eps(recipe.eps)}, "
        f"{recipe.epochs:g} epoch{'' if recipe.epochs == 1 else 's'}{_and_stages(recipe)} -> {escape(str(out))}",
        soft_wrap=True,
    )
    NOTES.print("std.err, verified: standard and IBP verified error on the validation images\n", style="dim")
    show = Silent() if args.quiet else Live(progress_console())
    callbacks = [LOGGERS[name]() for name in dict.fromkeys(args.log)]
    run = train(net, data, recipe=recipe, method=method, out=out, resume=args.resume, show=show, callbacks=callbacks)
    if args.json:
        print_json({"run": out, **run.summary})
    NOTES.print(f"\ntrained in {_duration(run.summary['seconds'])}")
    if args.quiet:
        OUT.print(str(out), markup=False, soft_wrap=True)
    print_warnings(run.summary["warnings"])
    NOTES.print(f"next: {how_to_certify(recipe, out, method)}", markup=False, soft_wrap=True)


def user_method(name: str | None) -> Method | None:
    """Load the method of --method file.py:NAME; None for the name of a known method."""
    return None if name is None or name in METHODS or ":" not in name else method_at(name)


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} seconds" if seconds < 60 else f"{seconds / 60:.1f} minutes"


def _and_stages(recipe: Recipe) -> str:
    plural = "" if recipe.stages == 1 else "s"
    return f", then {recipe.stages} layer-wise stage{plural} of {recipe.stage_epochs:g}" if recipe.stages else ""
