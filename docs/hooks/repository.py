"""MkDocs hook: add files of the repository to the site, and adapt links to them.

Pages link to results/ and to code by their paths in the repository: `../results/bias/README.md`,
`../examples/residual.py`. This hook adds the files of results/ to the site under the same path, and each Python file as
a page with numbered lines under source/. Names such as `weighting/moments.py: Moments` in a page link to the line of
their definition.
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
#: Endings of the files in results/ that the site contains.
DOWNLOADS = {".csv", ".html", ".json", ".jsonl", ".png", ".py", ".sh", ".svg", ".tex"}
#: Folders to which pages may link, and the page that describes each.
FOLDERS = {"results": "results.md", "examples": "extend/architecture.md"}

LINK = re.compile(r"(!?\[([^\]]*)\]\()((?!\w+:|#)[^)#\s]+)(#[^)\s]*)?\)")
CODE = re.compile(r"^(```|~~~).*?^\1$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"<code>([\w/]+)\.py: ([\w.]+)</code>")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add every page of results/ to the navigation."""
    for entry in config.nav or []:
        if "Results" in entry:
            entry["Results"] = ["results.md", *({title(page): page} for page in result_pages())]
    return config


def result_pages() -> list[str]:
    """Return the paths of the pages in results/, relative to the repository."""
    paths = [*ROOT.glob("results/*.md"), *ROOT.glob("results/*/README.md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in paths)


def title(page: str) -> str:
    """Return the first heading of a page of the repository, in plain text."""
    heading = re.search(r"^# (.+)$", (ROOT / page).read_text("utf-8"), re.MULTILINE)
    return heading.group(1).replace("`", "") if heading else page


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of results/, the Python files and the notebooks of the repository to the site."""
    pages = result_pages()
    for path in sorted((ROOT / "results").rglob("*")):
        place = path.relative_to(ROOT).as_posix()
        if place.startswith("results/runs/") and place not in pages:  # folders of runs, which are read by programs only
            continue
        if path.suffix in (DOWNLOADS | {".md"}) and path.is_file():
            file = File.generated(config, place, abs_src_path=str(path))
            file.inclusion = InclusionLevel.INCLUDED if place in pages else InclusionLevel.NOT_IN_NAV
            files.append(file)
    for folder in (PACKAGE, "examples", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            page = File.generated(config, source_page(place), content=listing(place, path.read_text("utf-8")))
            page.inclusion = InclusionLevel.NOT_IN_NAV
            files.append(page)
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def source_page(place: str) -> str:
    """Return the page of the site that shows a Python file."""
    return f"source/{place.removeprefix('src/').removesuffix('.py')}.md"


def listing(place: str, code: str) -> str:
    """Return a page with the numbered lines of a file, which the search excludes; the API reference is searched."""
    front = f"---\ntitle: {place}\nsearch: {{exclude: true}}\nhide: [navigation, toc]\n---\n"
    return f'{front}\n# {place}\n\n~~~~~~python linenums="1"\n{code}~~~~~~\n'


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace links between files of the repository by links between pages of the site."""
    if page.file.src_uri.startswith("source/"):
        return markdown
    known = {file.src_uri for file in files}
    parts, last = [], 0
    for block in CODE.finditer(markdown):  # links in code are not changed
        parts += [_replace_links(markdown[last : block.start()], page.file.src_uri, known), block.group()]
        last = block.end()
    return "".join([*parts, _replace_links(markdown[last:], page.file.src_uri, known)])


def repository_path(uri: str) -> str:
    """Return the path in the repository of a page of the site."""
    return uri if uri.startswith("results/") else f"docs/{uri}"


def _replace_links(text: str, uri: str, known: set[str]) -> str:
    """Replace links that leave or enter docs/. If the site does not contain the target, only the label is kept."""
    here = repository_path(uri)

    def link(match: re.Match[str]) -> str:
        begin, label, target, anchor = match.groups(default="")
        place = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        if place.startswith("docs/") and here.startswith("docs/"):
            return match.group()
        there = site_uri(place)
        if there not in known:
            return label
        return f"{begin}{posixpath.relpath(there, posixpath.dirname(uri) or '.')}{anchor})"

    return LINK.sub(link, text)


def site_uri(place: str) -> str:
    """Return the path in the site of a file of the repository."""
    if place in FOLDERS:
        return FOLDERS[place]
    if place.startswith("docs/"):
        return place.removeprefix("docs/")
    if place.startswith("results/"):
        return f"{place}/README.md" if (ROOT / place).is_dir() else place
    return source_page(place) if place.endswith(".py") else place


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link `weighting/moments.py: Moments` to its line, and exclude quoted source code from the search."""

    def link(match: re.Match[str]) -> str:
        file, name = match.group(1), unescape(match.group(2))
        target = files.get_file_from_path(source_page(f"{PACKAGE}/{file}.py"))
        assert target is not None, f"{page.file.src_uri} names {file}.py, which does not exist"
        line = line_of((ROOT / PACKAGE / f"{file}.py").read_text("utf-8"), name)
        url = get_relative_url(target.url, page.url)
        return f'<a href="{url}#__codelineno-0-{line}">{match.group()}</a>'

    quoted = '<details class="mkdocstrings-source"'
    return NAMED.sub(link, html.replace(quoted, f"{quoted} data-search-exclude"))


def line_of(code: str, name: str) -> int:
    """Return the line of a function, class, method, field or constant of a file."""
    body: list[Any] = ast.parse(code).body
    line = 0
    for part in name.split("."):
        node = next(node for node in body if part in _names(node))
        line, body = node.lineno, getattr(node, "body", [])
    return line


def _names(node: ast.stmt) -> list[str]:
    """Return the names that a statement defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def on_post_build(config: MkDocsConfig) -> None:
    """Remove the sitemap if the site has no URL, because its entries would be empty."""
    for name in ("sitemap.xml", "sitemap.xml.gz"):
        path = os.path.join(config.site_dir, name)
        if config.site_url is None and os.path.exists(path):
            os.remove(path)
