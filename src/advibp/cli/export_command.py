"""advibp export: write a trained network as ONNX and properties as VNN-LIB files."""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from torch import nn

from advibp.bounds import Perturbation
from advibp.cli.console import (
    DATA_ROOT,
    NOTES,
    OUT,
    STAGE,
    USER_NET,
    count,
    fraction,
    print_json,
    progress_console,
    stage_of,
)
from advibp.cli.named_inputs import own_net
from advibp.cli.parser import examples, output_options
from advibp.display.eps import format_eps
from advibp.display.progress import Counting
from advibp.errors import UserError
from advibp.recipe import Recipe
from advibp.runs import open_with_facts
from advibp.runs.run_sources import load_run_data
from advibp.storage import checkpoint
from advibp.verify.argument_checks import check_eps
from advibp.verify.certification import arithmetic_of, weights_fingerprint
from advibp.version import __version__
from advibp.vnncomp import save_onnx, write_vnnlib


def export_options(export: argparse.ArgumentParser) -> None:
    export.add_argument("run", help="folder of a finished run")
    export.description = (
        "Write a trained network as an ONNX file, after onnxruntime has reproduced its outputs. With --vnnlib, also "
        "write a robustness property per test image."
    )
    export.epilog = examples(
        ("export runs/first --onnx first.onnx", ""),
        ("export runs/first --onnx first.onnx --vnnlib props --eps 0.1", "with properties"),
    )
    output_options(export)
    export.add_argument("--onnx", required=True, metavar="FILE", help="the ONNX file to write")
    export.add_argument(
        "--vnnlib", metavar="DIR", help="folder for one property per test image and the list instances.csv"
    )
    export.add_argument("--eps", type=fraction, help="radius of the properties; default: the run's eps")
    export.add_argument("--limit", type=count, default=100, metavar="N", help="write the first N properties")
    export.add_argument("--timeout", type=count, default=60, metavar="SECONDS", help="time limit in instances.csv")
    export.add_argument("--net", help=USER_NET)
    export.add_argument("--data", help="data set of the properties; default: the run's")
    export.add_argument("--data-root", metavar="DIR", help=DATA_ROOT)
    export.add_argument("--stage", type=stage_of, metavar="K", help=STAGE)
    export.set_defaults(command=run_export)


def run_export(args: argparse.Namespace) -> None:
    net, recipe, facts = open_with_facts(args.run, own_net(args), args.stage)
    metadata, written = _metadata(args, net, recipe, facts), dict[str, Any]()
    saved = save_onnx(net, args.onnx, facts["input_shape"], metadata=metadata)
    shape = ", ".join(map(str, ("batch", *facts["input_shape"])))
    operators = ", ".join(f"{count} {name}" for name, count in saved.operators.items())
    OUT.print(f"{saved.path}: {saved.path.stat().st_size:,} bytes, inputs ({shape})", markup=False, soft_wrap=True)
    NOTES.print(f"operators: {operators}", markup=False, soft_wrap=True)
    NOTES.print(
        f"largest difference from onnxruntime: {saved.difference:.1e}, relative to the largest output", markup=False
    )
    described = ", ".join(f"{name} {json.dumps(value)}" for name, value in metadata.items())
    NOTES.print(f"metadata: {described}", markup=False, soft_wrap=True)
    if args.vnnlib:
        written = _write_properties(args, recipe, facts["classes"])
    if args.json:
        onnx = {"onnx": saved.path, "bytes": saved.path.stat().st_size, "input_shape": list(facts["input_shape"])}
        print_json(
            {
                **onnx,
                "operators": dict(saved.operators),
                "difference": saved.difference,
                "metadata": metadata,
                **written,
            }
        )


def _metadata(args: argparse.Namespace, net: nn.Module, recipe: Recipe, facts: dict[str, Any]) -> dict[str, Any]:
    """Return what a program needs to use the network: classes, eps, range of the inputs, arithmetic."""
    around = Perturbation(**facts.get("perturbation", {}))
    content = around.as_dict()
    return {
        "class_names": facts.get("class_names") or [str(k) for k in range(facts["classes"])],
        "eps": check_eps(recipe.eps if args.eps is None else args.eps, 1.0 if around.is_pixels else math.inf),
        "input_range": [content.get("low", 0.0), content.get("high", 1.0)],
        **({"eps_scale": content["scale"]} if "scale" in content else {}),
        **({"feature_names": facts["feature_names"]} if "feature_names" in facts else {}),
        "arithmetic": arithmetic_of(net),
        "weights": weights_fingerprint(net),
        "version": __version__,
    }


def _write_properties(args: argparse.Namespace, recipe: Recipe, classes: int) -> dict[str, Any]:
    """Write one file per image: the property that another class's output is at least the label's."""
    data = load_run_data(args.run, recipe, args.data, args.data_root)[0]
    folder, test, around = Path(args.vnnlib), data.test.take(args.limit), recipe.perturbation(data)
    eps = check_eps(recipe.eps if args.eps is None else args.eps, 1.0 if around.is_pixels else math.inf)
    if not len(test):
        raise UserError(f"{recipe.data} has no test images, so there are no properties; leave --vnnlib out.")
    folder.mkdir(parents=True, exist_ok=True)
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    with Counting("writing", progress_console()) as counting:
        for i in range(len(test)):
            x, y = test.batch(torch.tensor([i]))
            # Inputs that are not pixels may be much larger than eps.
            lower, upper = around.ends(x if around.is_pixels else x.double(), eps)
            file = folder / f"test-{i:06d}-eps-{eps:g}.vnnlib"
            comment = f"test image {i} of {recipe.data}, label {int(y)}, eps {eps!r}"
            write_vnnlib(file, lower.double().flatten(), upper.double().flatten(), int(y), classes, comment)
            rows.writerow([args.onnx, file, args.timeout])
            counting.progress(eps, i + 1, len(test))
    checkpoint.write_atomically(folder / "instances.csv", table.getvalue())
    OUT.print(
        f"{len(test)} properties at eps {format_eps(eps)}: {escape(str(folder / 'instances.csv'))}", soft_wrap=True
    )
    return {"instances": folder / "instances.csv", "properties": len(test), "eps": eps}
