"""The command line: train, certify, attack, predict, data, nets, methods, recipes."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn

from advibp import checkpoint, images, nets
from advibp import data as datasets
from advibp.data import catalogue
from advibp.display import Live
from advibp.errors import UserError
from advibp.folder import RunFolder, hardware
from advibp.methods import METHODS
from advibp.progress import Counting, Fetching
from advibp.recipe import Recipe, integer, number, read, shipped
from advibp.runs import first_net, open_with_facts, train
from advibp.stopping import Stopped
from advibp.training import resolve_device
from advibp.verify import Attack, Certificate, certify, largest_proved_eps
from advibp.verify.cascade import chance, check_eps
from advibp.version import __version__

Test = datasets.Split | datasets.Lazy

OUT = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0; 2 for a mistake of the user's; 130 for Ctrl-C, 143 for SIGTERM."""
    args = parser().parse_args(argv)
    args.typed = shlex.join(["advibp", *(sys.argv[1:] if argv is None else argv)])
    try:
        args.command(args)
    except UserError as error:
        return _complain(str(error))
    except OSError as error:
        return _complain(f"{error.filename or 'a file'}: {error.strerror or error}; nothing written before is lost.")
    except Stopped as stopped:
        print(f"\n{stopped}", file=sys.stderr)
        return 128 + stopped.signal
    except KeyboardInterrupt:
        print("\nstopped; what is finished is kept: the same command goes on (train: with --resume).", file=sys.stderr)
        return 130
    return 0


def _complain(sentence: str) -> int:
    print(f"error: {' '.join(sentence.split())}", file=sys.stderr)  # one line, whatever it quotes
    return 2


# ---------------------------------------------------------------------------------------------- commands


def run_train(args: argparse.Namespace) -> None:
    given = {f.name: getattr(args, f.name) for f in dataclasses.fields(Recipe) if getattr(args, f.name) is not None}
    if args.resume and args.out and RunFolder(Path(args.out)).exists:
        # The folder knows its recipe; what is said again must agree with it, which `train` checks.
        kept = RunFolder(Path(args.out)).recipe().as_dict()
        recipe = Recipe.of({**kept, **(read(args.recipe) if args.recipe else {}), **given})
    else:
        recipe = Recipe.load(args.recipe, **given)
    if nets.is_own(recipe.net) and not args.net:  # a file may name a network, but only what the user types may run
        raise UserError(f"The recipe names a network of one's own; type DATA and NET too ({recipe.net}).")
    out = Path(args.out or f"runs/{Path(recipe.data).stem}-{Path(recipe.net).stem}-{recipe.method}-eps{recipe.eps:g}")
    if RunFolder(out).exists and not args.resume:
        raise UserError(f"{out} holds a run already; add --resume to continue it, or choose another --out.")
    data = _data(recipe, recipe.data, recipe.limit)
    net = first_net(recipe, data)
    OUT.print(
        f"[bold]{recipe.method}[/] on {escape(data.name)} ({len(data.train):,} images), {escape(recipe.net)} "
        f"({sum(p.numel() for p in net.parameters()):,} parameters), eps {recipe.eps:g}, "
        f"{recipe.epochs:g} epochs{_and_stages(recipe)} -> {escape(str(out))}",
        soft_wrap=True,
    )
    OUT.print("std.err and verified: errors on the validation images, at eps_train\n", style="dim")
    run = train(net, data, recipe=recipe, out=out, resume=args.resume, show=Live(OUT))
    own = f" --net {recipe.net}" if nets.is_own(recipe.net) else ""
    minutes = run.summary["seconds"] / 60
    told = f"\ntrained in {minutes:.1f} minutes; next: advibp certify {out} --eps {recipe.eps}{own}"
    OUT.print(told, markup=False, soft_wrap=True)


def _and_stages(recipe: Recipe) -> str:
    return f", then {recipe.stages} layer-wise stages of {recipe.stage_epochs:g}" if recipe.stages else ""


def run_certify(args: argparse.Namespace) -> None:
    net, recipe, test = _open(args)
    attack = Attack(steps=args.steps, step=args.step, restarts=args.restarts, loss=args.loss)
    eps = _radii(args.eps, recipe)
    out = Path(args.run) / ("certify" if args.stage is None else f"certify-stage-{args.stage}")
    with Counting("certifying", OUT) as counting:
        certificate = certify(
            net, test, eps, by=args.by, attack=attack, out=out, seed=args.seed, progress=counting.progress
        )
    stage = "" if args.stage is None else f", stage {args.stage}"
    OUT.print(_table(certificate, escape(f"{args.run}{stage}: {len(test)} test images, {attack}")))
    checkpoint.write_atomically(out / "summary.json", json.dumps(_summary(certificate, args, attack), indent=2) + "\n")
    OUT.print(f"records: {out / 'records.jsonl'}", style="dim", markup=False, soft_wrap=True)


def run_attack(args: argparse.Namespace) -> None:
    net, recipe, test = _open(args)
    attack = Attack(steps=args.steps, step=args.step, restarts=args.restarts, loss=args.loss)
    table = Table("eps", "images", "standard error", "PGD error", title=escape(f"{args.run}: {attack}"))
    for eps in _radii(args.eps, recipe):
        found, broken, wrong = [], [], 0
        with Counting("attacking", OUT) as counting:
            for start in range(0, len(test), 500):
                x, y = test.batch(torch.arange(start, min(start + 500, len(test))))
                x, y = x.to(args.device), y.to(args.device)
                chances = [chance(args.seed, i, eps) for i in range(start, start + len(x))]
                attacked = attack(net, x, y, eps, chances)
                with torch.no_grad():
                    misclassified = net(x).argmax(1) != y
                wrong += int(misclassified.sum())
                attacked.x_adv[misclassified] = x[misclassified]  # x itself lies in the set
                found.append(attacked.x_adv.cpu())
                broken.append((attacked.broken | misclassified).cpu())
                counting.progress(eps, start + len(x), len(test))
        (Path(args.run) / "attack").mkdir(exist_ok=True)
        file = Path(args.run) / "attack" / f"eps-{eps:g}.safetensors"
        checkpoint.save(
            file, {"x_adv": torch.cat(found), "broken": torch.cat(broken)}, {"eps": eps, "attack": str(attack)}
        )
        share = float(torch.cat(broken).float().mean())
        table.add_row(f"{eps:g}", str(len(test)), f"{100 * wrong / len(test):.2f} %", f"{100 * share:.2f} %")
        OUT.print(f"adversarial examples: {file}", style="dim", markup=False, soft_wrap=True)
    OUT.print(table)


def run_predict(args: argparse.Namespace) -> None:
    net, recipe, facts = open_with_facts(args.run, _own_net(args))
    from_test = any(name.startswith("test:") for name in args.image)
    test = _data(recipe, recipe.data, None, args.data_root).test if from_test else None
    for name in args.image:
        x, label = _image(name, test, tuple(facts["input_shape"]))
        with torch.no_grad():
            logits = net(x[None])
        predicted = logits.argmax(1)
        # Rounded down, for what is printed must have been proved.
        eps = math.floor(1e4 * float(largest_proved_eps(net, x[None], predicted))) / 1e4
        truth = "" if label is None else f" (label {label})"
        share = float(logits.softmax(1)[0, predicted])
        proof = (
            f"proved for every change of up to eps {eps:.4f} per pixel"
            if eps > 0
            else "not proved at any eps of 0.0001 or more"
        )
        told = f"{escape(name)}: class [bold]{int(predicted)}[/]{truth}, softmax {100 * share:.1f} %, {proof}"
        OUT.print(told, soft_wrap=True)


def run_data(args: argparse.Namespace) -> None:
    match args.what:
        case []:
            _list_data(args.data_root)
        case ["check", name]:
            _check_data(name, args.data_root)
        case ["fetch", name]:
            with Fetching() as fetching:
                folder = catalogue.fetch(name, args.data_root, fetching.progress)
            OUT.print(f"{name} is whole: {folder}", markup=False, soft_wrap=True)
        case ["check" | "fetch"]:
            raise UserError(f"'data {args.what[0]}' needs one name: {', '.join(catalogue.NAMES)}.")
        case [source]:
            _describe_data(source, args.data_root, args.size)
        case _:
            raise UserError("'data' takes nothing, check NAME, fetch NAME, or one name, folder or file.")


def _list_data(root: str | None) -> None:
    table = Table("name", "what it is", "images", "classes", "shape", "terms", "state")
    places = [f"a set is fetched into {catalogue.root_folder(root)}: advibp data fetch NAME"]
    for row in catalogue.ROWS:
        images, state = " + ".join(f"{count:,}" for count in row.images), catalogue.state(row, root)
        table.add_row(row.name, row.says, images, str(row.classes), row.shape, row.terms, state)
        if state in ("whole", "damaged"):
            places.append(f"{row.name} lies in {catalogue.place(row, root)}")
    for column in table.columns[2:5]:
        column.no_wrap = True
    OUT.print(table)
    for place in places:
        OUT.print(place, style="dim", markup=False, soft_wrap=True)


def _check_data(name: str, root: str | None) -> None:
    folder = catalogue.place(name, root)
    with Fetching() as fetching:
        faults = catalogue.check(name, root, fetching.progress)
    wrong = [file for file, fault in faults.items() if fault]
    for file in list(faults)[:20] if len(faults) <= 20 else wrong[:20]:  # tens of thousands are not for reading
        OUT.print(f"{file}: {faults[file] or 'whole'}", markup=False, soft_wrap=True)
    if not wrong:
        OUT.print(f"{name} is whole, {len(faults):,} files: {folder}", markup=False, soft_wrap=True)
        return
    mend = "install advibp again" if catalogue.find(name).home is None else f"'advibp data fetch {name}' mends it"
    raise UserError(
        f"{name} is {'missing' if len(wrong) == len(faults) and not folder.is_dir() else 'damaged'}: {len(wrong):,} of "
        f"{len(faults):,} files in {folder} are not as they should be ({wrong[0]}: {faults[wrong[0]]}); {mend}."
    )


def _describe_data(source: str, root: str | None, size: int | None) -> None:
    data = datasets.load(source, validation=0, root=root, size=size, fetch=False)
    mean, std = (", ".join(f"{value:.3f}" for value in values) for values in (data.mean, data.std))
    told = (
        f"{data.name}: {len(data.train):,} images to train, {len(data.test):,} to test, "
        f"{'x'.join(map(str, data.input_shape))}, {data.classes} classes; mean {mean}, standard deviation {std}"
    )
    OUT.print(told, markup=False, soft_wrap=True)
    counts = [torch.bincount(split.sample()["y"], minlength=data.classes).tolist() for split in (data.train, data.test)]
    table = Table("label", "class", "to train", "to test")
    for label, (to_train, to_test) in enumerate(zip(*counts, strict=True)):
        name = data.class_names[label] if data.class_names else ""
        table.add_row(str(label), escape(name), f"{to_train:,}", f"{to_test:,}")
    OUT.print(table)


def run_nets(args: argparse.Namespace) -> None:
    shape = args.shape
    if args.net:
        table = Table("layer", "output", "parameters", title=f"{args.net} on {'x'.join(map(str, shape))}")
        for layer, output, count in nets.summary(nets.build(args.net, shape, args.classes), shape):
            table.add_row(layer, "x".join(map(str, output)), f"{count:,}")
    else:
        table = Table(
            "name", "structure", "parameters", title=f"on {'x'.join(map(str, shape))}, {args.classes} classes"
        )
        for name, structure in nets.STRUCTURES.items():
            count = sum(p.numel() for p in nets.build(name, shape, args.classes).parameters())
            table.add_row(name, structure, f"{count:,}")
    OUT.print(table)


def run_methods(args: argparse.Namespace) -> None:
    table = Table("method", "what it minimises")
    for name, method in METHODS.items():
        table.add_row(name, method.says)
    OUT.print(table)


def run_recipes(args: argparse.Namespace) -> None:
    if args.name:
        OUT.print(Recipe.load(args.name).to_yaml(), markup=False)
        return
    for name in shipped():
        OUT.print(name)


# ---------------------------------------------------------------------------------------------- what they share


def _open(args: argparse.Namespace) -> tuple[nn.Module, Recipe, Test]:
    """Network, recipe and test images of a run's folder."""
    net, recipe, facts = open_with_facts(args.run, _own_net(args), args.stage)
    data = _data(recipe, args.data or recipe.data, None, args.data_root)
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


def _data(recipe: Recipe, source: str, limit: int | None, root: str | None = None) -> datasets.Data:
    root = root or recipe.data_root
    if source in catalogue.NAMES:  # load would fetch it too, but in silence
        with Fetching() as fetching:
            catalogue.locate(source, root, progress=fetching.progress)
    return datasets.load(source, validation=recipe.validation, limit=limit, root=root, size=recipe.size)


def _own_net(args: argparse.Namespace) -> nn.Module | None:
    return nets.from_file(args.net) if args.net else None


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


def _summary(certificate: Certificate, args: argparse.Namespace, attack: Attack) -> dict[str, Any]:
    """The table as JSON, with what made it; percent, as in the paper."""
    return {
        "command": args.typed,
        "attack": str(attack),
        "by": args.by,
        "images": certificate.counts(certificate.eps[0]).total(),
        "percent": {
            f"{eps:g}": {name: round(100 * share, 2) for name, share in certificate.errors(eps).items()}
            for eps in certificate.eps
        },
        "verdicts": {f"{eps:g}": dict(certificate.counts(eps)) for eps in certificate.eps},
        "hardware": hardware(),
    }


def _fraction(text: str) -> float:
    try:
        return float(number(-1e9)(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number; write 0.3 or 8/255") from None


def _count(text: str) -> int:
    try:
        return int(integer(1)(text))
    except ValueError as wanted:
        raise argparse.ArgumentTypeError(f"{text!r} is given, but it must be {wanted}") from None


def _stage(text: str) -> int:
    return _count(str(int(text) + 1)) - 1 if text.isdecimal() else _count(text)


def _shape(text: str) -> tuple[int, ...]:
    parts = text.split("x")
    if len(parts) != 3 or not all(p.isdecimal() and int(p) > 0 for p in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no shape; write channels x height x width, such as 1x28x28")
    return tuple(int(p) for p in parts)


# ---------------------------------------------------------------------------------------------- options


class _Parser(argparse.ArgumentParser):
    """Mistakes are told in one line, here as everywhere; an option is what it is called, not a part of it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    top = _Parser(
        prog="advibp",
        description="Train neural networks whose robustness can be proved, attack them, and prove it image by image.",
        epilog="first steps: advibp train mnist dm-small --recipe demo --out runs/first, "
        "then advibp certify runs/first --eps 0.1",
    )
    top.add_argument("--version", action="version", version=f"advibp {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    _train_options(commands.add_parser("train", help="train a network into a folder", formatter_class=_Help))
    _run_options(
        commands.add_parser("certify", help="verdict for every test image", formatter_class=_Help), run_certify
    )
    _run_options(commands.add_parser("attack", help="attack every test image", formatter_class=_Help), run_attack)

    predict = commands.add_parser("predict", help="class of an image, and the largest eps at which it is proved")
    predict.add_argument("run", help="folder of a finished run")
    predict.add_argument("image", nargs="+", help="PNG or JPEG of the right size, or test:17 for test image 17")
    predict.add_argument("--net", help="file.py:function or package.module:function, for a network of one's own")
    predict.add_argument("--data-root", metavar="DIR", help="where data sets are looked for and kept")
    predict.set_defaults(command=run_predict)

    _data_options(commands.add_parser("data", help="data sets: list, fetch, check, look at", formatter_class=_Help))

    structures = commands.add_parser("nets", help="network structures with shapes and parameter counts")
    structures.add_argument("net", nargs="?", help="one network, layer by layer; a name or a grammar")
    structures.add_argument("--shape", type=_shape, default=(1, 28, 28), help="input shape (default 1x28x28)")
    structures.add_argument("--classes", type=_count, default=10)
    structures.set_defaults(command=run_nets)

    commands.add_parser("methods", help="training methods").set_defaults(command=run_methods)
    recipes = commands.add_parser("recipes", help="shipped recipes; with a name, all its keys")
    recipes.add_argument("name", nargs="?")
    recipes.set_defaults(command=run_recipes)
    return top


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Defaults behind every option, examples as they were written."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False) else super()._get_help_string(action)


def _data_options(data_parser: argparse.ArgumentParser) -> None:
    data_parser.description = (
        "The data sets known by name, and what a folder or file of yours holds.\n\n"
        "  advibp data                    all data sets: what they are, and whether they are here\n"
        "  advibp data fetch cifar10      fetch a data set; an interrupted fetch goes on where it stopped\n"
        "  advibp data check cifar10      compare every file with its checksum; exit code 2 if one differs\n"
        "  advibp data pictures/          how a folder or an .npz file of yours is understood\n\n"
        "Data sets lie in the folder --data-root, else $ADVIBP_DATA, else advibp in your cache (~/.cache). With\n"
        "ADVIBP_MIRROR=https://files.example.org/sets they come from there, such as\n"
        "https://files.example.org/sets/cifar10/cifar-10-binary.tar.gz; the checksums stay the same.\n"
        "https_proxy and http_proxy are heeded."
    )
    data_parser.add_argument(
        "what", nargs="*", metavar="WHAT", help="fetch NAME, check NAME, a name, a folder or a file"
    )
    data_parser.add_argument("--data-root", metavar="DIR", help="where data sets are looked for and kept")
    data_parser.add_argument("--size", type=_count, help="resize a folder's images to this many pixels a side")
    data_parser.set_defaults(command=run_data)


def _train_options(train_parser: argparse.ArgumentParser) -> None:
    train_parser.description = (
        "Train NET on DATA with a method and a radius. DIR then holds recipe.yaml, metrics.jsonl, TensorBoard events,\n"
        "checkpoints, model.safetensors and summary.json. Every key of a recipe is an option here.\n\n"
        "  advibp train mnist dm-small --eps 0.3 --out runs/first\n"
        '  advibp train digits.npz "Conv 16 4x4+2, FC 100" --eps 8/255 --epochs 20\n'
        "  advibp train --resume --out runs/first"
    )
    train_parser.add_argument("data", nargs="?", help=_says("data"))
    train_parser.add_argument("net", nargs="?", help=_says("net"))
    train_parser.add_argument(
        "--out", metavar="DIR", help="folder of the run; default: runs/ and a name made of the recipe"
    )
    train_parser.add_argument(
        "--resume", action="store_true", help="continue the run in --out exactly where it stopped"
    )
    train_parser.add_argument(
        "--recipe", help="a shipped recipe (advibp recipes) or a YAML file; options given here win"
    )
    default = Recipe()
    for f in dataclasses.fields(Recipe):
        if f.name in ("data", "net", "published"):
            continue
        shown = getattr(default, f.name)
        shown = ",".join(map(str, shown)) if isinstance(shown, tuple) else "none" if shown is None else shown
        says = f"{f.metadata['says']} (default: {shown})".replace("%", "%%")
        names = dict.fromkeys([f"--{f.name.replace('_', '-')}", f"--{f.name}"])
        train_parser.add_argument(*names, dest=f.name, help=says, metavar=f.name.split("_")[-1].upper())
    train_parser.set_defaults(command=run_train, published=None)


def _says(key: str) -> str:
    return str(Recipe.__dataclass_fields__[key].metadata["says"])


def _run_options(run_parser: argparse.ArgumentParser, command: Any) -> None:
    run_parser.add_argument("run", help="folder of a finished run")
    run_parser.add_argument(
        "--eps", nargs="+", type=_fraction, help="radii, such as 0.1 0.2 or 8/255; default: the run's eps"
    )
    if command is run_certify:
        run_parser.add_argument("--by", nargs="+", default=["ibp"], help="verifiers")
    run_parser.add_argument("--data", help="other data than the run's")
    run_parser.add_argument("--data-root", metavar="DIR", help="where data sets are looked for and kept")
    run_parser.add_argument("--stage", type=_stage, help="the network as it was after this layer-wise stage; 0: before")
    run_parser.add_argument("--net", help="file.py:function or package.module:function, for a network of one's own")
    run_parser.add_argument("--limit", type=_count, help="the first N test images only")
    run_parser.add_argument("--steps", type=_count, default=200, help="PGD steps")
    run_parser.add_argument("--step", type=float, default=0.1, help="PGD step size as a share of eps")
    run_parser.add_argument("--restarts", type=_count, default=1, help="PGD restarts")
    run_parser.add_argument("--loss", choices=["ce", "margin"], default="ce", help="what PGD climbs")
    run_parser.add_argument("--seed", type=int, default=0, help="seed of the random starts")
    run_parser.add_argument("--threads", type=_count, help="CPU threads")
    run_parser.add_argument("--device", default="auto")
    run_parser.set_defaults(command=command)


if __name__ == "__main__":
    sys.exit(main())
