"""CIFAR-10 and CIFAR-100, binary version: records of one or two label bytes and 3 x 32 x 32 pixels."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from advibp.data.assembly import PARTS, Array
from advibp.errors import UserError

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Layout:
    """The files of a data set.

    Attributes:
        train: Names of the training files.
        test: Name of the test file.
        records: Number of images in each training file.
        label_bytes: Number of label bytes in a record. The last one is the class.
        classes: Number of classes.
        pickled: Names of files in the Python version, which consists of pickles.
        test_records: Number of images in the test file.
    """

    train: tuple[str, ...]
    test: str
    records: int
    label_bytes: int
    classes: int
    pickled: tuple[str, ...]
    test_records: int = 10_000


TEN = Layout(
    train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    test="test_batch.bin",
    records=10_000,
    label_bytes=1,
    classes=10,
    pickled=("data_batch_1", "test_batch"),
)
HUNDRED = Layout(
    train=("train.bin",), test="test.bin", records=50_000, label_bytes=2, classes=100, pickled=("train", "test")
)


def recognize(folder: Path) -> Layout | None:
    """Return the layout of the files in a folder, or None if they are not CIFAR. The Python version is refused."""
    for layout in (TEN, HUNDRED):
        if any((folder / name).is_file() for name in (*layout.train, layout.test)):
            return layout
        if all((folder / name).is_file() for name in layout.pickled):
            raise UserError(
                f"{folder / layout.pickled[0]} belongs to the Python version of CIFAR: it is a pickle, which could run "
                "code when read; use the binary version instead ('advibp data fetch cifar10')."
            )
    return None


def read(folder: Path, layout: Layout, test: bool = True) -> dict[str, Array]:
    """Read all files; without ``test``, not the test file.

    Returns:
        ``x_train`` and ``x_test`` of shape (N, 3, 32, 32), and ``y_train`` and ``y_test`` of shape (N,), all uint8.

    Raises:
        UserError: If a file is missing or unreadable, or has a wrong size or label.
    """
    parts = [_read_file(folder / name, layout, layout.records) for name in layout.train]
    x_train, y_train = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    if not test:
        return {"x_train": x_train, "y_train": y_train}
    x_test, y_test = _read_file(folder / layout.test, layout, layout.test_records)
    return dict(zip(PARTS, (x_train, y_train, x_test, y_test), strict=True))


def _read_file(file: Path, layout: Layout, records: int) -> tuple[Array, Array]:
    width = layout.label_bytes + _PIXELS
    try:
        size = os.stat(file).st_size
        if size != records * width:
            raise UserError(
                f"{file} has {size:,} bytes; expected {records:,} records of {width}, {records * width:,} bytes; "
                "download it again."
            )
        table = np.fromfile(file, dtype=np.uint8).reshape(records, width)
    except FileNotFoundError:
        raise UserError(f"The folder {file.parent} has no file {file.name}; put it there.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"Cannot read {file} ({error}); check the file and its permissions.") from error
    labels = table[:, layout.label_bytes - 1]
    if (largest := int(labels.max())) >= layout.classes:
        row = int(labels.argmax())
        raise UserError(
            f"Record {row} of {file} has the label {largest}; expected 0 to {layout.classes - 1}; download it again."
        )
    return table[:, layout.label_bytes :].reshape(records, 3, 32, 32), labels
