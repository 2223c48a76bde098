"""advibp report: one self-contained page of some runs."""

from __future__ import annotations

import argparse
import webbrowser
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from advibp import data as datasets
from advibp import nets
from advibp.cli.console import OUT
from advibp.cli.named_inputs import Test
from advibp.errors import UserError
from advibp.execution.own_copy import run_on_copy
from advibp.report.html import write_page
from advibp.report.naming import names_of
from advibp.report.shown_images import Source
from advibp.runs import open_with_facts
from advibp.runs.run_files import RunFiles, read_run
from advibp.verify.certification import check_inputs


def report_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="+", help="folders of runs, finished or not, certified or not")
    parser.add_argument("--out", metavar="FILE", help="the page; default: report.html in the run, or here for several")
    parser.add_argument("--title", default="", help="of the page; default: the run's name")
    parser.add_argument("--data-root", metavar="DIR", help="where data sets are looked for")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.set_defaults(command=run_report)


def run_report(args: argparse.Namespace) -> None:
    runs = [read_run(path) for path in args.run]
    out = Path(args.out or (Path(args.run[0]) if len(runs) == 1 else Path()) / "report.html")
    if out.is_dir():
        raise UserError(f"{out} is a folder; give --out a file, such as {out / 'report.html'}.")
    if not out.parent.is_dir():
        raise UserError(f"{out.parent} does not exist; make it first, or give another --out.")
    names_of(runs)  # none twice
    for note in (note for run in runs for note in run.stale.values()):
        OUT.print(f"left out: {note}", style="yellow", markup=False, soft_wrap=True)
    OUT.print(f"reading the images of {len(runs)} run{'s' * (len(runs) > 1)}", style="dim")
    write_page(out, runs, title=args.title, images=[images_of(run, args.data_root) for run in runs])
    size = out.stat().st_size / 1e6
    OUT.print(f"report: {out} ({size:.1f} MB, opens without a network)", markup=False, soft_wrap=True)
    if args.open and not webbrowser.open(out.resolve().as_uri()):
        OUT.print("no browser could be started; open the file yourself")


def images_of(run: RunFiles, root: str | None = None) -> Source | str:
    """A run's test images, or a sentence that says why there are none; nothing is fetched, for a page is no reason."""
    if not any(certified.records for certified in run.certified.values()):
        return ""
    said = run.recipe
    kept = str(said["data_root"]) if said.get("data_root") else None
    size = said.get("size") if isinstance(said.get("size"), int) else None
    try:
        data = datasets.load(str(said.get("data")), validation=0, root=root or kept, size=size, fetch=False)
    except UserError as error:
        return str(error)
    source = Source(data.test, data.class_names or ())
    net = _network(run)
    return source if net is None else Source(data.test, source.class_names, _asking(net), _fingerprint(net, data.test))


def _network(run: RunFiles) -> nn.Module | None:
    """To ask what it takes a changed image for; one's own would have to be run from what a file says, so it is not."""
    if not nets.is_known(str(run.recipe.get("net"))):
        return None
    try:
        return open_with_facts(run.path)[0]
    except UserError:
        return None


def _fingerprint(net: nn.Module, test: Test) -> str:
    try:
        return check_inputs(net, test)
    except (UserError, RuntimeError):  # other data than it was trained for
        return ""


def _asking(net: nn.Module) -> Callable[[Tensor], Tensor]:
    @torch.no_grad()
    def predict(x: Tensor) -> Tensor:
        return run_on_copy(net, x).argmax(1)

    return predict
