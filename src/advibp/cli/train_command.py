"""advibp train"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from rich.markup import escape

from advibp import nets
from advibp.cli.console import OUT
from advibp.errors import UserError
from advibp.methods import METHODS, Method, method_at
from advibp.recipe import Recipe, read
from advibp.runs import first_net, train
from advibp.runs.next_steps import how_to_certify
from advibp.runs.recipe_data import load_data
from advibp.runs.resuming import recipe_of
from advibp.runs.training_display import Live
from advibp.storage.run_folder import RunFolder


def train_options(train_parser: argparse.ArgumentParser) -> None:
    train_parser.description = (
        "Train NET on DATA with a method and a radius. DIR then holds recipe.yaml, metrics.jsonl, TensorBoard events,\n"
        "checkpoints, model.safetensors and summary.json. Every key of a recipe is an option here.\n\n"
        "  advibp train mnist dm-small --eps 0.3 --out runs/first\n"
        '  advibp train digits.npz "Conv 16 4x4+2, FC 100" --eps 8/255 --epochs 20\n'
        "  advibp train cifar10 cnn7-narrow --eps 2/255 --flip true --crop 2 --out runs/cifar\n"
        "  advibp train mnist my_net.py:make --weights w.safetensors --eps 0.1 --out runs/mine\n"
        "  advibp train --resume --out runs/first                 and with --stages 2: layer-wise stages after it"
    )
    recipe_options(train_parser)
    train_parser.add_argument(
        "--out", metavar="DIR", help="folder of the run; default: runs/ and a name made of the recipe"
    )
    train_parser.add_argument(
        "--resume", action="store_true", help="continue the run in --out exactly where it stopped"
    )
    train_parser.add_argument(
        "--recipe", help="a shipped recipe (advibp recipes) or a YAML file; options given here win"
    )
    train_parser.set_defaults(command=run_train)


def recipe_options(parser: argparse.ArgumentParser) -> None:
    """Data, network, and an option for every key of a recipe."""
    parser.add_argument("data", nargs="?", help=_says("data"))
    parser.add_argument("net", nargs="?", help=_says("net"))
    default = Recipe()
    for f in dataclasses.fields(Recipe):
        if f.name in ("data", "net", "published"):
            continue
        shown = getattr(default, f.name)
        shown = ",".join(map(str, shown)) if isinstance(shown, tuple) else "none" if shown is None else shown
        says = f"{f.metadata['says']} (default: {shown})".replace("%", "%%")
        names = dict.fromkeys([f"--{f.name.replace('_', '-')}", f"--{f.name}"])
        parser.add_argument(*names, dest=f.name, help=says, metavar=f.name.split("_")[-1].upper())
    parser.set_defaults(published=None)


def _says(key: str) -> str:
    return str(Recipe.__dataclass_fields__[key].metadata["says"])


def run_train(args: argparse.Namespace) -> None:
    given = {f.name: getattr(args, f.name) for f in dataclasses.fields(Recipe) if getattr(args, f.name) is not None}
    method = own_method(args.method)
    if args.resume and args.out and RunFolder(Path(args.out)).exists:
        # The folder knows its recipe; what is said again must agree with it, which `train` checks.
        kept = recipe_of(RunFolder(Path(args.out))).as_dict()
        asked = {**kept, **(read(args.recipe) if args.recipe else {}), **given}
        if asked["method"] != kept["method"]:
            raise UserError(
                f"{args.out} was started with method = {kept['method']}, not {asked['method']}; resume it without "
                f"changing method, or train into another --out."
            )
        recipe = Recipe.of(asked)
    else:
        if args.resume and not (args.data or args.recipe):
            where = f"{args.out} holds no run" if args.out else "--resume needs --out"
            raise UserError(f"{where}; name the folder of a run, or give DATA and NET to start one.")
        recipe = Recipe.load(args.recipe, method, **given)
    if nets.is_own(recipe.net) and not args.net:  # a file may name a network, but only what the user types may run
        raise UserError(f"The recipe names a network of one's own; type DATA and NET too ({recipe.net}).")
    if recipe.method not in METHODS and method is None:
        raise UserError(f"The recipe names a method of one's own; type --method {recipe.method} too.")
    out = Path(
        args.out
        or f"runs/{Path(recipe.data).stem}-{Path(recipe.net).stem}-{recipe.method.rpartition(':')[2]}-eps{recipe.eps:g}"
    )
    if RunFolder(out).exists and not args.resume:
        raise UserError(f"{out} holds a run already; add --resume to continue it, or choose another --out.")
    data = load_data(recipe, recipe.data, recipe.limit)
    net = first_net(recipe, data, weights=not RunFolder(out).begun)
    OUT.print(
        f"[bold]{recipe.method}[/] on {escape(data.name)} ({len(data.train):,} images), {escape(recipe.net)} "
        f"({sum(p.numel() for p in net.parameters()):,} parameters), eps {recipe.eps:g}, "
        f"{recipe.epochs:g} epochs{_and_stages(recipe)} -> {escape(str(out))}",
        soft_wrap=True,
    )
    OUT.print("std.err and verified: errors on the validation images, at eps_train\n", style="dim")
    run = train(net, data, recipe=recipe, method=method, out=out, resume=args.resume, show=Live(OUT))
    minutes = run.summary["seconds"] / 60
    told = f"\ntrained in {minutes:.1f} minutes; next: {how_to_certify(recipe, out, method)}"
    OUT.print(told, markup=False, soft_wrap=True)


def own_method(typed: str | None) -> Method | None:
    """A method of one's own, of which a file may only tell the name: what runs is typed."""
    return None if typed is None or typed in METHODS or ":" not in typed else method_at(typed)


def _and_stages(recipe: Recipe) -> str:
    return f", then {recipe.stages} layer-wise stages of {recipe.stage_epochs:g}" if recipe.stages else ""
