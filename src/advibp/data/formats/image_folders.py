"""Folders of images, laid out as GTSRB's and many others are.

``train/<class>/*.png`` and ``test/<class>/*.png``, or ``train.csv`` and ``test.csv`` beside them; or ``<class>/*.png``
alone, of which about one image in six becomes the test set: those whose path relative to the folder has a SHA-256 sum
divisible by six. That is the same part every time and everywhere, but no better than a test set of its own where
images resemble each other, as the frames of one film do.

GTSRB's folders are known by their own names too: Final_Training/Images, Final_Test/Images and GT-final_test.csv. The
CSV in each of its class folders is passed over, for it repeats what the folder's name says.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from advibp.data.assembly import Array
from advibp.data.formats import image_files, label_tables
from advibp.errors import UserError

_TRAIN = ("train", "training", "final_training")
_TEST = ("test", "testing", "final_test")
_TEST_TABLES = ("test.csv", "gt-final_test.csv")
_TEST_SHARE = 6

Entries = list[tuple[Path, str]]  # files and the names of their classes


@dataclass(frozen=True)
class Listing:
    """What a folder holds, before any image is opened."""

    train: Entries
    test: Entries


def recognise(folder: Path) -> Listing | None:
    """The images of a folder, or None if it is none of images."""
    part = _part(folder, _TRAIN)
    if table := _table((folder, part), ("train.csv",)):
        train = label_tables.read(table, folder, part)
    elif part and _subfolders(part):
        train = _tree(part)
    elif len(classes := _subfolders(folder)) > 1 and any(_images(name) for name in classes):
        return Listing(*_parted(_tree(folder), folder))
    else:
        return None
    test = _test(folder)
    return Listing(train, test) if test else Listing(*_parted(train, folder))


def _test(folder: Path) -> Entries | None:
    part = _part(folder, _TEST)
    table = _table((folder, part, part and part.parent), _TEST_TABLES) or _table((folder.parent,), _TEST_TABLES[1:])
    if table:
        return label_tables.read(table, folder, part)
    if part is None:
        return None
    if not _subfolders(part):
        raise UserError(
            f"{part} holds no class folders, and no test.csv or GT-final_test.csv says of which class its images are; "
            "put one there."
        )
    return _tree(part)


def read(listing: Listing, size: int | None) -> tuple[dict[str, Array], tuple[str, ...]]:
    """The arrays, and the names of the classes in the order of their labels."""
    order, names = _classes(listing)
    files = [file for file, _ in listing.train + listing.test]
    labels = np.array([order[_key(label, order)] for _, label in listing.train + listing.test])
    images, count = image_files.read_all(files, size), len(listing.train)
    return {
        "x_train": images[:count],
        "y_train": labels[:count],
        "x_test": images[count:],
        "y_test": labels[count:],
    }, names


def _classes(listing: Listing) -> tuple[dict[str | int, int], tuple[str, ...]]:
    """Names -> labels, in the order of numbers if all are numbers: 00007 and 7 are then the same class."""
    spelt = {label for _, label in listing.train}
    tested = {label for _, label in listing.test}
    # A number of twenty digits is a name.
    numeric = all(label.isascii() and label.isdecimal() and len(label) < 19 for label in spelt | tested)
    names = {int(label) if numeric else label: label for label in sorted(spelt, reverse=True)}
    keys = sorted(names, key=lambda key: (key, "") if isinstance(key, int) else (0, key))
    order = {key: label for label, key in enumerate(keys)}
    if unknown := sorted(label for label in tested if _key(label, order) not in order):
        raise UserError(
            f"The class '{unknown[0]}' of the test images is none of the {len(order)} classes to train on; "
            "name both alike."
        )
    return order, tuple(names[key] for key in keys)


def _key(label: str, order: dict[str | int, int]) -> str | int:
    return int(label) if isinstance(next(iter(order)), int) else label


def _tree(folder: Path) -> Entries:
    found: Entries = []
    for name in _subfolders(folder):
        images = _images(name)
        if not images:
            raise UserError(
                f"The class folder {name} holds no image ({', '.join(image_files.SUFFIXES)}); fill or remove it."
            )
        found += [(image, name.name) for image in images]
    return found


def _parted(entries: Entries, folder: Path) -> tuple[Entries, Entries]:
    """The part to train, and the fixed part to test."""
    chosen = [_is_test(file, folder) for file, _ in entries]
    train = [entry for entry, test in zip(entries, chosen, strict=True) if not test]
    test = [entry for entry, test in zip(entries, chosen, strict=True) if test]
    if not train or not test:
        raise UserError(
            f"{folder} has {len(entries)} images, too few to hold out one in {_TEST_SHARE} to test; give a test folder."
        )
    return train, test


def _is_test(file: Path, folder: Path) -> bool:
    name = os.fsencode(file.relative_to(folder).as_posix())
    return int.from_bytes(hashlib.sha256(name).digest(), "big") % _TEST_SHARE == 0


def _part(folder: Path, names: tuple[str, ...]) -> Path | None:
    for found in _subfolders(folder):
        if found.name.lower() in names:
            inside = _subfolders(found)
            return inside[0] if len(inside) == 1 and inside[0].name.lower() == "images" else found
    return None


def _table(places: tuple[Path | None, ...], names: tuple[str, ...]) -> Path | None:
    files = [file for place in places if place for file in sorted(place.iterdir()) if file.name.lower() in names]
    return next((file for file in files if file.is_file()), None)


def _subfolders(folder: Path) -> list[Path]:
    """Hidden ones, and those that archivers leave behind (__MACOSX), are passed over."""
    return sorted(path for path in folder.iterdir() if path.name[:1] not in "._" and path.is_dir())


def _images(folder: Path) -> list[Path]:
    files = (path for path in folder.iterdir() if path.suffix.lower() in image_files.SUFFIXES)
    return sorted(path for path in files if path.name[0] != "." and path.is_file())
