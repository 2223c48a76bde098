"""Loading of a data set by name or path."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from advibp.data.assembly import Array, assemble, is_int
from advibp.data.fetch import catalogue
from advibp.data.fetch.known_sets import NAMES
from advibp.data.formats import cifar, idx, image_folders, npz, svhn, tables, tiny_imagenet
from advibp.data.origin import Origin
from advibp.data.sets import Data
from advibp.errors import UserError
from advibp.execution.keywords import known_keywords

__all__ = ["NAMES", "load"]

_MAX_SIZE = 4096
_FORMATS = (
    "idx files (train-images-idx3-ubyte, ...), CIFAR's binary files (data_batch_1.bin, ... or train.bin), SVHN's "
    "train_32x32.mat and test_32x32.mat, TinyImageNet's folders, or images in train/<class> and test/<class>, in "
    "<class>, or in train.csv, or tables of numbers train.csv and test.csv"
)

_Arrays = tuple[dict[str, Array], tuple[str, ...] | None]  # the arrays, and the names of the classes if known


@known_keywords
def load(
    source: str | Path,
    *,
    validation: int | str = "auto",
    limit: int | None = None,
    root: str | Path | None = None,
    size: int | None = None,
    label: str | None = None,
    input_range: Any = "auto",
    fetch: bool = True,
    test: bool = True,
    progress: Callable[[str, int, int | None], None] | None = None,
) -> Data:
    """Load a data set by name or path.

    Args:
        source: A name from `NAMES`, the path of an .npz file with the arrays ``x_train``, ``y_train``, ``x_test`` and
            ``y_test``, the path of a .csv file with a header, numeric columns and a label column, or the path of a
            folder with idx files, CIFAR's or SVHN's files, image files, or train.csv and test.csv.
        validation: Number of training images that become the validation set. They are the same in every call.
            "auto": 1000, or a tenth of fewer than 10,000 inputs.
        limit: Number of the remaining training images to keep. Default: all.
        root: Folder that contains the folders of the data sets known by name. Default: the environment variable
            ``ADVIBP_DATA``, else ``advibp`` in the user's cache.
        size: Height and width in pixels to which the image files of a folder are resized. Default: 32 for GTSRB, else
            no resizing; then all images must have the same size.
        label: Name of the label column of a .csv file. Default: the last column.
        input_range: Range of valid inputs of a table, as in `from_tensors`. Default: no limit.
        fetch: If True, download a data set known by name that is missing. MNIST is included in the package.
        test: If False, the test set is not read, and ``data.test`` is empty: for choices that must not depend on it.
            The test rows of a single .csv file are read and left out.
        progress: Called during a download as ``progress(task, done, total)``, in bytes; ``total`` may be None.

    Returns:
        The data set. Images are float32 in [0, 1] of shape (N, C, H, W), tables are float32 of shape (N, F), labels are
        int64 of shape (N,). A fifth of the rows of a .csv file are the test set, the same ones in every call.

    Raises:
        UserError: If the source does not exist, cannot be read or fetched, or has an unknown format; or if an option
            is out of range.

    Examples:
        >>> from advibp import data
        >>> mnist = data.load("mnist", limit=5000)
        >>> mnist.input_shape, len(mnist.train), len(mnist.validation), len(mnist.test)
        ((1, 28, 28), 5000, 1000, 10000)
    """
    _check_size(size)
    if not isinstance(source, str | os.PathLike):
        kind = type(source).__name__
        raise UserError(f"The data set is a {kind}; expected {', '.join(NAMES)}, or the path of a folder or .npz file.")
    feature_names: tuple[str, ...] | None = None
    if isinstance(source, str) and source in NAMES:
        name = source
        _refuse_label(label, source)
        arrays, class_names = _read_named(source, root, size, fetch, progress, test)
    else:
        path = Path(os.path.expanduser(source))
        name = path.stem
        table = _read_table(path, size, label)
        if table is None:
            _refuse_label(label, source)
            arrays, class_names = _read_path(path, source, size, test)
        else:
            arrays, class_names, feature_names = dict(table.arrays), table.class_names, table.feature_names
            for part in () if test else ("x_test", "y_test"):
                del arrays[part]
    stored = {part: arrays.pop(part) for part in npz.OPTIONAL if part in arrays}
    if "input_range" in stored and isinstance(input_range, str):
        input_range = stored["input_range"].tolist()
    data = assemble(
        arrays,
        name,
        str(source),
        validation,
        limit,
        class_names=class_names or _texts(stored.get("class_names")),
        input_range=input_range,
        feature_names=feature_names or _texts(stored.get("feature_names")),
    )
    place = None if name == source and name in NAMES else os.path.abspath(os.path.expanduser(source))
    origin = Origin(os.fspath(source), place, limit, size, None if root is None else os.fspath(root), label)
    return replace(data, origin=origin)


def _texts(array: Array | None) -> tuple[str, ...] | None:
    return None if array is None else tuple(map(str, array.reshape(-1)))


def _read_table(path: Path, size: int | None, label: str | None) -> tables.Tables | None:
    """Read a .csv file, or a folder with train.csv and test.csv; None if the path is neither."""
    if path.suffix.lower() == ".csv" and os.path.isfile(path):
        _refuse_size(size, path)
        return tables.read(path, label)
    if os.path.isdir(path) and tables.recognize(path):
        _refuse_size(size, path)
        return tables.read_folder(path, label)
    return None


def _refuse_label(label: str | None, source: object) -> None:
    if label is not None:
        raise UserError(f"label is '{label}', but only a table (.csv) has a label column, not {source}; leave it out.")


def _read_named(
    name: str,
    root: str | Path | None,
    size: int | None,
    fetch: bool,
    progress: Callable[[str, int, int | None], None] | None,
    test: bool,
) -> _Arrays:
    row = catalogue.find(name)
    arrays, class_names = _read_folder(catalogue.locate(name, root, fetch, progress), size or row.resize, test)
    return arrays, row.class_names or class_names


def _read_path(path: Path, source: str | Path, size: int | None, test: bool) -> _Arrays:
    # os.path and not Path, which raises errors for some invalid names.
    if os.path.isdir(path):
        return _read_folder(path, size, test)
    if os.path.exists(path):
        if path.suffix.lower() != ".npz":
            raise UserError(f"Cannot read {path}: expected a folder or a file that ends in .npz or .csv.")
        _refuse_size(size, path)
        return npz.read(path, test), None
    if isinstance(source, str) and not path.suffix and os.sep not in source:
        close = difflib.get_close_matches(source.lower(), NAMES, n=1)
        hint = f"did you mean '{close[0]}'? " if close else ""
        raise UserError(
            f"Unknown data set '{source}': {hint}Use {', '.join(NAMES)}, a folder, or an .npz or .csv file."
        )
    raise UserError(
        f"There is no file or folder {path}; give a folder, an .npz or .csv file, or one of {', '.join(NAMES)}."
    )


def _read_folder(folder: Path, size: int | None, test: bool) -> _Arrays:
    try:
        arrays = _read_known_format(folder, size, test) or _read_only_subfolder(folder, size, test)
    except OSError as error:
        raise UserError(f"Cannot read {folder} ({error.strerror or error}); check it and its permissions.") from error
    if arrays is None:
        raise UserError(f"{folder.absolute()} contains no known data set format; expected {_FORMATS}.")
    return arrays


def _read_only_subfolder(folder: Path, size: int | None, test: bool) -> _Arrays | None:
    """Read the subfolder if there is only one, because archives are often extracted to a folder within a folder."""
    subfolders = [path for path in folder.iterdir() if path.name[0] not in "._" and path.is_dir()]
    return _read_known_format(subfolders[0], size, test) if len(subfolders) == 1 else None


def _read_known_format(folder: Path, size: int | None, test: bool) -> _Arrays | None:
    """Recognize the format by the names of the files, and read them. Return None if the format is unknown."""
    if idx.recognize(folder):
        _refuse_size(size, folder)
        return idx.read_folder(folder, test), None
    if layout := cifar.recognize(folder):
        _refuse_size(size, folder)
        return cifar.read(folder, layout, test), None
    if svhn.recognize(folder):
        _refuse_size(size, folder)
        return svhn.read(folder, test), None
    if listing := tiny_imagenet.recognize(folder) or image_folders.recognize(folder):
        return image_folders.read(listing, size, test)
    return None


def _check_size(size: int | None) -> None:
    if size is not None and (not is_int(size) or not 1 <= size <= _MAX_SIZE):
        raise UserError(f"size is {size!r}; expected the height and width of images in pixels, 1 to {_MAX_SIZE}.")


def _refuse_size(size: int | None, source: object) -> None:
    if size is not None:
        raise UserError(f"size is {size}, but only a folder of image files is resized, not {source}; leave it out.")
