"""Selects the test images that the page shows, and converts them to small PNGs inside the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from PIL import Image
from torch import Tensor

from advibp.errors import UserError
from advibp.report.facts import round_eps
from advibp.runs.run_files import Certification, RunFiles
from advibp.storage import checkpoint
from advibp.verify.certification import fingerprints
from advibp.verify.records import Record

_COUNTS = (12, 8, 4, 2, 1)  # images of a kind, run and eps: the first number for which all fit
_ROOM = 1_500_000  # characters for all images of a page
_LARGEST = 96  # pixels; larger images are shrunk

_DARKER, _BRIGHTER = (213, 94, 0), (0, 114, 178)


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


@dataclass
class Sheet:
    """All images of a page, each stored once."""

    most: int
    uris: dict[str, int] = field(default_factory=dict)

    def add(self, picture: Image.Image) -> int:
        """Add an image and return its number."""
        file = io.BytesIO()
        picture.save(file, "PNG", optimize=True)
        uri = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
        return self.uris.setdefault(uri, len(self.uris))

    @property
    def letters(self) -> int:
        return sum(map(len, self.uris))


def show(runs: Sequence[RunFiles], sources: Sequence[Source | str]) -> dict[str, Any]:
    """Images as data URIs, their selection for each run and eps, class names, and reasons for missing images."""
    for most in _COUNTS:
        sheet = Sheet(most)
        shown, missing, names = [], [], []
        for number, (run, source) in enumerate(zip(runs, sources, strict=False)):
            names.append([] if isinstance(source, str) else list(source.class_names))
            if isinstance(source, str):
                missing += [{"run": number, "why": source}] if source else []
                continue
            for stage, certified in run.certified.items():
                for eps in certified.eps if certified.records else ():
                    position = {"run": number, "stage": stage, "eps": round_eps(eps)}
                    try:
                        shown.append({**position, **_at(certified, eps, source, sheet)})
                    except UserError as error:
                        missing.append({"run": number, "why": str(error)})
                        break
        if sheet.letters <= _ROOM or most == _COUNTS[-1]:
            break
    return {"pictures": list(sheet.uris), "shown": shown, "missing": missing, "names": names}


def _at(certified: Certification, eps: float, source: Source, sheet: Sheet) -> dict[str, Any]:
    """Proved images with the smallest margins, some broken ones, and undecided ones with the largest margins."""
    records = [r for r in certified.records if r.eps == eps]
    proved = [r for r in records if r.verdict == "robust" and r.lower_margin is not None]
    proved.sort(key=lambda r: r.lower_margin or 0.0)
    broken = [r for r in records if r.verdict == "falsified"]
    left = [r for r in records if r.verdict in ("unknown", "timeout")]
    left.sort(key=lambda r: -r.lower_margin if r.lower_margin is not None else float("inf"))
    return {
        "proved": [_clean(r, x, sheet) for r, x in _read(proved[: sheet.most], source)],
        "broken": _broken(_read(broken[: sheet.most], source), certified.path, source, sheet),
        "open": [_clean(r, x, sheet) for r, x in _read(left[: sheet.most], source)],
    }


def _read(records: list[Record], source: Source) -> list[tuple[Record, Tensor]]:
    """Read the images (C, H, W) of records, and check that they are those that were certified."""
    if not records:
        return []
    rows = [r.index for r in records]
    if not 0 <= min(rows) <= max(rows) < len(source.test):
        raise UserError(f"Image {max(rows)} was certified, but the run's data has only {len(source.test)} test images.")
    x, y = source.test.batch(torch.tensor(rows))
    if [r.image for r in records] != fingerprints(x, y):
        raise UserError("The images that were certified are not those of the run's data.")
    return list(zip(records, x, strict=True))


def _clean(record: Record, x: Tensor, sheet: Sheet) -> dict[str, Any]:
    return {
        "index": record.index,
        "label": record.label,
        "verdict": record.verdict,
        "by": record.by,
        "margin": record.lower_margin,
        "clean": sheet.add(_picture(x)),
    }


def _broken(read: list[tuple[Record, Tensor]], folder: Path, source: Source, sheet: Sheet) -> list[dict[str, Any]]:
    shown = []
    for record, x in read:
        entry = _clean(record, x, sheet)
        x_adv = _counterexample(folder, record)
        if x_adv is not None and x_adv.shape == x.shape:
            entry |= {"adversarial": sheet.add(_picture(x_adv)), "change": sheet.add(_change(x_adv - x, record.eps))}
            if source.predict and source.model == record.model:
                entry["now"] = int(source.predict(x_adv[None])[0])
        shown.append(entry)
    return shown


def _counterexample(folder: Path, record: Record) -> Tensor | None:
    """The counterexample (C, H, W); None if it is missing or damaged."""
    name, _, row = (record.counterexample or "").partition("#")
    file = (folder / name).resolve()
    if not name or not row.isdecimal() or not file.is_relative_to(folder.resolve()):
        return None
    try:
        kept = checkpoint.load(file)[0].get("x_adv")
    except UserError:
        return None
    return kept[int(row)] if kept is not None and int(row) < len(kept) else None


def _picture(x: Tensor) -> Image.Image:
    """Convert (C, H, W) in [0, 1]. Images that are neither gray nor RGB are shown as the mean of their channels."""
    x = x if len(x) in (1, 3) else x.mean(0, keepdim=True)
    pixels = (x.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0)
    picture = Image.fromarray(pixels[..., 0].numpy() if len(x) == 1 else pixels.numpy())
    picture.thumbnail((_LARGEST, _LARGEST))
    return picture


def _change(delta: Tensor, eps: float) -> Image.Image:
    """The change (C, H, W), scaled so that eps is the largest visible value.

    Gray images: blue means brighter, orange darker, white unchanged. Color images: mid-gray means unchanged.
    """
    share = (delta / eps).clamp(-1, 1)
    if len(share) == 3:
        return _picture((share + 1) / 2)
    share = share.mean(0)
    towards = torch.where(share[..., None] > 0, torch.tensor(_BRIGHTER), torch.tensor(_DARKER)) / 255
    return _picture((1 - share.abs()[..., None] * (1 - towards)).permute(2, 0, 1))
