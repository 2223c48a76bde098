"""From the name or the path of a data set to its images."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from advibp.data.assembly import Array, assemble, is_int
from advibp.data.formats import cifar, idx, image_folders, npz, svhn
from advibp.data.sets import Data
from advibp.errors import UserError

NAMES = ("mnist", "fashion-mnist", "cifar10", "svhn", "gtsrb")

_SIZES = {"gtsrb": 32}  # a set known by name whose images differ in size gets the usual one
_CLASSES = {
    "fashion-mnist": "t-shirt, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, ankle boot",
    "cifar10": "airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck",
}
_MAX_SIZE = 4096
_KINDS = (
    "idx files (train-images-idx3-ubyte, ...), CIFAR's binary files (data_batch_1.bin, ... or train.bin), SVHN's "
    "train_32x32.mat and test_32x32.mat, or images in train/<class> and test/<class>, in <class>, or in train.csv"
)

_Read = tuple[dict[str, Array], tuple[str, ...] | None]


def load(
    source: str | Path,
    *,
    validation: int = 1000,
    limit: int | None = None,
    root: str | Path | None = None,
    size: int | None = None,
    fetch: bool = True,
    progress: Callable[[str, int, int | None], None] | None = None,
) -> Data:
    """The data set ``source``: a name of `NAMES`, an .npz file, or a folder of idx files, CIFAR's or SVHN's files or
    images.

    ``validation`` images are taken out of the training set, always the same ones; ``limit`` then keeps that many of
    the training images that remain. A set known by name is looked for under ``root`` and, if ``fetch`` allows it,
    fetched, of which ``progress(what, bytes done, bytes in all)`` is told; MNIST ships inside. Images of a folder are
    resized to ``size`` x ``size``, which must be given if they differ (GTSRB by name: 32).
    """
    _check_size(size)
    if not isinstance(source, str | os.PathLike):
        kind = type(source).__name__
        raise UserError(f"The data set is a {kind}; expected {', '.join(NAMES)}, or the path of a folder or .npz file.")
    if isinstance(source, str) and source in NAMES:
        name = source
        arrays, class_names = _read_named(source, root, size, fetch, progress)
    else:
        path = Path(os.path.expanduser(source))
        name = path.stem
        arrays, class_names = _read_path(path, source, size)
    return assemble(arrays, name, str(source), validation, limit, class_names=class_names)


def _read_named(
    name: str,
    root: str | Path | None,
    size: int | None,
    fetch: bool,
    progress: Callable[[str, int, int | None], None] | None,
) -> _Read:
    if name == "mnist":
        _refuse_size(size, name)
        return idx.read_folder(resources.files("advibp").joinpath("data", name)), None
    from advibp.data.fetch import catalogue  # here, as it brings what fetching needs, and most runs fetch nothing

    arrays, found = _read_folder(catalogue.locate(name, root, fetch, progress), size or _SIZES.get(name))
    return arrays, tuple(_CLASSES[name].split(", ")) if name in _CLASSES else found


def _read_path(path: Path, source: str | Path, size: int | None) -> _Read:
    # os.path, not Path: it answers False, without raising, for names that no file can have.
    if os.path.isdir(path):
        return _read_folder(path, size)
    if os.path.exists(path):
        if path.suffix.lower() != ".npz":
            raise UserError(f"Cannot read {path}: expected a folder or a file that ends in .npz.")
        _refuse_size(size, path)
        return npz.read(path), None
    if isinstance(source, str) and not path.suffix and os.sep not in source:
        close = difflib.get_close_matches(source.lower(), NAMES, n=1)
        hint = f"did you mean '{close[0]}'? " if close else ""
        raise UserError(f"Unknown data set '{source}': {hint}Use {', '.join(NAMES)}, a folder, or an .npz file.")
    raise UserError(f"There is no file or folder {path}; give a folder, an .npz file, or one of {', '.join(NAMES)}.")


def _read_folder(folder: Path, size: int | None) -> _Read:
    try:
        found = _recognised(folder, size) or _recognised_inside(folder, size)
    except OSError as error:
        raise UserError(f"Cannot read {folder} ({error.strerror or error}); check it and its rights.") from error
    if found is None:
        raise UserError(f"{folder.absolute()} holds no data set that is understood; expected {_KINDS}.")
    return found


def _recognised_inside(folder: Path, size: int | None) -> _Read | None:
    """An archive often unpacks to a folder within a folder: look into it if it is the only one."""
    inside = [path for path in folder.iterdir() if path.name[0] not in "._" and path.is_dir()]
    return _recognised(inside[0], size) if len(inside) == 1 else None


def _recognised(folder: Path, size: int | None) -> _Read | None:
    """Told by what the folder holds."""
    if idx.recognise(folder):
        _refuse_size(size, folder)
        return idx.read_folder(folder), None
    if layout := cifar.recognise(folder):
        _refuse_size(size, folder)
        return cifar.read(folder, layout), None
    if svhn.recognize(folder):
        _refuse_size(size, folder)
        return svhn.read(folder), None
    if listing := image_folders.recognise(folder):
        return image_folders.read(listing, size)
    return None


def _check_size(size: int | None) -> None:
    if size is not None and (not is_int(size) or not 1 <= size <= _MAX_SIZE):
        raise UserError(f"size is {size!r}; expected the pixels of an image's side, 1 to {_MAX_SIZE}.")


def _refuse_size(size: int | None, source: object) -> None:
    if size is not None:
        raise UserError(f"size is {size}, but only a folder of image files is resized, not {source}; leave it out.")
