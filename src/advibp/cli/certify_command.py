"""The commands `advibp certify` and `attack`."""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table
from torch import nn

from advibp.cli.console import OUT, count, fraction, print_warnings, refuse_ignored, stage_of
from advibp.cli.named_inputs import Test, own_net
from advibp.cli.property_command import property_options, run_property
from advibp.display.eps import format_eps
from advibp.display.progress import Counting
from advibp.errors import UserError
from advibp.execution.device import resolve_device
from advibp.recipe import Recipe
from advibp.runs import open_with_facts
from advibp.runs.recipe_data import load_data
from advibp.storage import checkpoint
from advibp.verify import Attack, Certificate, certify
from advibp.verify.argument_checks import check_eps
from advibp.verify.attack_all import attack_all
from advibp.verify.certification import arithmetic_of
from advibp.verify.precision import ARITHMETICS
from advibp.verify.radius import curve, radii
from advibp.verify.verifiers import VERIFIERS, complete_verifiers, in_order, searches


def run_options(run_parser: argparse.ArgumentParser, command: Any) -> None:
    """Add the options of `certify` or `attack`."""
    run_parser.add_argument("run", nargs="?" if command is run_certify else None, help="folder of a finished run")
    run_parser.add_argument(
        "--eps", nargs="+", type=fraction, help="radii, such as 0.1 0.2 or 8/255; default: the run's eps"
    )
    if command is run_certify:
        names = ", ".join(VERIFIERS)
        verifiers = run_parser.add_mutually_exclusive_group()
        verifiers.add_argument(
            "--by", nargs="+", default=["ibp"], metavar="VERIFIER", help=f"verifiers, run cheapest first: {names}"
        )
        verifiers.add_argument(
            "--complete",
            action="store_const",
            dest="by",
            const=["complete"],
            help="decide every image, given enough time: --by " + " ".join(complete_verifiers()),
        )
        arithmetic_option(run_parser)
        run_parser.add_argument(
            "--budget",
            type=float,
            metavar="SECONDS",
            help=f"per image; after that its verdict is timeout. Default: no limit; 60 with {', '.join(searches())}",
        )
        run_parser.add_argument("--sample", type=count, metavar="N", help="N test images, drawn at random with --seed")
        run_parser.add_argument("--workers", type=count, default=1, help="number of processes, with one thread each")
        run_parser.add_argument(
            "--radius",
            action="store_true",
            help="instead of verdicts, the largest eps that is proved for each image and the smallest that breaks it",
        )
    run_parser.add_argument("--data", help="data set to use; default: the run's")
    run_parser.add_argument("--data-root", metavar="DIR", help="folder of the data sets")
    run_parser.add_argument(
        "--stage", type=stage_of, help="use the network after this layer-wise stage; 0: before the first"
    )
    run_parser.add_argument("--net", help="your own network: file.py:function or package.module:function")
    run_parser.add_argument("--limit", type=count, help="use only the first N test images")
    run_parser.add_argument(
        "--attack",
        choices=["pgd", "apgd"],
        default="pgd",
        help="pgd, or apgd, which adapts its step size and is stronger",
    )
    run_parser.add_argument("--steps", type=count, default=200, help="steps of the attack")
    run_parser.add_argument("--step", type=float, help="PGD step size as a share of eps; default: 0.1")
    run_parser.add_argument("--restarts", type=count, default=1, help="restarts of the attack")
    run_parser.add_argument(
        "--loss",
        choices=["ce", "margin", "dlr"],
        help="loss that the attack maximizes; default: ce for pgd, margin for apgd",
    )
    run_parser.add_argument("--seed", type=int, default=0, help="seed of the random starts, and of --sample")
    run_parser.add_argument("--threads", type=count, help="CPU threads")
    run_parser.add_argument("--device", default="auto")
    if command is run_certify:
        property_options(run_parser)
    run_parser.set_defaults(command=command, parser=run_parser)


def arithmetic_option(parser: argparse.ArgumentParser) -> None:
    """Add --arithmetic."""
    parser.add_argument(
        "--arithmetic",
        choices=ARITHMETICS,
        help="what proofs cover: every evaluation in the network's type, in any order of its sums (default), or real "
        "numbers, which ignores rounding as papers do",
    )


def run_certify(args: argparse.Namespace) -> int:
    """Certify a run's network on its test images, or decide a property of an ONNX file."""
    if args.onnx or args.vnnlib:
        return run_property(args)
    if args.run is None:
        raise UserError("There is nothing to certify; give the folder of a run, or --onnx NET --vnnlib PROPERTY.")
    refuse_ignored(args, ("timeout", "result"), "without --onnx and --vnnlib")
    attack = _attack(args)
    net, recipe, test = _open(args)
    eps, out = _radii(args.eps, recipe), Path(args.run) / _folder_name(args, recipe)
    if args.radius:
        refuse_ignored(args, ("eps", "sample", "budget", "workers"), "with --radius, which tries every eps")
        _print_radii(net, test, attack, out, args)
        return 0
    with Counting("certifying", OUT) as counting:
        certificate = certify(
            net,
            test,
            eps,
            by=args.by,
            arithmetic=args.arithmetic,
            attack=attack,
            budget=args.budget,
            sample=args.sample,
            workers=args.workers,
            out=out,
            command=args.typed,
            seed=args.seed,
            progress=counting.progress,
        )
    stage = "" if args.stage is None else f", stage {args.stage}"
    images = certificate.counts(certificate.eps[0]).total()
    arithmetic = arithmetic_of(net, args.arithmetic)
    title = f"{args.run}{stage}: {images} test images, {certificate.attack(attack)}, proofs in {arithmetic} arithmetic"
    OUT.print(_table(certificate, escape(title)))
    for radius in certificate.eps:
        images = certificate.real_proofs(radius)
        if images:
            OUT.print(
                f"eps {format_eps(radius)}: {images} more would be proved in real arithmetic, which ignores rounding"
            )
    print_warnings(certificate.warnings())
    _print_attacks(certificate, attack, args.seed)
    if len(in_order(args.by)) > 1:
        OUT.print(_deciders(certificate))
    OUT.print(f"records: {out / 'records.jsonl'}", style="dim", markup=False, soft_wrap=True)
    return 0


def _folder_name(args: argparse.Namespace, recipe: Recipe) -> str:
    """Name of the folder of a certification. Other data than the run's have a folder of their own."""
    stage = "" if args.stage is None else f"-stage-{args.stage}"
    return f"certify{stage}" + (f"-on-{Path(args.data).stem}" if args.data not in (None, recipe.data) else "")


def run_attack(args: argparse.Namespace) -> None:
    """Attack all test images of a run and save the adversarial examples."""
    net, recipe, test = _open(args)
    attack = _attack(args)
    table = Table("eps", "images", "standard error", "attack error", title=escape(f"{args.run}: {attack}"))
    for eps in _radii(args.eps, recipe):
        with Counting("attacking", OUT) as counting:
            result = attack_all(net, test, eps, attack, seed=args.seed, progress=counting.progress)
        file = Path(args.run) / "attack" / f"eps-{eps:g}.safetensors"
        file.parent.mkdir(exist_ok=True)
        tensors = {"x_adv": result.x_adv, "broken": result.broken}
        checkpoint.save(file, tensors, {"eps": eps, "attack": str(attack)})
        shares = [f"{100 * float(mask.float().mean()):.2f} %" for mask in (result.wrong, result.broken)]
        table.add_row(format_eps(eps), str(len(test)), *shares)
        OUT.print(f"adversarial examples: {file}", style="dim", markup=False, soft_wrap=True)
    OUT.print(table)


def _attack(args: argparse.Namespace) -> Attack:
    return Attack(kind=args.attack, steps=args.steps, step=args.step, restarts=args.restarts, loss=args.loss)


def _print_radii(net: nn.Module, test: Test, attack: Attack, out: Path, args: argparse.Namespace) -> None:
    """Measure radii, print certified accuracy over eps, and write a line per image to radii.jsonl."""
    with Counting("bisecting", OUT) as counting:
        records = radii(
            net,
            test,
            by=args.by,
            arithmetic=args.arithmetic,
            attack=attack,
            out=out,
            seed=args.seed,
            progress=counting.progress,
        )
    title = f"{args.run}: {attack}, proofs in {arithmetic_of(net, args.arithmetic)} arithmetic"
    table = Table("eps", "certified accuracy", "accuracy under attack", title=escape(title))
    points = curve(records, [k / 20 for k in range(1, 11)])
    for eps, proved, unbroken in points:
        table.add_row(format_eps(eps), f"{100 * proved:.2f} %", f"{100 * unbroken:.2f} %")
    OUT.print(table)
    half = median(r.proved for r in records)
    OUT.print(f"half of the images are proved up to eps {half:.4f}; all radii: {out / 'radii.jsonl'}", soft_wrap=True)


def _open(args: argparse.Namespace) -> tuple[nn.Module, Recipe, Test]:
    """Open the network, the recipe and the test images of a run."""
    net, recipe, facts = open_with_facts(args.run, own_net(args), args.stage)
    data = load_data(recipe, args.data or recipe.data, None, args.data_root, validate=False)
    if list(data.input_shape) != facts["input_shape"] or data.classes > facts["classes"]:
        raise UserError(
            f"{args.data or recipe.data} has {data.classes} classes and images of shape {list(data.input_shape)}, but "
            f"the network was trained for {facts['classes']} and {facts['input_shape']}; give other --data."
        )
    args.device = resolve_device(args.device)
    if args.threads:
        torch.set_num_threads(args.threads)
    test = data.test.take(args.limit) if args.limit else data.test
    return net.to(args.device), recipe, test


def _radii(options: list[float] | None, recipe: Recipe) -> list[float]:
    """The radii of --eps, or the run's eps."""
    return [check_eps(eps) for eps in options or [recipe.eps]]


def _table(certificate: Certificate, title: str) -> Table:
    """Errors and verdicts at each eps. Columns with only zeros are omitted."""
    head, *rows = certificate.rows()
    shown = [i for i, name in enumerate(head) if i < 5 or any(row[i] != "0" for row in rows)]
    table = Table(*(head[i] for i in shown), title=title)
    for row in rows:
        table.add_row(*(row[i] for i in shown))
    return table


def _print_attacks(certificate: Certificate, attack: Attack, seed: int) -> None:
    """List all attacks if the attack error includes attacks of earlier calls."""
    attacks, now = certificate.attacks(), f"{attack} seed={seed}"
    if set(attacks) <= {now}:
        return
    OUT.print("the attack error counts the images that any of these attacks broke; earlier verdicts are kept:")
    for name, counts in attacks.items():
        when = "this call" if name == now else "earlier call"
        results = ", ".join(f"{images} {result}" for result, images in counts.items() if images)
        OUT.print(f"  {when}: {name}: {results}", markup=False, soft_wrap=True)


def _deciders(certificate: Certificate) -> Table:
    """How many images each check decided, and the time per image."""
    table = Table("eps", "decided by", "verdict", "images", "seconds per image", title="decisions by check")
    for eps in certificate.eps:
        for d in certificate.outcomes(eps):
            table.add_row(format_eps(eps), d.by or "undecided", d.verdict, str(d.images), f"{d.seconds:.4f}")
    return table
