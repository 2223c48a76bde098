"""The command `advibp predict`, which classifies images and proves their classes."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

import torch
from rich.markup import escape
from torch import Tensor

from advibp.bounds import Perturbation
from advibp.cli.certify_command import arithmetic_option
from advibp.cli.console import DATA_ROOT, OUT, STAGE, USER_NET, fraction, print_warnings, stage_of
from advibp.cli.named_inputs import Test, own_net
from advibp.cli.parser import examples
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
    predict.add_argument("--eps", type=fraction, help="prove the class at this eps, such as 0.1 or 8/255")
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
    around = Perturbation(**facts.get("perturbation", {}))
    predictor = Predictor(
        net,
        eps=args.eps,
        radius=args.radius or args.eps is None,
        by=args.by,
        arithmetic=args.arithmetic,
        class_names=facts.get("class_names") or (data.class_names if data else None),
        input_shape=facts["input_shape"],
        perturbation=around,
        most=None if around.widest() < math.inf else 10 * recipe.eps,
    )
    per = " per pixel" if around.is_pixels else "" if around.scale is None else " times the scale of each feature"
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
            OUT.print(_line(name, label, prediction, per), soft_wrap=True)


def _line(name: str, label: int | None, prediction: Prediction, per: str) -> str:
    """Return the line about one input, as markup. `per`: what may change by eps."""
    shown = str(prediction.index)
    if prediction.name != shown:
        shown += f" ({prediction.name})"
    truth = "" if label is None else f" (label {label})"
    parts = [f"{escape(name)}: class [bold]{escape(shown)}[/]{truth}", f"softmax {100 * prediction.score:.1f} %"]
    if prediction.certified is not None and prediction.eps is not None:
        holds = "proved" if prediction.certified else "[bold yellow]abstains[/]: not proved"
        parts.append(f"{holds} for every change of up to eps {format_eps(prediction.eps)}{per}")
    if prediction.radius is not None:
        # Rounded down, because only smaller radii are proved.
        eps = math.floor(1e4 * prediction.radius) / 1e4
        proof = f"proved for every change of up to eps {eps:.4f}{per}"
        if prediction.certified is not None:
            proof = f"largest proved eps {eps:.4f}"
        parts.append(proof if eps > 0 else "not proved at any eps of 0.0001 or more")
    return ", ".join(parts) + f", in {prediction.arithmetic} arithmetic"


def _image(name: str, test: Test | None, shape: tuple[int, ...]) -> tuple[Tensor, int | None]:
    """Read an image (C, H, W), and its label if it is a test image."""
    if test is None or not name.startswith("test:"):
        return single_image.read(name, shape), None  # type: ignore[arg-type]
    if not name[5:].isdecimal() or int(name[5:]) >= len(test):
        raise UserError(f"'{name}' is not a test image; give test:0 to test:{len(test) - 1}, or an image file.")
    x, y = test.batch(torch.tensor([int(name[5:])]))
    return x[0], int(y)
