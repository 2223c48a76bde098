"""The command `advibp report`, which writes a self-contained page about runs."""

from __future__ import annotations

import argparse
import webbrowser
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from advibp import data as datasets
from advibp import nets
from advibp.bounds import Perturbation
from advibp.cli.console import NOTES, OUT, print_json
from advibp.cli.named_inputs import Test
from advibp.cli.parser import examples, output_options
from advibp.data.fetch.known_sets import ROWS
from advibp.errors import UserError
from advibp.execution.own_copy import run_on_copy
from advibp.recipe.input_set import perturbation_of
from advibp.report.html import write_page
from advibp.report.naming import names_of
from advibp.report.shown_images import Count, Missing, Source
from advibp.runs import open_with_facts
from advibp.runs.resuming import recipe_of
from advibp.runs.run_files import RunFiles, read_run
from advibp.runs.run_sources import data_source
from advibp.storage.run_folder import RunFolder
from advibp.verify.certification import check_inputs


def report_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write one HTML page about runs: their errors, certified accuracy, images, training curves and commands. The "
        "page needs no network connection."
    )
    parser.epilog = examples(
        ("report runs/first", "writes runs/first/report.html"),
        ("report runs/first runs/second --out both.html --open", "one page about two runs"),
    )
    output_options(parser, progress=False)
    parser.add_argument("run", nargs="+", help="folders of runs, finished or not, certified or not")
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="HTML file; default: report.html in the folder of the run; of several runs, in the current folder",
    )
    parser.add_argument("--title", default="", help="title of the page; default: the names of the runs")
    parser.add_argument(
        "--images",
        type=_count,
        default="auto",
        metavar="all|N|none",
        help="images in the page, the most interesting first; default: as many as fit into 6 MB, which are all 10,000 "
        "of MNIST (2.2 MB). Records of all images are always in the page",
    )
    parser.add_argument("--data-root", metavar="DIR", help="folder of the data sets")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.set_defaults(command=run_report)


def run_report(args: argparse.Namespace) -> None:
    runs = [read_run(path) for path in args.run]
    out = Path(args.out or (Path(args.run[0]) if len(runs) == 1 else Path()) / "report.html")
    if out.is_dir():
        raise UserError(f"{out} is a folder; give --out a file, such as {out / 'report.html'}.")
    if not out.parent.is_dir():
        raise UserError(f"{out.parent} does not exist; create it, or give another --out.")
    names_of(runs)  # refuses duplicates
    notes = [note for run in runs for note in run.stale.values()]
    for note in notes:
        NOTES.print(f"left out: {note}", style="yellow", markup=False, soft_wrap=True)
    NOTES.print(f"reading the images of {len(runs)} run{'s' * (len(runs) > 1)}", style="dim")
    sources = [images_of(run, args.data_root) for run in runs]
    write_page(out, runs, title=args.title, images=sources, count=args.images)
    size = out.stat().st_size / 1e6
    if args.json:
        print_json({"report": out, "bytes": out.stat().st_size, "left_out": notes})
    OUT.print(f"report: {out} ({size:.1f} MB, needs no network connection)", markup=False, soft_wrap=True)
    if args.open and not webbrowser.open(out.resolve().as_uri()):
        OUT.print("no browser could be started; open the file by hand")


def _count(text: str) -> Count:
    if text in ("auto", "all"):
        return "auto" if text == "auto" else "all"
    if text != "none" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is neither a number nor all or none")
    return 0 if text == "none" else int(text)


def images_of(run: RunFiles, root: str | None = None) -> Source | Missing:
    """A run's test images, or a sentence that explains why there are none. Data sets are not downloaded."""
    recipe = run.recipe
    known = next((row.class_names for row in ROWS if row.name == recipe.get("data")), None) or ()
    if not any(certified.records for certified in run.certified.values()):
        return Missing("", known)
    run_root = str(recipe["data_root"]) if recipe.get("data_root") else None
    size = recipe.get("size") if isinstance(recipe.get("size"), int) else None
    label = str(recipe["label"]) if recipe.get("label") else None
    try:
        data = _load(data_source(run.path, recipe_of(RunFolder(run.path))), root or run_root, size, label)
        around = perturbation_of(data, recipe.get("eps_scale"), recipe.get("input_range", "auto"))
    except UserError as error:
        return Missing(str(error), known)
    source = Source(data.test, data.class_names or (), feature_names=data.feature_names or (), perturbation=around)
    net = _network(run)
    if net is None:
        return source
    return replace(source, predict=_predictor(net), model=_fingerprint(net, data.test, around))


@lru_cache(maxsize=2)
def _load(name: str, root: str | None, size: int | None, label: str | None) -> datasets.Data:
    """The data of a run. Runs of the same data share them."""
    return datasets.load(name, validation=0, root=root, size=size, label=label, fetch=False)


def _network(run: RunFiles) -> nn.Module | None:
    """The run's network. None for a user's network, because the page must not run code that a file names."""
    if not nets.is_known(str(run.recipe.get("net"))):
        return None
    try:
        return open_with_facts(run.path)[0]
    except UserError:
        return None


def _fingerprint(net: nn.Module, test: Test, around: Perturbation) -> str:
    """Fingerprint of the network; "" if it can't be computed."""
    try:
        return check_inputs(net, test, around)
    except (UserError, RuntimeError):  # the data do not fit the network
        return ""


def _predictor(net: nn.Module) -> Callable[[Tensor], Tensor]:
    @torch.no_grad()
    def predict(x: Tensor) -> Tensor:
        return run_on_copy(net, x).argmax(1)

    return predict
