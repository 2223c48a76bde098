"""Small data sets and files for the tests of readers, and checks of error messages."""

from __future__ import annotations

import gzip
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from advibp.data.formats import idx as idx_files
from advibp.errors import UserError

Array = npt.NDArray[Any]


def idx(values: Array) -> bytes:
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.astype(np.uint8).tobytes()


def arrays(train: int = 20, test: int = 6, shape: tuple[int, ...] = (5, 4)) -> dict[str, Array]:
    stream = np.random.RandomState(0)
    sizes = {"train": train, "test": test}
    images = {f"x_{k}": stream.randint(0, 256, (n, *shape)).astype(np.uint8) for k, n in sizes.items()}
    return images | {f"y_{k}": np.arange(n) % 3 for k, n in sizes.items()}


def write_folder(folder: Path, parts: dict[str, Array], dash: str = "-", packed: bool = True) -> None:
    for part, stem in idx_files.STEMS.items():
        name = f"{stem}{dash}idx{3 if part[0] == 'x' else 1}-ubyte"
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(parts[part]), 1))
        else:
            (folder / name).write_bytes(idx(parts[part]))


def refused(read: Callable[[], object], *said: str) -> None:
    with pytest.raises(UserError) as caught:
        read()
    message = str(caught.value)
    assert "\n" not in message
    for words in said:
        assert words in message


@contextmanager
def quick_and_small(seconds: float = 5.0, megabytes: float = 8) -> Iterator[None]:
    tracemalloc.start()
    start = time.process_time()  # other processes may keep us waiting
    try:
        yield
        assert time.process_time() - start < seconds
        assert tracemalloc.get_traced_memory()[1] < megabytes * 2**20
    finally:
        tracemalloc.stop()


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)
