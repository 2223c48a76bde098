"""Folders of image files.

Supported layouts:

- ``train/<class>/*.png`` and ``test/<class>/*.png``;
- ``train.csv`` and ``test.csv``, which list image files and their classes;
- ``<class>/*.png``. About one image in six becomes a test image: those for which the SHA-256 sum of the path, relative
  to the folder, is divisible by six. The split is the same on every machine. If images resemble each other, as the
  frames of a video do, a separate test set is better.

The names of GTSRB are supported as well: Final_Training/Images, Final_Test/Images and GT-final_test.csv. The CSV files
in its class folders are ignored, because they repeat the names of the folders.
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

Entries = list[tuple[Path, str]]  # image files and the names of their classes


@dataclass(frozen=True)
class Listing:
    """The image files of a folder and their classes. No image has been opened yet."""

    train: Entries
    test: Entries


def recognize(folder: Path) -> Listing | None:
    """Return the image files of a folder, or None if it has none of the supported layouts."""
    train_folder = _find_folder(folder, _TRAIN)
    if table := _find_table((folder, train_folder), ("train.csv",)):
        train = label_tables.read(table, folder, train_folder)
    elif train_folder and _subfolders(train_folder):
        train = _list_classes(train_folder)
    elif len(classes := _subfolders(folder)) > 1 and any(_images(name) for name in classes):
        return Listing(*_split(_list_classes(folder), folder))
    else:
        return None
    test = _list_test(folder)
    return Listing(train, test) if test else Listing(*_split(train, folder))


def _list_test(folder: Path) -> Entries | None:
    test_folder = _find_folder(folder, _TEST)
    table = _find_table((folder, test_folder, test_folder and test_folder.parent), _TEST_TABLES)
    if table := table or _find_table((folder.parent,), _TEST_TABLES[1:]):
        return label_tables.read(table, folder, test_folder)
    if test_folder is None:
        return None
    if not _subfolders(test_folder):
        raise UserError(
            f"{test_folder} has no class folders, and there is no test.csv or GT-final_test.csv that lists the classes "
            "of its images; put one there."
        )
    return _list_classes(test_folder)


def read(listing: Listing, size: int | None, test: bool = True) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Read all images.

    Args:
        listing: The image files.
        size: Height and width to which the images are resized. If None, they must all have the same size.
        test: If False, test images are not read.

    Returns:
        ``x_train``, ``y_train``, ``x_test`` and ``y_test``, and the names of the classes in the order of their labels.
    """
    label_of, names = _number_classes(listing)
    entries = listing.train + listing.test if test else listing.train
    labels = np.array([label_of[_key(name, label_of)] for _, name in entries])
    images, count = image_files.read_all([file for file, _ in entries], size), len(listing.train)
    if not test:
        return {"x_train": images, "y_train": labels}, names
    return {
        "x_train": images[:count],
        "y_train": labels[:count],
        "x_test": images[count:],
        "y_test": labels[count:],
    }, names


def _number_classes(listing: Listing) -> tuple[dict[str | int, int], tuple[str, ...]]:
    """Assign labels to the classes in alphabetical order, or in numerical order if all names are numbers.

    The names 00007 and 7 then denote the same class. A number of 19 digits or more counts as a name.
    """
    train = {name for _, name in listing.train}
    test = {name for _, name in listing.test}
    numeric = all(name.isascii() and name.isdecimal() and len(name) < 19 for name in train | test)
    names = {int(name) if numeric else name: name for name in sorted(train, reverse=True)}
    keys = sorted(names, key=lambda key: (key, "") if isinstance(key, int) else (0, key))
    label_of = {key: label for label, key in enumerate(keys)}
    if unknown := sorted(name for name in test if _key(name, label_of) not in label_of):
        raise UserError(
            f"The class '{unknown[0]}' of the test images is none of the {len(label_of)} training classes; use the "
            "same names for both."
        )
    return label_of, tuple(names[key] for key in keys)


def _key(name: str, label_of: dict[str | int, int]) -> str | int:
    return int(name) if isinstance(next(iter(label_of)), int) else name


def _list_classes(folder: Path) -> Entries:
    entries: Entries = []
    for class_folder in _subfolders(folder):
        images = _images(class_folder)
        if not images:
            raise UserError(
                f"The class folder {class_folder} holds no image ({', '.join(image_files.SUFFIXES)}); add images or "
                "remove it."
            )
        entries += [(image, class_folder.name) for image in images]
    return entries


def _split(entries: Entries, folder: Path) -> tuple[Entries, Entries]:
    """Split the images into training and test images."""
    test = [entry for entry in entries if _is_test(entry[0], folder)]
    train = [entry for entry in entries if not _is_test(entry[0], folder)]
    if not train or not test:
        raise UserError(
            f"{folder} has {len(entries)} images, too few to use one in {_TEST_SHARE} as a test image; add a test "
            "folder."
        )
    return train, test


def _is_test(file: Path, folder: Path) -> bool:
    name = os.fsencode(file.relative_to(folder).as_posix())
    return int.from_bytes(hashlib.sha256(name).digest(), "big") % _TEST_SHARE == 0


def _find_folder(folder: Path, names: tuple[str, ...]) -> Path | None:
    """Return the subfolder with one of these names, or its only subfolder if that is called "images"."""
    for subfolder in _subfolders(folder):
        if subfolder.name.lower() in names:
            nested = _subfolders(subfolder)
            return nested[0] if len(nested) == 1 and nested[0].name.lower() == "images" else subfolder
    return None


def _find_table(folders: tuple[Path | None, ...], names: tuple[str, ...]) -> Path | None:
    files = [file for folder in folders if folder for file in sorted(folder.iterdir()) if file.name.lower() in names]
    return next((file for file in files if file.is_file()), None)


def _subfolders(folder: Path) -> list[Path]:
    """Return the subfolders, except hidden ones and those that archivers add (__MACOSX)."""
    return sorted(path for path in folder.iterdir() if path.name[:1] not in "._" and path.is_dir())


def _images(folder: Path) -> list[Path]:
    files = (path for path in folder.iterdir() if path.suffix.lower() in image_files.SUFFIXES)
    return sorted(path for path in files if path.name[0] != "." and path.is_file())
