"""advibp export: a trained network as a file that other programs read."""

from __future__ import annotations

import argparse

from advibp import onnx
from advibp.cli.console import OUT, stage_of
from advibp.cli.sources import own_net
from advibp.runs import open_with_facts


def export_options(export: argparse.ArgumentParser) -> None:
    export.add_argument("run", help="folder of a finished run")
    export.add_argument("--onnx", required=True, metavar="FILE", help="where to write the network, weights inside")
    export.add_argument("--net", help="file.py:function or package.module:function, for a network of one's own")
    export.add_argument("--stage", type=stage_of, help="the network as it was after this layer-wise stage; 0: before")
    export.set_defaults(command=run_export)


def run_export(args: argparse.Namespace) -> None:
    net, _, facts = open_with_facts(args.run, own_net(args), args.stage)
    saved = onnx.save(net, args.onnx, facts["input_shape"])
    shape = ", ".join(map(str, ("batch", *facts["input_shape"])))
    operators = ", ".join(f"{count} {name}" for name, count in saved.operators.items())
    OUT.print(f"{saved.path}: {saved.path.stat().st_size:,} bytes, inputs ({shape})", markup=False, soft_wrap=True)
    OUT.print(f"operators: {operators}", markup=False, soft_wrap=True)
    OUT.print(f"largest difference to onnxruntime: {saved.difference:.1e} of the largest output", markup=False)
