"""The commands `advibp certify` and `attack`."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table
from torch import nn

from advibp.bounds import Perturbation
from advibp.cli.console import (
    DATA_ROOT,
    NOTES,
    OUT,
    count,
    print_json,
    print_warnings,
    progress_console,
    radius_or_radii,
    refuse_ignored,
    stage_of,
)
from advibp.cli.named_inputs import Test, own_net
from advibp.cli.parser import Parser, examples, output_options
from advibp.cli.property_command import property_options, run_property
from advibp.data.features import check_features, radii_of_features
from advibp.display.eps import format_eps
from advibp.display.progress import Counting
from advibp.errors import UserError
from advibp.execution.device import resolve_device
from advibp.recipe import Recipe
from advibp.runs import open_with_facts
from advibp.runs.run_files import set_suffix
from advibp.runs.run_sources import load_run_data
from advibp.storage import checkpoint
from advibp.verify import Attack, Certificate, certify
from advibp.verify.argument_checks import check_eps
from advibp.verify.attack_all import Attacks, attack_all
from advibp.verify.certification import arithmetic_of
from advibp.verify.precision import ARITHMETICS
from advibp.verify.radius import curve, radii
from advibp.verify.verifiers import VERIFIERS, complete_verifiers, in_order, searches

LOSSES = ["ce", "margin", "dlr"]  # of the attacks


def certify_options(parser: Parser) -> None:
    """Add the options of `certify`."""
    parser.usage = (
        "advibp certify RUN [--eps EPS ...] [--by VERIFIER ...] [OPTIONS]\n"
        "       advibp certify --onnx NET --vnnlib PROPERTY [OPTIONS]"
    )
    parser.description = (
        "Give every test image of a run a verdict at every eps: robust (proved), falsified (an adversarial example was "
        "found), misclassified, unknown, timeout or error. Records are written to RUN/certify, and verdicts that are "
        "there already are reused. With --onnx and --vnnlib, decide a property of an ONNX file."
    )
    parser.epilog = examples(
        ("certify runs/first --eps 0.1 0.2", ""),
        ("certify runs/first --eps 8/255 --by ibp crown-ibp crown", "stronger verifiers"),
        ("certify runs/first --complete --sample 100 --workers 2", "decide every image"),
        ("certify runs/first --radius", "the largest proved eps of each image"),
        ("certify --onnx net.onnx --vnnlib p.vnnlib --timeout 60", "files of other tools"),
    )
    run_options(parser, run_certify)


def attack_options(parser: Parser) -> None:
    """Add the options of `attack`."""
    parser.usage = "advibp attack RUN [--eps EPS ...] [OPTIONS]"
    parser.description = (
        "Attack every test image of a run, print the error under attack, and save the adversarial examples in "
        "RUN/attack."
    )
    parser.epilog = examples(
        ("attack runs/first --eps 0.3", ""),
        ("attack runs/first --eps 8/255 --attack apgd --attack-restarts 5", "a stronger attack"),
    )
    run_options(parser, run_attack)


def run_options(run_parser: Parser, command: Any) -> None:
    """Add the options that `certify` and `attack` share."""
    output_options(run_parser)
    run_parser.add_argument("run", nargs="?" if command is run_certify else None, help="folder of a finished run")
    run_parser.add_argument(
        "--eps",
        nargs="+",
        type=radius_or_radii,
        help="radii, such as 0.1 0.2 or 8/255, or one radius for each feature, such as age=0.1,income=500; default: "
        "the run's eps",
    )
    if command is run_certify:
        names = ", ".join(VERIFIERS)
        proofs = run_parser.add_argument_group("proofs")
        verifiers = proofs.add_mutually_exclusive_group()
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
        arithmetic_option(proofs)
        proofs.add_argument(
            "--budget",
            type=float,
            metavar="SECONDS",
            help=f"per image; after that its verdict is timeout. Default: no limit; 60 with {', '.join(searches())}",
        )
        proofs.add_argument("--sample", type=count, metavar="N", help="N test images, drawn at random with --seed")
        proofs.add_argument("--workers", type=count, default=1, metavar="N", help="processes, with one thread each")
        proofs.add_argument(
            "--radius",
            action="store_true",
            help="instead of verdicts, the largest eps that is proved for each image and the smallest that breaks it",
        )
    images = run_parser.add_argument_group("network and images")
    images.add_argument("--data", help="data set to use; default: the run's")
    images.add_argument("--data-root", metavar="DIR", help=DATA_ROOT)
    images.add_argument(
        "--stage", type=stage_of, metavar="K", help="use the network after this layer-wise stage; 0: before the first"
    )
    images.add_argument("--net", help="your own network: file.py:function or package.module:function")
    images.add_argument("--limit", type=count, metavar="N", help="use only the first N test images")
    attacking = run_parser.add_argument_group("attack")
    attacking.add_argument(
        "--attack",
        choices=["pgd", "apgd"],
        default="pgd",
        help="pgd, or apgd, which adapts its step size and is stronger",
    )
    attacking.add_argument("--attack-steps", type=count, default=200, metavar="N", help="steps of the attack")
    attacking.add_argument(
        "--attack-step-size", type=float, metavar="SHARE", help="PGD step size as a share of eps; default: 0.1"
    )
    attacking.add_argument("--attack-restarts", type=count, default=1, metavar="N", help="restarts of the attack")
    attacking.add_argument(
        "--attack-loss",
        choices=LOSSES,
        help="loss that the attack maximizes; default: ce for pgd, margin for apgd",
    )
    run_parser.add_old_name("--steps", "--attack-steps", type=count)
    run_parser.add_old_name("--step", "--attack-step-size", type=float)
    run_parser.add_old_name("--restarts", "--attack-restarts", type=count)
    run_parser.add_old_name("--loss", "--attack-loss", choices=LOSSES)
    machine = run_parser.add_argument_group("machine")
    machine.add_argument("--seed", type=int, default=0, help="seed of the random starts, and of --sample")
    machine.add_argument("--threads", type=count, metavar="N", help="CPU threads")
    machine.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps")
    if command is run_certify:
        property_options(run_parser)
    run_parser.set_defaults(command=command, parser=run_parser)


def arithmetic_option(parser: argparse._ActionsContainer) -> None:
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
    refuse_ignored(args, ("timeout", "result", "trace"), "without --onnx and --vnnlib")
    attack = _attack(args)
    net, recipe, test, around = _open(args)
    trained, (eps, around) = around, _radii(args.eps, recipe, around, test)
    out = Path(args.run) / _folder_name(args, trained, around)
    if args.radius:
        refuse_ignored(args, ("eps", "sample", "budget", "workers"), "with --radius, which tries every eps")
        _print_radii(net, test, attack, out, args, around, recipe)
        return 0
    with Counting("certifying", progress_console()) as counting:
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
            perturbation=around,
        )
    if args.json:
        print_json(_certificate_facts(certificate, args, out))
        return 0
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
    NOTES.print(f"records: {out / 'records.jsonl'}", style="dim", markup=False, soft_wrap=True)
    return 0


def _folder_name(args: argparse.Namespace, trained: Perturbation, around: Perturbation) -> str:
    """Name of the folder of a certification. Other data or radii than the run's have a folder of their own."""
    stage = "" if args.stage is None else f"-stage-{args.stage}"
    return f"certify{set_suffix(trained, around)}{stage}" + ("" if args.own_data else f"-on-{Path(args.data).stem}")


def run_attack(args: argparse.Namespace) -> None:
    """Attack all test images of a run and save the adversarial examples."""
    net, recipe, test, around = _open(args)
    attack = _attack(args)
    rows: list[dict[str, Any]] = []
    table = Table("eps", "images", "standard error", "attack error", title=escape(f"{args.run}: {attack}"))
    trained, (radii_of_all, around) = around, _radii(args.eps, recipe, around, test)
    for eps in radii_of_all:
        with Counting("attacking", progress_console()) as counting:
            result = attack_all(net, test, eps, attack, seed=args.seed, progress=counting.progress, perturbation=around)
        file = Path(args.run) / f"attack{set_suffix(trained, around)}" / f"eps-{eps:g}.safetensors"
        file.parent.mkdir(exist_ok=True)
        tensors = {"x_adv": result.x_adv, "broken": result.broken}
        checkpoint.save(file, tensors, {"eps": eps, "attack": str(attack)})
        shares = [f"{100 * share:.2f} %" for share in _attack_errors(result).values()]
        table.add_row(format_eps(eps), str(len(test)), *shares)
        rows.append({"eps": eps, "images": len(test), **_attack_errors(result), "examples": file})
        NOTES.print(f"adversarial examples: {file}", style="dim", markup=False, soft_wrap=True)
    if args.json:
        print_json({"run": args.run, "attack": str(attack), "eps": rows})
    OUT.print(table)


def _attack_errors(result: Attacks) -> dict[str, float]:
    masks = {"standard_error": result.wrong, "attack_error": result.broken}
    return {name: float(mask.double().mean()) for name, mask in masks.items()}


def _certificate_facts(certificate: Certificate, args: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Return the errors and verdicts at each eps as plain data. Errors are fractions of the images."""
    rows = [
        {
            "eps": eps,
            "images": certificate.counts(eps).total(),
            **certificate.errors(eps),
            "verdicts": dict(certificate.counts(eps)),
            "real_proofs": certificate.real_proofs(eps),
            "decided": [asdict(outcome) for outcome in certificate.outcomes(eps)],
        }
        for eps in certificate.eps
    ]
    facts = {"run": args.run, "stage": args.stage, "attack": certificate.attack(_attack(args))}
    facts |= {"arithmetic": certificate.arithmetic, "eps": rows, "warnings": certificate.warnings()}
    return {**facts, "records": out / "records.jsonl"}


def _attack(args: argparse.Namespace) -> Attack:
    return Attack(
        kind=args.attack,
        steps=args.attack_steps,
        step=args.attack_step_size,
        restarts=args.attack_restarts,
        loss=args.attack_loss,
    )


def _print_radii(
    net: nn.Module,
    test: Test,
    attack: Attack,
    out: Path,
    args: argparse.Namespace,
    around: Perturbation,
    recipe: Recipe,
) -> None:
    """Measure radii, print certified accuracy over eps, and write a line per image to radii.jsonl."""
    with Counting("bisecting", progress_console()) as counting:
        records = radii(
            net,
            test,
            by=args.by,
            arithmetic=args.arithmetic,
            attack=attack,
            out=out,
            seed=args.seed,
            progress=counting.progress,
            perturbation=around,
            most=None if around.widest() < math.inf else 10 * recipe.eps,
        )
    title = f"{args.run}: {attack}, proofs in {arithmetic_of(net, args.arithmetic)} arithmetic"
    table = Table("eps", "certified accuracy", "accuracy under attack", title=escape(title))
    most = records[0].most  # 1 for images
    points = curve(records, [most * k / 20 for k in range(1, 11)])
    for eps, proved, unbroken in points:
        table.add_row(format_eps(eps), f"{100 * proved:.2f} %", f"{100 * unbroken:.2f} %")
    half = median(r.proved for r in records)
    if args.json:
        accuracies = [dict(zip(("eps", "certified_accuracy", "accuracy_under_attack"), p, strict=True)) for p in points]
        print_json({"run": args.run, "median": half, "accuracies": accuracies, "radii": out / "radii.jsonl"})
    OUT.print(table)
    OUT.print(f"half of the images are proved up to eps {half:.4f}; all radii: {out / 'radii.jsonl'}", soft_wrap=True)


def _open(args: argparse.Namespace) -> tuple[nn.Module, Recipe, Test, Perturbation]:
    """Open the network, the recipe, the test inputs and the set of allowed changes of a run."""
    net, recipe, facts = open_with_facts(args.run, own_net(args), args.stage)
    data, args.own_data = load_run_data(args.run, recipe, args.data, args.data_root)
    if list(data.input_shape) != facts["input_shape"] or data.classes > facts["classes"]:
        raise UserError(
            f"{args.data or data.name} has {data.classes} classes and images of shape {list(data.input_shape)}, but "
            f"the network was trained for {facts['classes']} and {facts['input_shape']}; give other --data."
        )
    check_features(facts.get("feature_names"), data.feature_names, args.data or data.name)
    args.device = resolve_device(args.device)
    if args.threads:
        torch.set_num_threads(args.threads)
    test = data.test.take(args.limit) if args.limit else data.test
    return net.to(args.device), recipe, test, recipe.perturbation(data)


def _radii(
    options: list[float | dict[str, str]] | None, recipe: Recipe, around: Perturbation, test: Test
) -> tuple[list[float], Perturbation]:
    """The radii of --eps, or the run's eps, and the set of allowed changes. Radii by name replace the run's scale."""
    named = [option for option in options or () if isinstance(option, dict)]
    if named:
        if len(options or ()) > 1:
            raise UserError(
                "--eps has radii by name of the feature, so it takes one value; call the command once each."
            )
        names = getattr(test, "feature_names", None)
        eps, around = Perturbation.from_radii(radii_of_features(named[0], names), around.low, around.high)
        return [eps], around
    return [check_eps(eps, 1.0 if around.is_pixels else math.inf) for eps in options or [recipe.eps]], around


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
