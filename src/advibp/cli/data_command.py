"""The command `advibp data`."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table

from advibp import data as datasets
from advibp.cli.console import DATA_ROOT, NOTES, OUT, count, print_json
from advibp.cli.parser import examples, output_options
from advibp.data.fetch import catalogue
from advibp.data.fetch.known_sets import Row
from advibp.display.progress import Fetching
from advibp.errors import UserError


def data_options(data_parser: argparse.ArgumentParser) -> None:
    data_parser.description = (
        "List, download, check or describe data sets. Data sets are stored in --data-root, by default $ADVIBP_DATA, or "
        "else ~/.cache/advibp.\n\n"
        "To download from a mirror, set ADVIBP_MIRROR, for example to https://files.example.org/sets; the file "
        "https://files.example.org/sets/cifar10/cifar-10-binary.tar.gz is then used, with the same checksum. Proxies "
        "are read from https_proxy and http_proxy."
    )
    data_parser.epilog = examples(
        ("data", "list all data sets, and whether they are downloaded"),
        ("data fetch cifar10", "download a data set; an interrupted download is continued"),
        ("data check cifar10", "compare all files with their checksums"),
        ("data pictures/", "describe your own folder of images, .npz or .csv file"),
    )
    output_options(data_parser)
    data_parser.add_argument(
        "what", nargs="*", metavar="WHAT", help="fetch NAME, check NAME, or a name, folder or file to describe"
    )
    data_parser.add_argument("--data-root", metavar="DIR", help=DATA_ROOT)
    data_parser.add_argument("--size", type=count, metavar="PIXELS", help="resize images of a folder to this size")
    data_parser.add_argument("--label", metavar="COLUMN", help="label column of a table (.csv); default: the last")
    data_parser.set_defaults(command=run_data)


def run_data(args: argparse.Namespace) -> None:
    match args.what:
        case []:
            _list_data(args.data_root, args.json)
        case ["check", name]:
            _check_data(name, args.data_root, args.json)
        case ["fetch", name]:
            with Fetching() as fetching:
                folder = catalogue.fetch(name, args.data_root, fetching.progress)
            if args.json:
                print_json({"name": name, "state": "complete", "folder": folder})
            OUT.print(f"{name} is complete: {folder}", markup=False, soft_wrap=True)
        case ["check" | "fetch"]:
            raise UserError(f"'data {args.what[0]}' needs the name of a data set: {', '.join(catalogue.NAMES)}.")
        case [source]:
            _describe_data(source, args)
        case _:
            raise UserError("'data' takes one name, folder or file, fetch NAME, check NAME, or no argument.")


def _list_data(root: str | None, as_json: bool) -> None:
    if as_json:
        print_json([_row_facts(row, root) for row in catalogue.ROWS])
        return
    table = Table("name", "description", "images", "classes", "shape", "terms", "state")
    places = [f"download with: advibp data fetch NAME (into {catalogue.root_folder(root)})"]
    for row in catalogue.ROWS:
        images, state = " + ".join(f"{count:,}" for count in row.images), catalogue.state(row, root)
        table.add_row(row.name, row.description, images, str(row.classes), row.shape, row.terms, state)
        if state in ("complete", "damaged"):
            places.append(f"{row.name} is in {catalogue.folder_of(row, root)}")
    for column in table.columns[2:5]:
        column.no_wrap = True
    OUT.print(table)
    for place in places:
        NOTES.print(place, style="dim", markup=False, soft_wrap=True)


def _row_facts(row: Row, root: str | None) -> dict[str, Any]:
    return {
        "name": row.name,
        "description": row.description,
        "train": row.images[0],
        "test": row.images[1],
        "classes": row.classes,
        "shape": row.shape,
        "terms": row.terms,
        "state": catalogue.state(row, root),
        "folder": catalogue.folder_of(row, root),
    }


def _check_data(name: str, root: str | None, as_json: bool) -> None:
    folder = catalogue.folder_of(name, root)
    with Fetching() as fetching:
        faults = catalogue.check(name, root, fetching.progress)
    wrong = [file for file, fault in faults.items() if fault]
    for file in list(faults)[:20] if len(faults) <= 20 else wrong[:20]:  # some sets have tens of thousands of files
        OUT.print(f"{file}: {faults[file] or 'ok'}", markup=False, soft_wrap=True)
    if as_json:
        print_json({"name": name, "folder": folder, "files": len(faults), "wrong": {f: faults[f] for f in wrong}})
    if not wrong:
        OUT.print(f"{name} is complete, {len(faults):,} files: {folder}", markup=False, soft_wrap=True)
        return
    is_included = catalogue.find(name).base_url is None
    advice = "install advibp again" if is_included else f"'advibp data fetch {name}' replaces it"
    raise UserError(
        f"{name} is {'missing' if len(wrong) == len(faults) and not folder.is_dir() else 'damaged'}: {len(wrong):,} of "
        f"{len(faults):,} files in {folder} are wrong ({wrong[0]}: {faults[wrong[0]]}); {advice}."
    )


def _describe_data(source: str, args: argparse.Namespace) -> None:
    data = datasets.load(source, validation=0, root=args.data_root, size=args.size, label=args.label, fetch=False)
    counts = [torch.bincount(split.sample()["y"], minlength=data.classes).tolist() for split in (data.train, data.test)]
    if args.json:
        facts = {"name": data.name, "train": len(data.train), "test": len(data.test), "shape": data.input_shape}
        facts |= {"classes": data.classes, "class_names": data.class_names, "mean": data.mean, "std": data.std}
        facts |= {"feature_names": data.feature_names} if data.feature_names else {}
        print_json({**facts, "train_per_class": counts[0], "test_per_class": counts[1]})
        return
    if data.feature_names:
        _describe_features(data)
        _describe_classes(data, counts, "rows")
        return
    mean, std = (", ".join(f"{value:.3f}" for value in values) for values in (data.mean, data.std))
    description = (
        f"{data.name}: {len(data.train):,} training images, {len(data.test):,} test images, "
        f"{'x'.join(map(str, data.input_shape))}, {data.classes} classes; mean {mean}, standard deviation {std}"
    )
    OUT.print(description, markup=False, soft_wrap=True)
    _describe_classes(data, counts, "images")


def _describe_features(data: datasets.Data) -> None:
    """Print a row for each column of a table: mean, standard deviation, smallest and largest value."""
    assert data.feature_names is not None
    x = data.train.pixels()
    OUT.print(
        f"{data.name}: {len(data.train):,} training rows, {len(data.test):,} test rows, {len(data.feature_names)} "
        f"features, {data.classes} classes",
        markup=False,
        soft_wrap=True,
    )
    table = Table("feature", "mean", "standard deviation", "smallest", "largest")
    columns = (data.feature_names, data.mean, data.std, x.amin(0).tolist(), x.amax(0).tolist())
    for name, *numbers in zip(*columns, strict=True):
        table.add_row(escape(name), *(f"{number:.4g}" for number in numbers))
    OUT.print(table)


def _describe_classes(data: datasets.Data, counts: list[list[int]], what: str) -> None:
    """Print the number of training and test inputs of each class."""
    names = [f"{label}" for label in range(data.classes)]
    if data.class_names:
        names = [
            name if name == number else f"{number} {name}" for number, name in zip(names, data.class_names, strict=True)
        ]
    table = Table("class", f"training {what}", f"test {what}")
    for name, train, test in zip(names, *counts, strict=True):
        table.add_row(escape(name), f"{train:,}", f"{test:,}")
    OUT.print(table)
