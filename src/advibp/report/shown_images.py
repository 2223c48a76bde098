"""Pictures of the test images and of the adversarial examples, which the page draws.

Pictures of one size are cells of sheets, which are PNGs inside the page. The page decodes a sheet when it draws one of
its pictures. A change is stored instead of the adversarial example itself, because it is small: 8 bits for [-eps, eps].
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import torch
from PIL import Image
from torch import Tensor

from advibp.bounds import Perturbation
from advibp.bounds.perturbation import PIXELS
from advibp.errors import UserError
from advibp.report.shown_features import Features, is_picture
from advibp.runs.run_files import Certification, RunFiles
from advibp.storage import checkpoint
from advibp.verify.certification import fingerprints
from advibp.verify.records import Record

T = TypeVar("T")

#: How many images the page contains: a number, all of them, or as many as fit into `ROOM`.
Count = int | Literal["auto", "all"]

ROOM = 6_000_000  # characters for the images of a page: all 10,000 test images of MNIST take 2.2 million
ROOM_FOR_CHANGES = 2_000_000  # characters for the adversarial examples
_LARGEST = 96  # pixels; larger images are shrunk
_COLUMNS = 16  # pictures in a row and in a column of a sheet
_CHUNK = _COLUMNS**2


class Batches(Protocol):
    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Source:
    """A run's test images, the names of their classes, and its network."""

    test: Batches
    class_names: Sequence[str] = ()
    predict: Callable[[Tensor], Tensor] | None = (
        None  # (B, C, H, W) -> classes (B,); None: the network is not available
    )
    model: str = ""  # its fingerprint, as in the records
    feature_names: Sequence[str] = ()  # of a table
    perturbation: Perturbation = PIXELS


@dataclass(frozen=True)
class Missing:
    """A run whose images are not shown, but whose classes may have names."""

    why: str
    class_names: Sequence[str] = ()


class Place(NamedTuple):
    """The position of a record."""

    run: int
    stage: int | None
    eps: float
    image: int


@dataclass
class Sheets:
    """Pictures, numbered from 0, as cells of PNGs."""

    sheets: list[dict[str, Any]] = field(default_factory=list)
    numbers: int = 0
    letters: int = 0

    def add(self, pictures: Sequence[Image.Image]) -> list[int]:
        """Add up to `_CHUNK` pictures, and return their numbers."""
        kinds: dict[tuple[Any, ...], list[int]] = {}
        for k, picture in enumerate(pictures):
            kinds.setdefault((picture.mode, *picture.size), []).append(k)
        numbers = [0] * len(pictures)
        for (mode, width, height), positions in kinds.items():
            columns = min(_COLUMNS, len(positions))
            sheet = Image.new(mode, (columns * width, -(-len(positions) // columns) * height))
            for cell, k in enumerate(positions):
                sheet.paste(pictures[k], (cell % columns * width, cell // columns * height))
                numbers[k] = self.numbers + cell
            shape = {"first": self.numbers, "count": len(positions), "width": width, "height": height}
            uri = _uri(sheet)
            self.sheets.append({**shape, "columns": columns, "gray": mode == "L", "uri": uri})
            self.numbers += len(positions)
            self.letters += len(uri)
        return numbers


@dataclass
class Pictures:
    """All pictures of a page.

    Attributes:
        names: Names of the classes, for each run.
        missing: Why the images of a run are not shown: its number and a sentence.
        images: Sheets of the test images.
        numbers: Number of the picture of each image, by fingerprint.
        total: Number of different images in the records of the runs that have a source.
        changes: Sheets of the changes of adversarial examples.
        broken: By place: the number of a change, if it is a picture, and the class that the network predicts, if it is
            available.
        features: Rows of tables.
    """

    names: list[list[str]] = field(default_factory=list)
    missing: list[dict[str, Any]] = field(default_factory=list)
    images: Sheets = field(default_factory=Sheets)
    numbers: dict[str, int] = field(default_factory=dict)
    total: int = 0
    changes: Sheets = field(default_factory=Sheets)
    broken: dict[Place, tuple[int | None, int | None]] = field(default_factory=dict)
    features: Features = field(default_factory=Features)

    def __contains__(self, image: str) -> bool:
        """Whether the page has the input with this fingerprint, as a picture or as numbers."""
        return image in self.numbers or image in self.features.numbers

    def facts(self) -> dict[str, Any]:
        """The pictures as plain data for the page."""
        return {
            "names": self.names,
            "missing": self.missing,
            "sheets": self.images.sheets,
            "changes": self.changes.sheets,
            "features": self.features.facts(),
            "shown": len(self.numbers) + len(self.features.numbers),
            "total": self.total,
        }


@dataclass(frozen=True)
class _Wanted:
    """A record whose image may be shown."""

    run: int
    stage: int | None
    record: Record
    source: Source
    folder: Path

    @property
    def place(self) -> Place:
        return Place(self.run, self.stage, self.record.eps, self.record.index)


def collect(runs: Sequence[RunFiles], sources: Sequence[Source | Missing | str], count: Count = "auto") -> Pictures:
    """Collect the pictures of a page, the most interesting images first.

    Args:
        runs: The runs.
        sources: For each run the source of its images, or why there is none; "" if there is nothing to show.
        count: Number of images.
    """
    pictures, lists = Pictures(), []
    for number, (run, source) in enumerate(zip(runs, sources, strict=False)):
        source = Missing(source) if isinstance(source, str) else source
        pictures.names.append([str(name) for name in source.class_names])
        pictures.features.add_run()
        if isinstance(source, Missing):
            pictures.missing += [{"run": number, "why": source.why}] if source.why else []
            continue
        lists += [
            [_Wanted(number, stage, record, source, certified.path) for record in interesting_first(certified)]
            for stage, certified in run.certified.items()
            if certified.records
        ]
    wanted = list(_interleave(lists))
    pictures.total = len({one.record.image for one in wanted})
    if count != 0:
        _add_images(pictures, wanted, count)
        _add_changes(pictures, [one for one in wanted if one.record.image in pictures], count)
    return pictures


def interesting_first(certified: Certification) -> list[Record]:
    """The records in turn: broken, undecided, misclassified, and proved images, those with small margins first."""
    margins = {id(r): abs(r.lower_margin) if r.lower_margin is not None else float("inf") for r in certified.records}
    lists = []
    for eps in certified.eps:
        records = sorted((r for r in certified.records if r.eps == eps), key=lambda r: margins[id(r)])
        for verdicts in (("falsified",), ("unknown", "timeout"), ("misclassified", "error"), ("robust",)):
            lists.append([r for r in records if r.verdict in verdicts])
    return list(_interleave(lists))


def _interleave(lists: Iterable[Sequence[T]]) -> Iterator[T]:
    """The first of each list, then the second of each, and so on."""
    nothing = object()
    items = chain.from_iterable(zip_longest(*lists, fillvalue=nothing))
    return (item for item in items if item is not nothing)  # type: ignore[misc]


def _add_images(pictures: Pictures, wanted: Sequence[_Wanted], count: Count) -> None:
    first = {one.record.image: one for one in reversed(wanted)}  # by fingerprint: the most interesting record
    queue = [one for one in wanted if first[one.record.image] is one]
    queue = queue[:count] if isinstance(count, int) else queue
    refused: set[int] = set()
    for start in range(0, len(queue), _CHUNK):
        chunk = [one for one in queue[start : start + _CHUNK] if one.run not in refused]
        read = []
        for run in dict.fromkeys(one.run for one in chunk):
            records = [one for one in chunk if one.run == run]
            try:
                read += _read(records)
            except UserError as error:
                refused.add(run)
                pictures.missing.append({"run": run, "why": str(error)})
        read = _without_rows(pictures.features, read)
        numbers = pictures.images.add([to_picture(x) for _, x in read])
        if numbers and count == "auto" and pictures.images.letters > ROOM:
            pictures.images.sheets = [s for s in pictures.images.sheets if s["first"] < min(numbers)]
            break
        pictures.numbers |= {one.record.image: number for (one, _), number in zip(read, numbers, strict=True)}


def _without_rows(features: Features, read: list[tuple[_Wanted, Tensor]]) -> list[tuple[_Wanted, Tensor]]:
    """Add the rows of tables to the features of the page, and return the images."""
    for one, x in read:
        if not is_picture(x):
            features.describe(one.run, x, one.source.feature_names, one.source.perturbation)
            features.add(one.record.image, x)
    return [(one, x) for one, x in read if is_picture(x)]


def _read(wanted: Sequence[_Wanted]) -> list[tuple[_Wanted, Tensor]]:
    """Read the inputs of one run, and check that they are those that were certified."""
    test, rows = wanted[0].source.test, [one.record.index for one in wanted]
    if max(rows) >= len(test):
        raise UserError(f"Image {max(rows)} was certified, but the run's data has only {len(test)} test images.")
    x, y = test.batch(torch.tensor(rows))
    if [one.record.image for one in wanted] != fingerprints(x, y):
        raise UserError("The images that were certified are not those of the run's data.")
    return list(zip(wanted, x, strict=True))


def _add_changes(pictures: Pictures, wanted: Sequence[_Wanted], count: Count) -> None:
    queue = [one for one in wanted if one.record.counterexample and one.record.verdict == "falsified"]
    load = lru_cache(maxsize=64)(_counterexamples)
    for start in range(0, len(queue), _CHUNK):
        chunk, found = queue[start : start + _CHUNK], []
        for run in dict.fromkeys(one.run for one in chunk):
            for one, x in _read([one for one in chunk if one.run == run]):
                x_adv = _counterexample(one, load)
                if x_adv is not None and x_adv.shape == x.shape:
                    found.append((one, x, x_adv))
        rows = [(one, x_adv) for one, x, x_adv in found if not is_picture(x)]
        for (one, x_adv), prediction in zip(rows, _predictions(rows), strict=True):
            pictures.features.changed[one.place] = x_adv.flatten().tolist()
            pictures.broken[one.place] = None, prediction
        found = [entry for entry in found if is_picture(entry[1])]
        numbers = pictures.changes.add([to_change(x_adv - x, one.record.eps) for one, x, x_adv in found])
        if numbers and count == "auto" and pictures.changes.letters > ROOM_FOR_CHANGES:
            pictures.changes.sheets = [s for s in pictures.changes.sheets if s["first"] < min(numbers)]
            break
        now = _predictions([(one, x_adv) for one, _, x_adv in found])
        for (one, _, _), number, prediction in zip(found, numbers, now, strict=True):
            pictures.broken[one.place] = number, prediction


def _predictions(found: Sequence[tuple[_Wanted, Tensor]]) -> list[int | None]:
    """The classes of adversarial examples; None where the network is not the certified one."""
    classes: list[int | None] = [None] * len(found)
    positions: dict[int, list[int]] = {}
    for k, (one, _) in enumerate(found):
        if one.source.predict and one.source.model == one.record.model:
            positions.setdefault(one.run, []).append(k)
    for rows in positions.values():
        predict = found[rows[0]][0].source.predict
        assert predict is not None
        predicted = predict(torch.stack([found[k][1] for k in rows])).tolist()
        for k, label in zip(rows, predicted, strict=True):
            classes[k] = int(label)
    return classes


def _counterexamples(file: Path) -> Tensor | None:
    """The counterexamples (N, C, H, W) of a file; None if it is missing or damaged."""
    try:
        return checkpoint.load(file)[0].get("x_adv")
    except UserError:
        return None


def _counterexample(one: _Wanted, load: Callable[[Path], Tensor | None]) -> Tensor | None:
    """The counterexample (C, H, W) of a record; None if it is missing or damaged."""
    name, _, row = (one.record.counterexample or "").partition("#")
    file = (one.folder / name).resolve()
    if not name or not row.isdecimal() or not file.is_relative_to(one.folder.resolve()):
        return None
    stored = load(file)
    return stored[int(row)] if stored is not None and int(row) < len(stored) else None


def _uri(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def to_picture(x: Tensor) -> Image.Image:
    """Convert (C, H, W) in [0, 1]. Images that are neither gray nor RGB are shown as the mean of their channels."""
    x = x if len(x) in (1, 3) else x.mean(0, keepdim=True)
    pixels = (x.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0)
    picture = Image.fromarray(pixels[..., 0].numpy() if len(x) == 1 else pixels.numpy())
    picture.thumbnail((_LARGEST, _LARGEST))
    return picture


def to_change(delta: Tensor, eps: float) -> Image.Image:
    """Convert a change (C, H, W): 128 is no change, 255 is eps and 1 is -eps."""
    return to_picture((delta / eps).clamp(-1, 1) * (127 / 255) + 128 / 255)
