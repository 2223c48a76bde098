"""The site shows what lies beside docs/ in the repository, so that no link leaves the site.

Pages link to each other, to results/ and to code as they do in the repository: `../results/bias/README.md`,
`../examples/residual.py`. Here such files become pages of the site too: what is in results/ under its own path, code as
a page with numbered lines under source/. And where a page names a piece of the package as `weighting.py: Moments`, that
name leads to the very line.
"""

from __future__ import annotations

import ast
import os
import posixpath
import re
from html import unescape
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).parents[2]
PACKAGE = "src/advibp"
#: Kept in results/ and worth a download.
KEPT = {".csv", ".html", ".json", ".jsonl", ".png", ".py", ".sh", ".svg", ".tex"}
#: Folders that a link may name, and the page that tells of them.
FOLDERS = {"results": "results.md", "examples": "extend/architecture.md"}

LINK = re.compile(r"(!?\[([^\]]*)\]\()((?!\w+:|#)[^)#\s]+)(#[^)\s]*)?\)")
CODE = re.compile(r"^(```|~~~).*?^\1$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"<code>([\w/]+)\.py: ([\w.]+)</code>")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Every folder of results is in the navigation, whoever added it."""
    for entry in config.nav or []:
        if "Results" in entry:
            entry["Results"] = ["results.md", *({title(page): page} for page in measured())]
    return config


def measured() -> list[str]:
    """The pages in results/, by their place in the repository."""
    found = [*ROOT.glob("results/*.md"), *ROOT.glob("results/*/README.md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def title(page: str) -> str:
    """The first heading of a page of the repository, in plain text."""
    found = re.search(r"^# (.+)$", (ROOT / page).read_text("utf-8"), re.MULTILINE)
    return found.group(1).replace("`", "") if found else page


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = measured()
    for path in sorted((ROOT / "results").rglob("*")):
        place = path.relative_to(ROOT).as_posix()
        if place.startswith("results/runs/") and place not in pages:  # whole folders of runs, for programs
            continue
        if path.suffix in (KEPT | {".md"}) and path.is_file():
            file = File.generated(config, place, abs_src_path=str(path))
            file.inclusion = InclusionLevel.INCLUDED if place in pages else InclusionLevel.NOT_IN_NAV
            files.append(file)
    for folder in (PACKAGE, "examples", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            page = File.generated(config, source_page(place), content=listing(place, path.read_text("utf-8")))
            page.inclusion = InclusionLevel.NOT_IN_NAV
            files.append(page)
    return files


def source_page(place: str) -> str:
    """Where the site shows a file of code."""
    return f"source/{place.removeprefix('src/').removesuffix('.py')}.md"


def listing(place: str, code: str) -> str:
    """A page with the numbered lines of a file; it is not searched, for the reference is."""
    front = f"---\ntitle: {place}\nsearch: {{exclude: true}}\nhide: [navigation, toc]\n---\n"
    return f'{front}\n# {place}\n\n~~~~~~python linenums="1"\n{code}~~~~~~\n'


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as the repository has them, as links between pages of the site."""
    if page.file.src_uri.startswith("source/"):
        return markdown
    known = {file.src_uri for file in files}
    parts, last = [], 0
    for block in CODE.finditer(markdown):  # what is quoted is left as it is
        parts += [_relinked(markdown[last : block.start()], page.file.src_uri, known), block.group()]
        last = block.end()
    return "".join([*parts, _relinked(markdown[last:], page.file.src_uri, known)])


def home(uri: str) -> str:
    """The place in the repository of a page of the site."""
    return uri if uri.startswith("results/") else f"docs/{uri}"


def _relinked(text: str, uri: str, known: set[str]) -> str:
    """Links that lead out of docs/, or into it, led to the site's own pages; what the site does not show is left as
    plain text."""
    here = home(uri)

    def link(found: re.Match[str]) -> str:
        begin, label, target, anchor = found.groups(default="")
        place = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        if place.startswith("docs/") and here.startswith("docs/"):
            return found.group()
        there = site_uri(place)
        if there not in known:
            return label
        return f"{begin}{posixpath.relpath(there, posixpath.dirname(uri) or '.')}{anchor})"

    return LINK.sub(link, text)


def site_uri(place: str) -> str:
    """What the site calls a file of the repository."""
    if place in FOLDERS:
        return FOLDERS[place]
    if place.startswith("docs/"):
        return place.removeprefix("docs/")
    if place.startswith("results/"):
        return f"{place}/README.md" if (ROOT / place).is_dir() else place
    return source_page(place) if place.endswith(".py") else place


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """`weighting.py: Moments` leads to its line; code that a page quotes is not searched."""

    def link(found: re.Match[str]) -> str:
        file, name = found.group(1), unescape(found.group(2))
        target = files.get_file_from_path(source_page(f"{PACKAGE}/{file}.py"))
        assert target is not None, f"{page.file.src_uri} names {file}.py, which is not there"
        line = line_of((ROOT / PACKAGE / f"{file}.py").read_text("utf-8"), name)
        url = get_relative_url(target.url, page.url)
        return f'<a href="{url}#__codelineno-0-{line}">{found.group()}</a>'

    quoted = '<details class="mkdocstrings-source"'
    return NAMED.sub(link, html.replace(quoted, f"{quoted} data-search-exclude"))


def line_of(code: str, name: str) -> int:
    """The line of a function, class, method, field or constant of a file."""
    body: list[Any] = ast.parse(code).body
    line = 0
    for part in name.split("."):
        node = next(node for node in body if part in _names(node))
        line, body = node.lineno, getattr(node, "body", [])
    return line


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def on_post_build(config: MkDocsConfig) -> None:
    """No page of code in the list that is meant for search engines: without a site_url it would hold no address."""
    for name in ("sitemap.xml", "sitemap.xml.gz"):
        path = os.path.join(config.site_dir, name)
        if config.site_url is None and os.path.exists(path):
            os.remove(path)
