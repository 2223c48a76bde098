"""advibp nets, methods and recipes"""

from __future__ import annotations

import argparse

from rich.table import Table

from advibp import nets
from advibp.cli.console import OUT, count, shape_of
from advibp.methods import METHODS
from advibp.recipe import Recipe, shipped


def nets_options(structures: argparse.ArgumentParser) -> None:
    structures.add_argument("net", nargs="?", help="one network, layer by layer; a name or a grammar")
    structures.add_argument("--shape", type=shape_of, default=(1, 28, 28), help="input shape (default 1x28x28)")
    structures.add_argument("--classes", type=count, default=10)
    structures.set_defaults(command=run_nets)


def methods_options(methods: argparse.ArgumentParser) -> None:
    methods.set_defaults(command=run_methods)


def recipes_options(recipes: argparse.ArgumentParser) -> None:
    recipes.add_argument("name", nargs="?")
    recipes.set_defaults(command=run_recipes)


def run_nets(args: argparse.Namespace) -> None:
    shape = args.shape
    if args.net:
        table = Table("layer", "output", "parameters", title=f"{args.net} on {'x'.join(map(str, shape))}")
        for layer, output, count in nets.summary(nets.build(args.net, shape, args.classes), shape):
            table.add_row(layer, "x".join(map(str, output)), f"{count:,}")
    else:
        table = Table(
            "name", "structure", "parameters", title=f"on {'x'.join(map(str, shape))}, {args.classes} classes"
        )
        for name, structure in nets.STRUCTURES.items():
            count = sum(p.numel() for p in nets.build(name, shape, args.classes).parameters())
            table.add_row(name, structure, f"{count:,}")
    OUT.print(table)


def run_methods(args: argparse.Namespace) -> None:
    table = Table("method", "what it minimises")
    for name, method in METHODS.items():
        table.add_row(name, method.says)
    OUT.print(table)


def run_recipes(args: argparse.Namespace) -> None:
    if args.name:
        OUT.print(Recipe.load(args.name).to_yaml(), markup=False)
        return
    for name in shipped():
        OUT.print(name)
