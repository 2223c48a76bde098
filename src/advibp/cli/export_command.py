"""advibp export: a trained network, and questions about it, as files that other programs read."""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path

import torch
from rich.markup import escape

from advibp.cli.console import OUT, count, fraction, stage_of
from advibp.cli.named_inputs import own_net
from advibp.display.progress import Counting
from advibp.errors import UserError
from advibp.recipe import Recipe
from advibp.runs import open_with_facts
from advibp.runs.recipe_data import load_data
from advibp.storage import checkpoint
from advibp.verify.argument_checks import check_eps
from advibp.vnncomp import onnx
from advibp.vnncomp.vnnlib import vnnlib_file


def export_options(export: argparse.ArgumentParser) -> None:
    export.add_argument("run", help="folder of a finished run")
    export.add_argument("--onnx", required=True, metavar="FILE", help="where to write the network, weights inside")
    export.add_argument(
        "--vnnlib", metavar="DIR", help="where to write a property for each test image, and a list: instances.csv"
    )
    export.add_argument("--eps", type=fraction, help="radius of the properties; default: the run's eps")
    export.add_argument("--limit", type=count, default=100, help="properties of the first N test images")
    export.add_argument("--timeout", type=count, default=60, help="seconds, for the list of properties")
    export.add_argument("--net", help="file.py:function or package.module:function, for a network of one's own")
    export.add_argument("--data-root", metavar="DIR", help="where data sets are looked for and kept")
    export.add_argument("--stage", type=stage_of, help="the network as it was after this layer-wise stage; 0: before")
    export.set_defaults(command=run_export)


def run_export(args: argparse.Namespace) -> None:
    net, recipe, facts = open_with_facts(args.run, own_net(args), args.stage)
    saved = onnx.save(net, args.onnx, facts["input_shape"])
    shape = ", ".join(map(str, ("batch", *facts["input_shape"])))
    operators = ", ".join(f"{count} {name}" for name, count in saved.operators.items())
    OUT.print(f"{saved.path}: {saved.path.stat().st_size:,} bytes, inputs ({shape})", markup=False, soft_wrap=True)
    OUT.print(f"operators: {operators}", markup=False, soft_wrap=True)
    OUT.print(f"largest difference to onnxruntime: {saved.difference:.1e} of the largest output", markup=False)
    if args.vnnlib:
        _write_properties(args, recipe, facts["classes"])


def _write_properties(args: argparse.Namespace, recipe: Recipe, classes: int) -> None:
    """One file for each image: unsafe is any output at which another class is as large as the label's."""
    folder, eps = Path(args.vnnlib), check_eps(recipe.eps if args.eps is None else args.eps)
    test = load_data(recipe, recipe.data, None, args.data_root, validate=False).test.take(args.limit)
    if not len(test):
        raise UserError(f"{recipe.data} has no test images; there is nothing to ask.")
    folder.mkdir(parents=True, exist_ok=True)
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    with Counting("writing", OUT) as counting:
        for i in range(len(test)):
            x, y = test.batch(torch.tensor([i]))
            lower, upper = (x - eps).clamp(min=0), (x + eps).clamp(max=1)
            file = folder / f"test-{i:06d}-eps-{eps:g}.vnnlib"
            told = f"test image {i} of {recipe.data}, label {int(y)}, eps {eps!r}"
            vnnlib_file.write(file, lower.double().flatten(), upper.double().flatten(), int(y), classes, told)
            rows.writerow([args.onnx, file, args.timeout])
            counting.progress(eps, i + 1, len(test))
    checkpoint.write_atomically(folder / "instances.csv", table.getvalue())
    OUT.print(f"{len(test)} properties at eps {eps:g}: {escape(str(folder / 'instances.csv'))}", soft_wrap=True)
