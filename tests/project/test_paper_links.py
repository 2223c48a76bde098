"""What pages name of the package exists and has a line for the site to show; links between pages have a target."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TEXT = {page: page.read_text("utf-8") for page in PAGES}
NAMED = {found for text in TEXT.values() for found in re.findall(r"`([\w/]+)\.py: ([\w.]+)`", text)}
LINKS = [
    (page.relative_to(DOCS).as_posix(), *link)
    for page, text in TEXT.items()
    for link in re.findall(r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)\)", text)
]
REPOSITORY = importlib.util.spec_from_file_location("docs_repository", DOCS / "hooks" / "repository.py")


def _anchors(text: str) -> set[str]:
    """Return the anchors of headings, which are the same in the repository and on the site."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_references_are_found() -> None:
    paper = TEXT[DOCS / "paper.md"]
    assert len(re.findall(r"`([\w/]+)\.py: ([\w.]+)`", paper)) == paper.count(".py: ") > 0


@pytest.mark.parametrize(("module", "name"), sorted(NAMED))
def test_referenced_names_exist(module: str, name: str) -> None:
    home = importlib.import_module(f"advibp.{module.replace('/', '.')}")
    functools.reduce(_member, name.split("."), home)


def _member(owner: object, name: str) -> object:
    """Return whether a class has an attribute; dataclass fields without a default are not attributes."""
    fields = getattr(owner, "__dataclass_fields__", {})
    return getattr(owner, name) if hasattr(owner, name) else fields[name]


@pytest.mark.parametrize(("module", "name"), sorted(NAMED))
def test_lines_of_referenced_names(module: str, name: str) -> None:
    assert REPOSITORY is not None
    assert REPOSITORY.loader is not None
    hook = importlib.util.module_from_spec(REPOSITORY)
    REPOSITORY.loader.exec_module(hook)
    code = (ROOT / "src" / "advibp" / f"{module}.py").read_text("utf-8")
    line = code.splitlines()[hook.line_of(code, name) - 1]
    assert re.match(rf"\s*(def |class )?{name.rpartition('.')[2]}\b", line)


@pytest.mark.parametrize(("file", "path", "anchor"), LINKS)
def test_links_are_valid(file: str, path: str, anchor: str) -> None:
    target = (DOCS / file).parent / path if path else DOCS / file
    assert target.exists()
    assert not anchor or anchor in _anchors(target.read_text("utf-8"))
