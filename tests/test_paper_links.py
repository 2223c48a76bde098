"""What docs/paper.md names exists in the package, and links between the documents lead somewhere."""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAPER = (DOCS / "paper.md").read_text("utf-8")
NAMED = re.findall(r"`([\w/]+)\.py: ([\w.]+)`", PAPER)
LINKS = [
    (file.name, *link)
    for file in sorted(DOCS.glob("*.md"))
    for link in re.findall(r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)\)", file.read_text("utf-8"))
]


def _anchors(text: str) -> set[str]:
    """The headings as GitHub names them in links."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_reference_is_read() -> None:
    assert len(NAMED) == PAPER.count(".py: ") > 0


@pytest.mark.parametrize(("module", "name"), sorted(set(NAMED)))
def test_what_the_paper_page_names_exists(module: str, name: str) -> None:
    home = importlib.import_module(f"advibp.{module.replace('/', '.')}")
    functools.reduce(_member, name.split("."), home)


def _member(owner: object, name: str) -> object:
    """An attribute, or a field of a data class, which has none without a default."""
    fields = getattr(owner, "__dataclass_fields__", {})
    return getattr(owner, name) if hasattr(owner, name) else fields[name]


@pytest.mark.parametrize(("file", "path", "anchor"), LINKS)
def test_links_lead_somewhere(file: str, path: str, anchor: str) -> None:
    target = DOCS / (path or file)
    assert target.exists()
    assert not anchor or anchor in _anchors(target.read_text("utf-8"))
