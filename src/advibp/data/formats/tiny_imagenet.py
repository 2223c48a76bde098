"""TinyImageNet, as its archive is extracted: train/<class>/images, and val/images with val/val_annotations.txt.

Its test images have no published labels, so its validation images are the test set, as in the literature.
"""

from __future__ import annotations

from pathlib import Path

from advibp.data.formats import image_files
from advibp.data.formats.image_folders import Entries, Listing
from advibp.errors import UserError

_ANNOTATIONS = Path("val", "val_annotations.txt")


def recognize(folder: Path) -> Listing | None:
    """Return the image files of TinyImageNet, or None if the folder has no val/val_annotations.txt.

    Raises:
        UserError: if images are missing, or a line of the annotations can't be read.
    """
    if not (folder / _ANNOTATIONS).is_file():
        return None
    return Listing(_list_train(folder / "train"), _list_test(folder / _ANNOTATIONS))


def _list_train(folder: Path) -> Entries:
    classes = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    entries = [(image, name.name) for name in classes for image in _images(name / "images")]
    if not entries:
        raise UserError(f"{folder} has no images of TinyImageNet, as in train/n01443537/images; extract it again.")
    return entries


def _images(folder: Path) -> list[Path]:
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path for path in files if path.suffix.lower() in image_files.SUFFIXES and path.name[0] != "."]


def _list_test(annotations: Path) -> Entries:
    """Read the annotations: file, class and a bounding box in each line, separated by tabs."""
    try:
        lines = annotations.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"Cannot read {annotations} ({error}); extract TinyImageNet again.") from error
    entries: Entries = []
    for number, line in enumerate(lines, 1):
        file, *rest = line.split("\t")
        path = annotations.parent / "images" / file
        if not rest or Path(file).name != file or not path.is_file():
            raise UserError(
                f"Line {number} of {annotations} names no image in {path.parent} and its class; extract TinyImageNet "
                "again."
            )
        entries.append((path, rest[0]))
    if not entries:
        raise UserError(f"{annotations} lists no images; extract TinyImageNet again.")
    return entries
