"""advibp certify, attack and predict: what is done with a trained network."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table
from torch import nn

from advibp.cli.console import OUT, count, fraction, stage_of
from advibp.cli.named_inputs import Test, own_net
from advibp.cli.property_command import property_options, run_property
from advibp.data.formats import single_image as images
from advibp.display.progress import Counting
from advibp.errors import UserError
from advibp.execution.device import resolve_device
from advibp.execution.own_copy import run_on_copy
from advibp.recipe import Recipe
from advibp.runs import open_with_facts
from advibp.runs.recipe_data import load_data
from advibp.storage import checkpoint
from advibp.verify import Attack, Certificate, certify, largest_proved_eps
from advibp.verify.argument_checks import check_eps
from advibp.verify.attack_all import attack_all
from advibp.verify.certification import arithmetic_of
from advibp.verify.precision import ARITHMETICS
from advibp.verify.radius import curve, radii
from advibp.verify.verifiers import VERIFIERS, complete_verifiers, in_order, searches


def run_options(run_parser: argparse.ArgumentParser, command: Any) -> None:
    run_parser.add_argument("run", nargs="?" if command is run_certify else None, help="folder of a finished run")
    run_parser.add_argument(
        "--eps", nargs="+", type=fraction, help="radii, such as 0.1 0.2 or 8/255; default: the run's eps"
    )
    if command is run_certify:
        names = ", ".join(VERIFIERS)
        who = run_parser.add_mutually_exclusive_group()
        who.add_argument(
            "--by", nargs="+", default=["ibp"], metavar="VERIFIER", help=f"who may prove, asked cheapest first: {names}"
        )
        who.add_argument(
            "--complete",
            action="store_const",
            dest="by",
            const=["complete"],
            help="leave nothing open but for time: --by " + " ".join(complete_verifiers()),
        )
        _arithmetic_option(run_parser)
        run_parser.add_argument(
            "--budget",
            type=float,
            metavar="SECONDS",
            help=f"per image; then it is a timeout. Default: none; 60 with {', '.join(searches())}",
        )
        run_parser.add_argument("--sample", type=count, metavar="N", help="N test images, by chance and --seed")
        run_parser.add_argument("--workers", type=count, default=1, help="processes, of one thread each")
        run_parser.add_argument(
            "--radius",
            action="store_true",
            help="instead of verdicts: the largest eps that is proved for each image, and the smallest that breaks it",
        )
    run_parser.add_argument("--data", help="other data than the run's")
    run_parser.add_argument("--data-root", metavar="DIR", help="where data sets are looked for and kept")
    run_parser.add_argument(
        "--stage", type=stage_of, help="the network as it was after this layer-wise stage; 0: before"
    )
    run_parser.add_argument("--net", help="file.py:function or package.module:function, for a network of one's own")
    run_parser.add_argument("--limit", type=count, help="the first N test images only")
    run_parser.add_argument(
        "--attack", choices=["pgd", "apgd"], default="pgd", help="pgd, or apgd, which finds its own step: stronger"
    )
    run_parser.add_argument("--steps", type=count, default=200, help="steps of the attack")
    run_parser.add_argument("--step", type=float, default=0.1, help="PGD step size as a share of eps")
    run_parser.add_argument("--restarts", type=count, default=1, help="restarts of the attack")
    run_parser.add_argument(
        "--loss", choices=["ce", "margin", "dlr"], help="what the attack climbs; default: ce for pgd, margin for apgd"
    )
    run_parser.add_argument("--seed", type=int, default=0, help="seed of the random starts, and of --sample")
    run_parser.add_argument("--threads", type=count, help="CPU threads")
    run_parser.add_argument("--device", default="auto")
    if command is run_certify:
        property_options(run_parser)
    run_parser.set_defaults(command=command)


def _arithmetic_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--arithmetic",
        choices=ARITHMETICS,
        help="what proofs cover: every evaluation in the network's own type, whatever the order of its sums (default), "
        "or real, the bounds that papers report, which ignore rounding",
    )


def predict_options(predict: argparse.ArgumentParser) -> None:
    predict.add_argument("run", help="folder of a finished run")
    predict.add_argument("image", nargs="+", help="PNG or JPEG of the right size, or test:17 for test image 17")
    predict.add_argument("--net", help="file.py:function or package.module:function, for a network of one's own")
    predict.add_argument("--data-root", metavar="DIR", help="where data sets are looked for and kept")
    _arithmetic_option(predict)
    predict.set_defaults(command=run_predict)


def run_certify(args: argparse.Namespace) -> int:
    if args.onnx or args.vnnlib:
        return run_property(args)
    if args.run is None:
        raise UserError("certify what? Give the folder of a run, or --onnx NET --vnnlib PROPERTY.")
    net, recipe, test = _open(args)
    attack, eps = _attack(args), _radii(args.eps, recipe)
    out = Path(args.run) / _place(args, recipe)
    if args.radius:
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
        more = certificate.real_proofs(radius)
        if more:
            OUT.print(f"eps {radius:g}: {more} more would be proved in real arithmetic, which ignores rounding")
    _print_attacks(certificate, attack, args.seed)
    if len(in_order(args.by)) > 1:
        OUT.print(_deciders(certificate))
    OUT.print(f"records: {out / 'records.jsonl'}", style="dim", markup=False, soft_wrap=True)
    return 0


def _place(args: argparse.Namespace, recipe: Recipe) -> str:
    """The folder of a certification: verdicts on other data than the run's are kept apart."""
    stage = "" if args.stage is None else f"-stage-{args.stage}"
    return f"certify{stage}" + (f"-on-{Path(args.data).stem}" if args.data not in (None, recipe.data) else "")


def run_attack(args: argparse.Namespace) -> None:
    net, recipe, test = _open(args)
    attack = _attack(args)
    table = Table("eps", "images", "standard error", "PGD error", title=escape(f"{args.run}: {attack}"))
    for eps in _radii(args.eps, recipe):
        with Counting("attacking", OUT) as counting:
            found = attack_all(net, test, eps, attack, seed=args.seed, progress=counting.progress)
        file = Path(args.run) / "attack" / f"eps-{eps:g}.safetensors"
        file.parent.mkdir(exist_ok=True)
        tensors = {"x_adv": found.x_adv, "broken": found.broken}
        checkpoint.save(file, tensors, {"eps": eps, "attack": str(attack)})
        shares = [f"{100 * float(of.float().mean()):.2f} %" for of in (found.wrong, found.broken)]
        table.add_row(f"{eps:g}", str(len(test)), *shares)
        OUT.print(f"adversarial examples: {file}", style="dim", markup=False, soft_wrap=True)
    OUT.print(table)


def _attack(args: argparse.Namespace) -> Attack:
    return Attack(kind=args.attack, steps=args.steps, step=args.step, restarts=args.restarts, loss=args.loss)


def _print_radii(net: nn.Module, test: Test, attack: Attack, out: Path, args: argparse.Namespace) -> None:
    """The curve of certified accuracy, and a line per image in radii.jsonl."""
    if args.sample or args.eps or args.budget or args.workers > 1:
        raise UserError(
            "--radius goes through all eps and all test images, or the first with --limit; leave --eps, --sample, "
            "--budget and --workers out."
        )
    with Counting("bisecting", OUT) as counting:
        found = radii(
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
    points = curve(found, [k / 20 for k in range(1, 11)])
    for eps, proved, unbroken in points:
        table.add_row(f"{eps:g}", f"{100 * proved:.2f} %", f"{100 * unbroken:.2f} %")
    OUT.print(table)
    told = median(r.proved for r in found)
    OUT.print(f"half of the images are proved up to eps {told:.4f}; all radii: {out / 'radii.jsonl'}", soft_wrap=True)


def run_predict(args: argparse.Namespace) -> None:
    net, recipe, facts = open_with_facts(args.run, own_net(args))
    from_test = any(name.startswith("test:") for name in args.image)
    test = load_data(recipe, recipe.data, None, args.data_root, validate=False).test if from_test else None
    arithmetic = arithmetic_of(net, args.arithmetic)
    for name in args.image:
        x, label = _image(name, test, tuple(facts["input_shape"]))
        with torch.no_grad():
            logits = run_on_copy(net, x[None])
        predicted = logits.argmax(1)
        # Rounded down, for what is printed must have been proved.
        radius = largest_proved_eps(net, x[None], predicted, arithmetic=args.arithmetic)
        eps = math.floor(1e4 * float(radius)) / 1e4
        truth = "" if label is None else f" (label {label})"
        share = float(logits.softmax(1)[0, predicted])
        proof = (
            f"proved for every change of up to eps {eps:.4f} per pixel, in {arithmetic} arithmetic"
            if eps > 0
            else "not proved at any eps of 0.0001 or more"
        )
        told = f"{escape(name)}: class [bold]{int(predicted)}[/]{truth}, softmax {100 * share:.1f} %, {proof}"
        OUT.print(told, soft_wrap=True)


def _open(args: argparse.Namespace) -> tuple[nn.Module, Recipe, Test]:
    """Network, recipe and test images of a run's folder."""
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


def _radii(given: list[float] | None, recipe: Recipe) -> list[float]:
    return [check_eps(eps) for eps in given or [recipe.eps]]


def _image(name: str, test: Test | None, shape: tuple[int, ...]) -> tuple[torch.Tensor, int | None]:
    if test is None or not name.startswith("test:"):
        return images.read(name, shape), None  # type: ignore[arg-type]
    if not name[5:].isdecimal() or int(name[5:]) >= len(test):
        raise UserError(f"'{name}' names no test image; give test:0 to test:{len(test) - 1}, or an image file.")
    x, y = test.batch(torch.tensor([int(name[5:])]))
    return x[0], int(y)


def _table(certificate: Certificate, title: str) -> Table:
    head, *rows = certificate.rows()
    shown = [i for i, name in enumerate(head) if i < 5 or any(row[i] != "0" for row in rows)]
    table = Table(*(head[i] for i in shown), title=title)
    for row in rows:
        table.add_row(*(row[i] for i in shown))
    return table


def _print_attacks(certificate: Certificate, asked: Attack, seed: int) -> None:
    """Say so where the error under attack is not that of the attack asked for alone."""
    made, now = certificate.attacks(), f"{asked} seed={seed}"
    if set(made) <= {now}:
        return
    OUT.print("the PGD error counts the images that any of these attacks broke; verdicts of earlier calls stand:")
    for name, counts in made.items():
        when = "this call" if name == now else "earlier call"
        told = ", ".join(f"{images} {what}" for what, images in counts.items() if images)
        OUT.print(f"  {when}: {name}: {told}", markup=False, soft_wrap=True)


def _deciders(certificate: Certificate) -> Table:
    """How many images each stage decided, and what it took."""
    table = Table("eps", "decided by", "verdict", "images", "seconds per image", title="who decided")
    for eps in certificate.eps:
        for d in certificate.flow(eps):
            table.add_row(f"{eps:g}", d.by or "nobody", d.verdict, str(d.images), f"{d.seconds:.4f}")
    return table
