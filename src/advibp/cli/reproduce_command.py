"""advibp reproduce"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

from rich.markup import escape

from advibp.cli.compare_command import section_facts
from advibp.cli.console import DATA_ROOT, NOTES, OUT, count, fraction, print_json, progress_console
from advibp.cli.parser import examples, output_options
from advibp.report.sections import TableSection
from advibp.report.table_formats import terminal
from advibp.reproduce import PLANS, Ask, Work, make
from advibp.reproduce.dry_run import as_table, planned_runs
from advibp.reproduce.run_specs import SCALES
from advibp.runs.training_display import Live, Silent


def reproduce_options(parser: argparse.ArgumentParser) -> None:
    rows = (textwrap.wrap(plan.description, 56) for plan in PLANS.values())
    lines = (f"\n{'':21}".join(row) for row in rows)
    names = "\n".join(f"  {name:<18} {line}" for name, line in zip(PLANS, lines, strict=True))
    parser.description = (
        "Reproduce a table or figure of the paper: train and certify what is missing, and compare the measured "
        "with the published numbers. Finished runs are reused and interrupted runs are continued. The folder "
        "DIR/NAME gets table.md, table.csv, table.tex, report.html and, for figures, figure.svg.\n\n"
        f"{names}"
    )
    parser.epilog = examples(
        ("reproduce mnist-table --scale tiny", "a test that takes seconds"),
        ("reproduce mnist-table --model dm-small --dry-run", "list the runs and their time"),
        ("reproduce baseline-figure --seeds 0 1 2 --reuse runs", "use finished runs in runs/*"),
    )
    output_options(parser)
    parser.add_argument("name", metavar="NAME", help="one of the names above")
    parser.add_argument(
        "--scale",
        choices=SCALES,
        default="fast",
        help="tiny: seconds per run; fast: the default recipe with one warm-up epoch of each kind, about an hour per "
        "run; paper: the paper's epochs",
    )
    parser.add_argument("--model", nargs="+", default=[], metavar="NET", help="networks; default: the table's")
    parser.add_argument("--eps", nargs="+", default=[], type=fraction, help="test radii; default: the table's")
    parser.add_argument("--methods", nargs="+", default=[], metavar="METHOD", help="methods; default: the table's")
    parser.add_argument("--seeds", nargs="+", default=[], type=_seed, metavar="N", help="seeds; default: the plan's")
    parser.add_argument("--data", help="other data than the paper's; differences from the paper are then omitted")
    parser.add_argument("--out", default="runs/reproduce", metavar="DIR", help="folder of runs and tables")
    parser.add_argument(
        "--reuse", nargs="+", default=[], metavar="DIR", help="folders of runs that may be used instead of training"
    )
    parser.add_argument(
        "--keep", metavar="DIR", help="copy recipe, metrics and summaries of each run here, without weights and records"
    )
    parser.add_argument("--dry-run", action="store_true", help="list the runs and estimate their time; train nothing")
    parser.add_argument("--data-root", metavar="DIR", help=DATA_ROOT)
    parser.add_argument("--threads", type=count, metavar="N", help="number of CPU threads")
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
    work = Work(ask, tell=_print_line, show=lambda: Silent() if args.quiet else Live(progress_console()))
    if args.dry_run:
        planned = as_table(args.name, planned_runs(args.name, work))
        if args.json:
            print_json(section_facts(planned))
        _show(planned)
        return
    made = make(args.name, work, kept=Path(args.keep) if args.keep else None)
    tables = [section for section in made.sections if isinstance(section, TableSection)]
    if args.json:
        print_json({"files": made.files, "tables": list(map(section_facts, tables)), "missing": made.lacks})
    for section in tables:
        _show(section)
    if made.lacks:
        OUT.print(made.lacks, markup=False, soft_wrap=True)
    names = ", ".join(file.name for file in made.files)
    OUT.print(f"\n[bold]{escape(str(made.files[0].parent))}[/]: {escape(names)}", soft_wrap=True)


def _print_line(line: str) -> None:
    NOTES.print(line, style="dim", markup=False, soft_wrap=True)


def _show(table: TableSection) -> None:
    OUT.print(terminal(table))
    for note in table.notes:
        OUT.print(f"- {note}", style="dim", markup=False, soft_wrap=True)
