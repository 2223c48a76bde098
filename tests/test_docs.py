"""What the pages show is what runs: every ```python block that is marked `runnable` is run as it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```python runnable\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def blocks() -> Iterator[tuple[Path, int, str]]:
    """Page, line of the block's first statement, code."""
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text("utf-8")
        for found in BLOCK.finditer(text):
            yield page, text.count("\n", 0, found.start(1)) + 1, found.group(1)


BLOCKS = list(blocks())


def test_there_is_something_to_run() -> None:
    assert "own-loop.md" in {page.name for page, _, _ in BLOCKS}
    # A mark that is misspelt would silently run nothing.
    marked = sum(page.read_text("utf-8").count("runnable\n") for page in DOCS.glob("*.md"))
    assert marked == len(BLOCKS)


@pytest.mark.parametrize(("page", "line", "code"), BLOCKS, ids=[f"{page.name}:{line}" for page, line, _ in BLOCKS])
def test_block_runs(page: Path, line: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    at_its_line = "\n" * (line - 1) + code  # so that a traceback points into the page
    with torch.random.fork_rng():
        exec(compile(at_its_line, str(page), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    missing = [link for link in LINK.findall(page.read_text("utf-8")) if not (page.parent / link).exists()]
    assert not missing
