"""advibp reproduce"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from rich.markup import escape

from advibp.cli.console import OUT, count, fraction
from advibp.report.sections import TableSection
from advibp.report.table_formats import terminal
from advibp.reproduce import PLANS, Ask, Work, make
from advibp.reproduce.foresight import as_table, foresee
from advibp.reproduce.wanted import SCALES
from advibp.runs.training_display import Live


def reproduce_options(parser: argparse.ArgumentParser) -> None:
    names = "\n".join(f"  {name:<18} {plan.says}" for name, plan in PLANS.items())
    parser.description = (
        "Make a table or figure of the paper, measured beside published. Finished runs are reused, interrupted ones\n"
        "continue. DIR/NAME then holds table.md, table.csv, table.tex, report.html and, for figures, figure.svg.\n\n"
        f"{names}\n\n"
        "  advibp reproduce mnist-table --scale tiny                           seconds: does it work here?\n"
        "  advibp reproduce mnist-table --model dm-small --dry-run             what it would train, and how long\n"
        "  advibp reproduce baseline-figure --seeds 0 1 2 --reuse runs         take finished runs from runs/*"
    )
    parser.add_argument("name", metavar="NAME", help="one of the names above")
    parser.add_argument(
        "--scale",
        choices=SCALES,
        default="fast",
        help="tiny: a second of training; fast: the default recipe, about an hour a run; paper: the paper's epochs",
    )
    parser.add_argument("--model", nargs="+", default=[], metavar="NET", help="these nets instead of the table's")
    parser.add_argument("--eps", nargs="+", default=[], type=fraction, help="these test radii of the table alone")
    parser.add_argument("--methods", nargs="+", default=[], metavar="METHOD", help="these methods")
    parser.add_argument("--seeds", nargs="+", default=[], type=_seed, metavar="N", help="these seeds")
    parser.add_argument("--data", help="other data than the paper's; differences are then left out")
    parser.add_argument("--out", default="runs/reproduce", metavar="DIR", help="where runs and tables go")
    parser.add_argument(
        "--reuse", nargs="+", default=[], metavar="DIR", help="further folders whose sub-folders are runs"
    )
    parser.add_argument(
        "--keep", metavar="DIR", help="copy of each run what tables are made of: no weights, no records"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="list the runs and predict their time; load and train nothing"
    )
    parser.add_argument("--data-root", metavar="DIR", help="where data sets are looked for and kept")
    parser.add_argument("--threads", type=count, help="CPU threads")
    parser.add_argument("--device", help="auto, cpu, cuda, ...")
    parser.set_defaults(command=run_reproduce)


def _seed(text: str) -> int:
    return count(text, least=0)


def run_reproduce(args: argparse.Namespace) -> None:
    where = {key: getattr(args, key) for key in ("threads", "device", "data_root") if getattr(args, key) is not None}
    ask = Ask(
        scale=args.scale,
        models=tuple(args.model),
        eps=tuple(args.eps),
        methods=tuple(args.methods),
        seeds=tuple(args.seeds),
        data=args.data,
        folders=(Path(args.out), *map(Path, args.reuse)),
        where=where,
        command=args.typed,
    )
    work = Work(ask, tell=_teller(), show=lambda: Live(OUT))
    if args.dry_run:
        _show(as_table(args.name, foresee(args.name, work)))
        return
    made = make(args.name, work, kept=Path(args.keep) if args.keep else None)
    for section in made.sections:
        if isinstance(section, TableSection):
            _show(section)
    if made.lacks:
        OUT.print(made.lacks, markup=False, soft_wrap=True)
    names = ", ".join(file.name for file in made.files)
    OUT.print(f"\n[bold]{escape(str(made.files[0].parent))}[/]: {escape(names)}", soft_wrap=True)


def _teller() -> Callable[[str], None]:
    return lambda line: OUT.print(line, style="dim", markup=False, soft_wrap=True)


def _show(table: TableSection) -> None:
    OUT.print(terminal(table))
    for note in table.notes:
        OUT.print(f"- {note}", style="dim", markup=False, soft_wrap=True)
