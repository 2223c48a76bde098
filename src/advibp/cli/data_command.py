"""advibp data"""

from __future__ import annotations

import argparse

import torch
from rich.markup import escape
from rich.table import Table

from advibp import data as datasets
from advibp.cli.console import OUT, count
from advibp.data.fetch import catalogue
from advibp.display.progress import Fetching
from advibp.errors import UserError


def data_options(data_parser: argparse.ArgumentParser) -> None:
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
    data_parser.add_argument("--size", type=count, help="resize a folder's images to this many pixels a side")
    data_parser.set_defaults(command=run_data)


def run_data(args: argparse.Namespace) -> None:
    match args.what:
        case []:
            _list_data(args.data_root)
        case ["check", name]:
            _check_data(name, args.data_root)
        case ["fetch", name]:
            with Fetching() as fetching:
                folder = catalogue.fetch(name, args.data_root, fetching.progress)
            OUT.print(f"{name} is complete: {folder}", markup=False, soft_wrap=True)
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
        table.add_row(row.name, row.description, images, str(row.classes), row.shape, row.terms, state)
        if state in ("complete", "damaged"):
            places.append(f"{row.name} is in {catalogue.folder_of(row, root)}")
    for column in table.columns[2:5]:
        column.no_wrap = True
    OUT.print(table)
    for place in places:
        OUT.print(place, style="dim", markup=False, soft_wrap=True)


def _check_data(name: str, root: str | None) -> None:
    folder = catalogue.folder_of(name, root)
    with Fetching() as fetching:
        faults = catalogue.check(name, root, fetching.progress)
    wrong = [file for file, fault in faults.items() if fault]
    for file in list(faults)[:20] if len(faults) <= 20 else wrong[:20]:  # tens of thousands are not for reading
        OUT.print(f"{file}: {faults[file] or 'ok'}", markup=False, soft_wrap=True)
    if not wrong:
        OUT.print(f"{name} is complete, {len(faults):,} files: {folder}", markup=False, soft_wrap=True)
        return
    is_included = catalogue.find(name).base_url is None
    advice = "install advibp again" if is_included else f"'advibp data fetch {name}' replaces it"
    raise UserError(
        f"{name} is {'missing' if len(wrong) == len(faults) and not folder.is_dir() else 'damaged'}: {len(wrong):,} of "
        f"{len(faults):,} files in {folder} are wrong ({wrong[0]}: {faults[wrong[0]]}); {advice}."
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
    names = [f"{label}" for label in range(data.classes)]
    if data.class_names:
        names = [f"{label} {name}" for label, name in zip(names, data.class_names, strict=True)]
    table = Table("class", "to train", "to test")
    for name, to_train, to_test in zip(names, *counts, strict=True):
        table.add_row(escape(name), f"{to_train:,}", f"{to_test:,}")
    OUT.print(table)
