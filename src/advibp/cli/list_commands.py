"""advibp nets, methods and recipes"""

from __future__ import annotations

import argparse
import inspect
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from advibp import nets
from advibp.cli.console import OUT, count, print_json, shape_of
from advibp.cli.parser import examples, output_options
from advibp.errors import UserError, suggestion
from advibp.methods import METHODS
from advibp.objectives import Context, Objective, Settings, joint_cost
from advibp.recipe import Recipe, shipped


def nets_options(structures: argparse.ArgumentParser) -> None:
    structures.description = "List the networks, or show the layers, output shapes and parameters of one."
    structures.epilog = examples(
        ("nets", ""), ("nets dm-small", ""), ('nets "Conv 16 4x4+2, FC 100" --shape 3x32x32', "your own structure")
    )
    output_options(structures, progress=False)
    structures.add_argument("net", nargs="?", help='a name, or a structure such as "Conv 16 4x4+2, FC 100"')
    structures.add_argument(
        "--shape", type=shape_of, default=(1, 28, 28), metavar="CxHxW", help="input shape (default: 1x28x28)"
    )
    structures.add_argument("--classes", type=count, default=10, help="number of classes (default: 10)")
    structures.set_defaults(command=run_nets)


def methods_options(methods: argparse.ArgumentParser) -> None:
    methods.description = "List the training methods, or describe one: its losses, its verifier, its recipe keys."
    methods.epilog = examples(("methods", ""), ("methods advibp", ""), ("methods colt --json", ""))
    output_options(methods, progress=False)
    methods.add_argument("name", nargs="?", help="name of a method")
    methods.set_defaults(command=run_methods)


def recipes_options(recipes: argparse.ArgumentParser) -> None:
    recipes.description = "List the shipped recipes, or print all keys of one."
    recipes.epilog = examples(
        ("recipes", ""), ("recipes demo", ""), ("recipes paper/mnist-0.4 > my.yaml", "a copy to edit")
    )
    output_options(recipes, progress=False)
    recipes.add_argument("name", nargs="?", help="name of a recipe")
    recipes.set_defaults(command=run_recipes)


def run_nets(args: argparse.Namespace) -> None:
    shape = args.shape
    if args.json:
        print_json(_layers(args.net, shape, args.classes) if args.net else _structures(shape, args.classes))
        return
    if args.net:
        table = Table("layer", "output", "parameters", title=f"{args.net} on {'x'.join(map(str, shape))}")
        for row in _layers(args.net, shape, args.classes):
            table.add_row(row["layer"], "x".join(map(str, row["output"])), f"{row['parameters']:,}")
    else:
        table = Table(
            "name", "structure", "parameters", title=f"on {'x'.join(map(str, shape))}, {args.classes} classes"
        )
        for row in _structures(shape, args.classes):
            table.add_row(row["name"], row["structure"], f"{row['parameters']:,}")
    OUT.print(table)


def _layers(net: str, shape: tuple[int, ...], classes: int) -> list[dict[str, Any]]:
    rows = nets.summary(nets.build(net, shape, classes), shape)
    return [{"layer": layer, "output": output, "parameters": number} for layer, output, number in rows]


def _structures(shape: tuple[int, ...], classes: int) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "structure": structure,
            "parameters": sum(p.numel() for p in nets.build(name, shape, classes).parameters()),
        }
        for name, structure in nets.STRUCTURES.items()
    ]


def run_methods(args: argparse.Namespace) -> None:
    if args.name:
        _show_method(args.name, args.json)
        return
    if args.json:
        print_json([_method_facts(name) for name in METHODS])
        return
    table = Table(
        *("method", "loss", "verifier", "E", "R", "P", "W", "cost", "limitations"),
        title="Training methods, with the columns of the paper's Table 1",
        caption="E: efficient. R: robust against attacks. P: provably robust. W: no weights to tune.\n"
        "cost: forward passes per step, for 10 classes: in the ramp / after it (colt: / in its stages).\n"
        "no bound: the upper loss approximates the robust loss. The network is still proved by the verifier.\n"
        "Details: advibp methods NAME. Your own method: advibp train --method file.py:NAME",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for name, method in METHODS.items():
        marks = [_mark(value) for value in method.properties]
        cells = [name, method.description, method.verifier or "-", *marks, _cost(name), method.limitations]
        table.add_row(*cells, end_section=name in ("shi-ibp", "exp-ibp"))
    OUT.print(table)


def _mark(value: bool | None) -> str:
    return {True: "✓", False: "", None: "-"}[value]


def _cost(name: str) -> str:
    method, recipe = METHODS[name], Recipe.load(method=name)
    settings = Settings.of(recipe)
    contexts = [Context(ramped=ramped, settings=settings) for ramped in (0.5, 1.0)]
    if recipe.stages:
        contexts.append(Context(latent=True, settings=settings))
    costs = [f"{joint_cost(method.lower, method.upper, context):g}" for context in contexts]
    return " / ".join(dict.fromkeys(costs))


def _show_method(name: str, as_json: bool) -> None:
    if name not in METHODS:
        raise UserError(f"There is no method '{name}'; {suggestion(name, METHODS)}")
    if as_json:
        print_json(_method_facts(name))
        return
    method = METHODS[name]
    rows = {
        "loss": method.description,
        "lower loss": _description(method.lower),
        "upper loss": _description(method.upper),
        "bound": ""
        if method.upper_is_bound
        else "no: the upper loss is an approximation, not a bound of the robust loss",
        "weights": str(method.weighting) if method.lower and method.upper else "",
        "stages": {None: "", "box": "in latent boxes", "zonotope": "in latent zonotopes"}[method.latent],
        "verifier": method.verifier,
        "cost": f"{_cost(name)} forward passes per step",
        "needs": method.limitations,
        "keys": ", ".join(method.recipe_keys),
        "recipe": ", ".join(f"{key} {value}" for key, value in method.recipe.items()),
    }
    for key, value in rows.items():
        if value:
            OUT.print(f"[bold]{key:10}[/] {value}", soft_wrap=True, highlight=False)


def _method_facts(name: str) -> dict[str, Any]:
    method = METHODS[name]
    properties = dict(zip(("efficient", "robust", "provable", "no_weights_to_tune"), method.properties, strict=True))
    return {
        "name": name,
        "loss": method.description,
        "lower_loss": _description(method.lower),
        "upper_loss": _description(method.upper),
        "upper_is_bound": method.upper_is_bound if method.upper else None,
        "weighting": str(method.weighting) if method.lower and method.upper else None,
        "stages": method.latent,
        "verifier": method.verifier or None,
        **properties,
        "cost": _cost(name),
        "limitations": method.limitations,
        "keys": list(method.recipe_keys),
        "recipe": dict(method.recipe),
    }


def _description(objective: Objective | None) -> str:
    """Return the first paragraph of the docstring."""
    return " ".join((inspect.getdoc(objective) or "").partition("\n\n")[0].split()) if objective else ""


def run_recipes(args: argparse.Namespace) -> None:
    if args.json:
        print_json(Recipe.load(args.name).as_dict() if args.name else list(shipped()))
    elif args.name:
        OUT.print(Recipe.load(args.name).to_yaml(), markup=False)
    else:
        for name in shipped():
            OUT.print(name)
