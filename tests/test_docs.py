"""What the pages show is what runs: every ```python block that is marked `runnable` is run as it stands.

The blocks of a page in `WHOLE` build on one another: files are written, code and commands run, all in one folder and in
the page's order, the commands with options that make them short.
"""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from advibp import cli

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```python runnable\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WHOLE = ["own-model.md"]
STEP = re.compile(r"^```(python|sh)(?: (\w+\.py))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHORT = {
    "train": "--limit 300 --validation 50 --batch-size 50 --epochs 2",
    "certify": "--limit 20 --steps 2",
    "attack": "--limit 20 --steps 2",
}
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


@pytest.mark.parametrize("name", WHOLE)
def test_page_runs_as_a_whole(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    steps = STEP.findall((DOCS / name).read_text("utf-8"))
    assert {kind for kind, _, _ in steps} == {"python", "sh"}
    try:
        for kind, file, code in steps:
            if file:
                (tmp_path / file).write_text(code)
            elif kind == "python":
                with torch.random.fork_rng():
                    exec(compile(code, name, "exec"), {"__name__": "__main__"})
            else:
                for line in code.replace("\\\n", "").splitlines():
                    run_line(line)
    finally:
        for module in set(sys.modules) - before:
            if getattr(sys.modules[module], "__file__", None) in [str(path) for path in tmp_path.glob("*.py")]:
                del sys.modules[module]


def run_line(line: str) -> None:
    """One command of a page, in this process."""
    program, first, *rest = shlex.split(line, comments=True)
    if program == "python":
        with torch.random.fork_rng():
            runpy.run_path(first, run_name="__main__")
    else:
        assert program == "advibp"
        assert cli.main([first, *rest, *SHORT.get(first, "").split()]) == 0, line


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    missing = [link for link in LINK.findall(page.read_text("utf-8")) if not (page.parent / link).exists()]
    assert not missing
