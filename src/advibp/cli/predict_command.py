"""The command `advibp predict`, which classifies images and proves their classes."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.markup import escape
from torch import Tensor

from advibp.bounds import Perturbation
from advibp.cli.certify_command import arithmetic_option
from advibp.cli.console import DATA_ROOT, OUT, STAGE, USER_NET, print_warnings, radius_or_radii, stage_of
from advibp.cli.named_inputs import Test, own_net
from advibp.cli.parser import examples
from advibp.data.features import check_features
from advibp.data.formats import single_image
from advibp.display.eps import format_eps
from advibp.display.terminal import Terminal
from advibp.errors import UserError
from advibp.runs import open_with_facts
from advibp.runs.run_files import stored_warnings
from advibp.runs.run_sources import load_run_data
from advibp.storage.run_folder import RunFolder
from advibp.verify import Prediction, Predictor
from advibp.verify.verifiers import bounding_verifiers

#: Radii of more features than this are not listed.
MOST_RADII = 6


def predict_options(predict: argparse.ArgumentParser) -> None:
    """Add the options of `predict`."""
    predict.description = (
        "Print the class of each image, and the largest eps up to which it is proved. With --eps, print whether it is "
        "proved there; a class that is not proved abstains."
    )
    predict.epilog = examples(
        ("predict runs/first digit.png test:8", ""),
        ("predict runs/first *.png --eps 0.1 --json", "one line of JSON per image"),
    )
    predict.add_argument("run", help="folder of a finished run")
    predict.add_argument("image", nargs="+", help="PNG or JPEG of the right size, or test:17 for test image 17")
    predict.add_argument("--eps", type=radius_or_radii, help="prove the class at this eps: 0.1, 8/255, age=0.1")
    predict.add_argument("--radius", action="store_true", help="with --eps, also find the largest eps that is proved")
    predict.add_argument(
        "--by", nargs="+", default=["ibp"], metavar="VERIFIER", help=f"verifiers: {', '.join(bounding_verifiers())}"
    )
    predict.add_argument("--json", action="store_true", help="print one line of JSON per image")
    predict.add_argument("--net", help=USER_NET)
    predict.add_argument("--data", help="data set of test:N; default: the run's")
    predict.add_argument("--data-root", metavar="DIR", help=DATA_ROOT)
    predict.add_argument("--stage", type=stage_of, metavar="K", help=STAGE)
    arithmetic_option(predict)
    predict.set_defaults(command=run_predict)


def run_predict(args: argparse.Namespace) -> None:
    """Print the class of each image, and what is proved about it."""
    net, recipe, facts = open_with_facts(args.run, own_net(args), args.stage)
    from_test = any(name.startswith("test:") for name in args.image)
    data = load_run_data(args.run, recipe, args.data, args.data_root)[0] if from_test else None
    if data is not None:
        check_features(facts.get("feature_names"), data.feature_names, args.data or data.name)
    around = Perturbation(**facts.get("perturbation", {}))
    if isinstance(args.eps, dict):  # which has a scale of its own
        around = Perturbation(around.low, around.high)
    feature_names = facts.get("feature_names")
    predictor = Predictor(
        net,
        eps=args.eps,
        radius=args.radius or args.eps is None,
        by=args.by,
        arithmetic=args.arithmetic,
        class_names=facts.get("class_names") or (data.class_names if data else None),
        input_shape=facts["input_shape"],
        perturbation=around,
        feature_names=feature_names,
        most=None if around.widest() < math.inf else 10 * recipe.eps,
    )
    warnings = stored_warnings(RunFolder(Path(args.run)).summary())
    print_warnings(warnings, Terminal(stderr=True, highlight=False) if args.json else OUT)
    for name in args.image:
        x, label = _image(name, data.test if data else None, tuple(facts["input_shape"]))
        prediction: Prediction = predictor(x)
        if args.json:
            # One line per image, flushed, so that another program can read it at once.
            print(json.dumps({"image": name, "label": label, **prediction.as_dict()}))
            sys.stdout.flush()
        else:
            OUT.print(_line(name, label, prediction, predictor.perturbation, feature_names), soft_wrap=True)


def _line(
    name: str, label: int | None, prediction: Prediction, around: Perturbation, feature_names: Sequence[str] | None
) -> str:
    """Return the line about one input, as markup."""
    shown = str(prediction.index)
    if prediction.name != shown:
        shown += f" ({prediction.name})"
    truth = "" if label is None else f" (label {label})"
    parts = [f"{escape(name)}: class [bold]{escape(shown)}[/]{truth}", f"softmax {100 * prediction.score:.1f} %"]
    if prediction.certified is not None and prediction.eps is not None:
        holds = "proved" if prediction.certified else "[bold yellow]abstains[/]: not proved"
        parts.append(f"{holds} for every change of up to {_changes(prediction.eps, around, feature_names)}")
    if prediction.radius is not None:
        changes = _changes(prediction.radius, around, feature_names, found=True)
        proof = "proved for every change of up to"
        if prediction.certified is not None:
            proof = "largest proved" if changes.startswith("eps ") else "largest proved radii"
        nothing = "not proved at any eps" + (" of 0.0001 or more" if around.is_pixels else "")
        parts.append(f"{proof} {changes}" if _shown(prediction.radius, around) > 0 else nothing)
    return ", ".join(parts) + f", in {prediction.arithmetic} arithmetic"


def _changes(eps: float, around: Perturbation, names: Sequence[str] | None, *, found: bool = False) -> str:
    """What may change by how much, as markup: eps per pixel, or the radius of each feature if these are few.

    Args:
        eps: the radius.
        around: range and scale of the set.
        names: names of the features of a table.
        found: whether a search found eps, so that it is rounded.
    """
    if around.is_pixels:
        return f"eps {_shown(eps, around):.4f} per pixel" if found else f"eps {format_eps(eps)} per pixel"
    scale = None if around.scale is None else around.scale.flatten().tolist()
    if scale is not None and names and len(names) == len(scale) and sum(share > 0 for share in scale) <= MOST_RADII:
        radii = [(name, eps * share) for name, share in zip(names, scale, strict=True) if share > 0]
        shown = [(name, _shown(radius, around) if found else radius) for name, radius in radii]
        return escape(", ".join(f"{name}={radius:g}" for name, radius in shown))
    per = "" if scale is None else " times the scale of each feature"
    return f"eps {_shown(eps, around) if found else eps:g}{per}"


def _shown(radius: float, around: Perturbation) -> float:
    """A radius that was found, rounded down because only smaller ones are proved: to 1e-4, or to four digits."""
    if around.is_pixels or radius <= 0:
        return math.floor(1e4 * radius) / 1e4
    unit = 10.0 ** (math.floor(math.log10(radius)) - 3)
    return math.floor(radius / unit) * unit


def _image(name: str, test: Test | None, shape: tuple[int, ...]) -> tuple[Tensor, int | None]:
    """Read an image (C, H, W), and its label if it is a test image."""
    if test is None or not name.startswith("test:"):
        if len(shape) != 3:
            raise UserError(
                f"'{name}' is not a row of the table; give test:0, test:1 and so on, with --data FILE for others."
            )
        return single_image.read(name, shape), None
    if not name[5:].isdecimal() or int(name[5:]) >= len(test):
        raise UserError(f"'{name}' is not a test image; give test:0 to test:{len(test) - 1}, or an image file.")
    x, y = test.batch(torch.tensor([int(name[5:])]))
    return x[0], int(y)
