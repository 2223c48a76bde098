"""Writes a self-contained page: data, scripts and styles are inside, and it makes no requests.

The data is one block of JSON. The page's scripts first build text and tables, then unpack the records of all images,
and then draw figures, after plotly.js is unpacked. Records and plotly.js are compressed. The content security policy
allows only these scripts.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from advibp.display.eps import format_eps
from advibp.report import facts
from advibp.report.naming import names_of
from advibp.report.pairing import pair_facts
from advibp.report.record_columns import record_columns
from advibp.report.samples import Samples
from advibp.report.sections import Section, TableSection
from advibp.report.shown_images import Count, Missing, Source, collect
from advibp.runs.run_files import RunFiles
from advibp.storage import checkpoint
from advibp.verify.records import VERDICTS
from advibp.verify.verifiers import ATTACKS, labels_of_checks
from advibp.version import __version__

_SCRIPTS = (
    "base.js",
    "tables.js",
    "figures.js",
    "accuracy.js",
    "confusion.js",
    "pairs.js",
    "pictures.js",
    "browse.js",
    "page.js",
)


def write_page(
    path: str | Path,
    runs: Sequence[RunFiles],
    *,
    sections: Sequence[Section] = (),
    title: str = "",
    images: Sequence[Source | Missing | str] = (),
    count: Count = "auto",
) -> None:
    """Write a page about some runs, which may be none.

    Examples:
        ```python
        write_page("report.html", [read_run("runs/first")], title="First run")
        ```

    Args:
        path: The HTML file.
        runs: The runs, as `read_run` returns them.
        sections: Tables and charts to show before the runs.
        title: Title of the page. Default: the names of the runs.
        images: For each run the source of its test images, or a sentence that explains why there is none.
        count: Number of images in the page, the most interesting first: a number, "all", or "auto", which means as many
            as fit into 6 MB (all 10,000 test images of MNIST take 2.2 MB). Default: "auto".
    """
    data, records = page_data(runs, sections, title, images, count)
    checkpoint.write_atomically(Path(path), render(data, records))


def page_data(
    runs: Sequence[RunFiles],
    sections: Sequence[Section],
    title: str,
    images: Sequence[Source | Missing | str],
    count: Count = "auto",
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The data of the page, and the records of each entry, which the page unpacks later."""
    pictures, samples = collect(runs, images, count), Samples()
    class_names = [*pictures.names, *([] for _ in runs[len(pictures.names) :])]
    entries = [
        {"run": k, "stage": stage, **facts.certified_facts(certified, samples, class_names[k])}
        for k, run in enumerate(runs)
        for stage, certified in run.certified.items()
    ]
    facts.histograms(entries)
    names = names_of(runs)
    eps = sorted({at["eps"] for entry in entries for at in entry["at"]})
    data = {
        "title": title or (" · ".join(names) if len(runs) <= 4 else f"{len(runs)} runs") or "advibp",
        "version": __version__,
        "checks": _checks(),
        "verdicts": VERDICTS,
        "eps": [{"eps": e, "text": format_eps(e)} for e in eps],
        "runs": [facts.run_facts(*each) for each in zip(runs, names, class_names, strict=True)],
        "recipes": facts.recipes(runs),
        "entries": entries,
        "samples": samples.descriptions,
        "pairs": pair_facts(runs, names),
        "images": pictures.facts(),
        "sections": [_section(section) for section in sections],
    }
    return data, record_columns(runs, pictures)


def _checks() -> list[dict[str, str]]:
    """Name, label and kind of every check of the cascade, in order."""
    kinds = {"clean": "clean", **dict.fromkeys(ATTACKS, "attack")}
    return [
        {"name": name, "label": label, "kind": kinds.get(name, "verifier")}
        for name, label in labels_of_checks().items()
    ]


def _section(section: Section) -> dict[str, Any]:
    return {"shows": "table" if isinstance(section, TableSection) else "chart", **asdict(section)}


def render(data: dict[str, Any], records: Sequence[Mapping[str, Any]] = ()) -> str:
    """Fill the data, the records, the scripts and the styles into the template."""
    script = "\n".join(_page_file(name) for name in _SCRIPTS)
    plotly, packed = _plotly()
    parts = {
        "policy": f"default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src {_hash(script)} "
        f"{_hash(plotly)}; base-uri 'none'; form-action 'none'",
        "title": html.escape(str(data["title"])),
        "style": _page_file("style.css"),
        "data": to_json(data),
        "records": _packed(to_json(records)),
        "plotly": packed,
        "script": script,
    }
    pieces = _page_file("page.html").split("%%")  # text, name of a placeholder, text, ...
    return "".join(parts[piece] if k % 2 else piece for k, piece in enumerate(pieces))


def to_json(data: Any) -> str:
    """JSON that is safe inside a script element, for any strings."""
    text = json.dumps(_drawable(data), separators=(",", ":"), allow_nan=False)  # ASCII: no line separators either
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _drawable(value: Any) -> Any:
    """Replace NaN and infinite numbers by None."""
    if isinstance(value, dict):
        return {str(key): _drawable(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_drawable(item) for item in value]
    return value if value is None or isinstance(value, str | bool | int) else facts.finite(value)


def _page_file(name: str) -> str:
    return resources.files("advibp.report").joinpath("page", name).read_text("utf-8")


@cache
def _plotly() -> tuple[str, str]:
    """The source of plotly.js, and the same compressed, in base64."""
    source = get_plotlyjs()
    return source, _packed(source)


def _packed(text: str) -> str:
    """Compress a text, as base64."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
