"""The command `advibp report`, which writes a self-contained page about runs."""

from __future__ import annotations

import argparse
import webbrowser

from advibp.cli.console import NOTES, OUT, print_json
from advibp.cli.parser import examples, output_options
from advibp.cli.run_page import write_report
from advibp.report.shown_images import Count
from advibp.runs.run_files import read_run


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
    notes = [note for run in runs for note in run.stale.values()]
    for note in notes:
        NOTES.print(f"left out: {note}", style="yellow", markup=False, soft_wrap=True)
    NOTES.print(f"reading the images of {len(runs)} run{'s' * (len(runs) > 1)}", style="dim")
    out = write_report(runs, args.out, title=args.title, images=args.images, data_root=args.data_root)
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
