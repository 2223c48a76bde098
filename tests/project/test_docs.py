"""What the pages show is what runs.

The blocks of a page build on one another. They are run in the page's order, in one folder and one namespace: files are
written, recipes loaded, Python and commands run, with options that make them short. A command that can't run here is
parsed, so that no option in the docs is wrong. What a page presumes (a trained run, a picture) is put there first.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
import webbrowser
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
import torch
from PIL import Image

import advibp
from advibp import cli
from advibp.bounds.box import Box
from advibp.methods import METHODS
from advibp.recipe import KEY_GROUPS, Recipe, shipped
from advibp.reproduce import PLANS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

FENCE = re.compile(r'^( *)```(\w*)(?: title="([^"\n]+)")?\n(.*?)^\1```$', re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")
MARK = re.compile(r"^<!-- table: (.*) -->$", re.MULTILINE)

#: Options that make a command short; they come last, and the last one counts.
TINY = (
    "--limit 200 --validation 50 --batch-size 50 --epochs 2 --ramp 0.5 --warmup-natural 0.25 --warmup-adversarial 0.25"
)
SHORT = {
    "train": f"{TINY} --stage-epochs 0.5",
    "sweep": f"{TINY} --sample 10 --test-attack-steps 2",
    "certify": "--limit 8 --attack-steps 2 --attack-restarts 1 --workers 1",
    "attack": "--limit 8 --attack-steps 2",
    "export": "--limit 1",
}
#: Commands that are parsed and not run, and why.
PARSED = {
    r"data fetch|train cifar10": "asks the network",
    r"method=all": "takes minutes",
    r"^tune": "takes minutes; tests/runs/test_tuning.py runs it",
    r"^reproduce": "takes minutes; its own tests run every name at its tiny scale",
}
#: Names that a page takes for granted.
PRESUMED = {
    "README.md": "import torch\n"
    "x, y = torch.rand(4, 1, 28, 28), torch.arange(4)\n"
    "batches = [(x, y)]\n"
    "lower_loss = lambda x, y: torch.nn.functional.cross_entropy(net(x), y)\n"
    "upper_loss = lambda x, y: advibp.objectives.ibp(net, advibp.objectives.Ball(x, 0.1), y).loss\n"
    "optimizer = torch.optim.Adam([torch.zeros(1, requires_grad=True)])\n"
}


@dataclasses.dataclass(frozen=True)
class Block:
    page: Path
    line: int  # of its first line of content
    language: str
    title: str | None
    body: str

    @property
    def kind(self) -> str:
        """What is done with it."""
        kinds = {
            ("python", False): "run",
            ("python", True): "file",
            ("yaml", True): "recipe",
            ("sh", False): "commands",
            ("text", False): "output",
        }
        return kinds[self.language, self.title is not None]

    def commands(self) -> list[str]:
        return [line for line in self.body.replace("\\\n", " ").splitlines() if shlex.split(line, comments=True)]


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    found = FENCE.finditer(text)
    return [Block(page, text.count("\n", 0, m.start(4)) + 1, m[2], m[3], m[4]) for m in found]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text("utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_of_a_kind(page: Path) -> None:
    """A fence with a misspelled or missing language would silently be skipped."""
    found = blocks(page)
    fences = len(re.findall(r"^ *(?:```|~~~)", page.read_text("utf-8"), re.MULTILINE))
    assert fences == 2 * len(found)
    assert all(block.kind for block in found)


def test_pages_have_something_to_run() -> None:
    kinds = [block.kind for page in PAGES for block in blocks(page)]
    assert min(kinds.count(kind) for kind in ("run", "file", "commands")) >= 5
    assert "recipe" in kinds


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is trained, certified and attacked, for pages that start with one."""
    run = tmp_path_factory.mktemp("docs") / "run"
    typed = f"train mnist dm-small --eps 0.1 --stage-epochs 0.5 --out {run} {TINY}"
    assert cli.main(typed.split()) == 0
    assert cli.main(f"certify {run} --eps 0.05 0.1 {SHORT['certify']}".split()) == 0
    return run


@pytest.fixture
def taught() -> Iterator[None]:
    """Remove the rules that a page adds."""
    rules = dict(Box.rules)
    yield
    Box.rules.clear()
    Box.rules.update(rules)


class Reader:
    """Follows a page: writes its files, runs its code and its commands."""

    def __init__(self, page: Path, folder: Path, trained: Path) -> None:
        self.page, self.folder, self.trained = page, folder, trained
        self.names: dict[str, Any] = {"__name__": "__main__", "advibp": advibp}
        exec(PRESUMED.get(name_of(page), ""), self.names)

    def follow(self, block: Block) -> None:
        match block.kind:
            case "file":
                self.path(block).write_text(block.body, "utf-8")
            case "recipe":
                self.path(block).write_text(block.body, "utf-8")
                Recipe.load(self.path(block))
            case "run":
                code = "\n" * (block.line - 1) + block.body  # so that a traceback points into the page
                made = re.findall(r'out="(runs/[\w-]+)', block.body)
                self.given(*(run for run in re.findall(r'"(runs/[\w-]+)', block.body) if run not in made))
                with torch.random.fork_rng():
                    exec(compile(code, str(self.page), "exec"), self.names)
            case "commands":
                for line in block.commands():
                    self.type(line)

    def path(self, block: Block) -> Path:
        assert block.title is not None
        return self.folder / block.title

    def type(self, line: str) -> None:
        """One command, in this process."""
        program, *words = shlex.split(line, comments=True)
        match program:
            case "advibp":
                self.advibp(words)
            case "python":
                with torch.random.fork_rng():
                    runpy.run_path(words[0], run_name="__main__")
            case "make":
                assert set(words) <= targets(), line
            case "pip":
                assert words[0] == "install"
                assert {extra for word in words for extra in re.findall(r"\[(\w+)\]", word)} <= extras(), line
            case "tensorboard":
                assert words[0] == "--logdir"
            case _:
                pytest.fail(f"{self.page}: nobody knows how to check '{line}'")

    def advibp(self, words: list[str]) -> None:
        args = parsed(words)
        if any(re.search(pattern, " ".join(words)) for pattern in PARSED):
            if words[0] == "train":
                keys = [field.name for field in dataclasses.fields(Recipe)]
                given = {key: getattr(args, key) for key in keys if getattr(args, key) is not None}
                Recipe.load(args.recipe, **given)
            return
        begins = args.out if words[0] in ("train", "sweep") and "--resume" not in words else None
        self.given(*(word for word in words if word != begins))
        short = SHORT.get(words[0], "").split()
        if "--resume" in words:
            short = ["--epochs", "3"] if "--epochs" in words else []  # a run goes on as it began
        elif "--radius" in words and "certify" in words:
            short = ["--limit", "4", "--attack-steps", "2"]
        elif "--onnx" in words and words[0] == "certify":
            short = ["--timeout", "600"]
        elif "--sample" in words and words[0] == "certify":
            short += ["--sample", "2", "--budget", "1"]
        elif "--complete" in words:
            short += ["--limit", "2", "--budget", "1"]
        assert cli.main([*words, *short]) == 0, " ".join(words)

    def given(self, *words: str) -> None:
        """Put what a page presumes where it looks for it."""
        for word in words:
            run = re.match(r"runs/[\w-]+", word)
            path = self.folder / (run[0] if run else word)
            if path.exists():
                continue
            if run:
                shutil.copytree(self.trained, path)
            elif word in GIVEN:
                GIVEN[word](path, self.trained)


def digit(path: Path, trained: Path) -> None:
    Image.fromarray(np.tile(np.arange(28, dtype=np.uint8) * 9, (28, 1))).save(path)


def digits(path: Path, trained: Path) -> None:
    data = advibp.data.load("mnist", limit=800, validation=100)
    train, test = data.train, data.test.take(50)
    np.savez(path, x_train=train.x, y_train=train.y, x_test=test.x, y_test=test.y)


def photos(path: Path, trained: Path) -> None:
    for name in ("cat", "dog"):
        (path / name).mkdir(parents=True)
        for k in range(6):
            digit(path / name / f"{k}.png", trained)


def network(path: Path, trained: Path) -> None:
    cli.main(["export", str(trained), "--onnx", str(path), "--vnnlib", "props", "--eps", "0.1", "--limit", "1"])
    Path("props/test-000000-eps-0.1.vnnlib").rename("p.vnnlib")


def cells(path: Path, trained: Path) -> None:
    shutil.copy(ROOT / "examples" / "breast_cancer.csv", path)


GIVEN: dict[str, Callable[[Path, Path], None]] = {
    "cells.csv": cells,
    "digit.png": digit,
    "digits.npz": digits,
    "photos/": photos,
    "net.onnx": network,
}


def parsed(words: list[str]) -> Any:
    """Parse the arguments; a wrong option fails the test."""
    args = cli.parser().parse_args(words)
    if words[0] == "reproduce":
        assert args.name in PLANS
        assert set(args.methods) <= set(METHODS)
        assert all(advibp.nets.is_known(net) for net in args.model)
    return args


def targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def extras() -> set[str]:
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"])


def shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten Python examples: two epochs per training, and small data sets."""
    load, train = advibp.data.load, advibp.train

    def short_load(source: Any, **options: Any) -> Any:
        data = load(source, **{**options, "limit": min(options.get("limit") or 300, 1000)})
        return dataclasses.replace(data, test=data.test.take(60))

    def short_train(net: Any, data: Any, *, recipe: Any = None, **options: Any) -> Any:
        tiny = {"epochs": 2, "ramp": 0.5, "warmup_natural": 0.25, "warmup_adversarial": 0.25, "batch_size": 50}
        given = recipe if isinstance(recipe, Recipe) else Recipe()
        if options.get("epochs", given.epochs) > 10:
            options = {**options, **tiny}
        return train(net, data, recipe=recipe, **options)

    monkeypatch.setattr(advibp.data, "load", short_load)
    monkeypatch.setattr(advibp, "train", short_train)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name_of)
def test_page_runs(page: Path, trained: Path, taught: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(webbrowser, "open", lambda url: True)
    shorter(monkeypatch)
    before = set(sys.modules)
    reader = Reader(page, tmp_path, trained)
    try:
        for block in blocks(page):
            reader.follow(block)
    finally:
        written = [str(path) for path in tmp_path.glob("*.py")]
        for module in set(sys.modules) - before:
            if getattr(sys.modules[module], "__file__", None) in written:
                del sys.modules[module]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_the_text_are_understood(page: Path) -> None:
    """`advibp certify runs/first --radius` in a sentence or a table, and `$ advibp ...` above an output."""
    commands = [" ".join(span.split()) for span in SPAN.findall(prose(page)) if span.startswith("advibp ")]
    outputs = "\n".join(block.body for block in blocks(page) if block.kind == "output")
    commands += re.findall(r"^\$ (advibp .*)$", outputs, re.MULTILINE)
    for command in commands:
        words = shlex.split(command)[1:]
        if len(words) == 1 or words[1] == "--help":  # the name of a command, or of all of them
            assert words[0] in known() or words[0] == "COMMAND", command
        else:
            parsed(words)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_options_in_the_text_exist(page: Path) -> None:
    every = {option for options in known().values() for option in options}
    named = {option for span in SPAN.findall(prose(page)) for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", span)}
    assert named <= every


def known() -> dict[str, set[str]]:
    """The commands, and their options."""
    (commands,) = (action for action in cli.parser()._actions if isinstance(action.choices, dict))
    assert isinstance(commands.choices, dict)
    return {name: set(parser._option_string_actions) for name, parser in commands.choices.items()}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_are_valid(page: Path) -> None:
    assert not [link for link in LINK.findall(prose(page)) if not (page.parent / link).exists()]


def hook(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / "hooks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_key_of_a_recipe_has_a_row() -> None:
    tables = hook("tables")
    grouped = [key for keys in KEY_GROUPS.values() for key in keys]
    assert sorted(grouped) == sorted(field.name for field in dataclasses.fields(Recipe))
    shown = tables.recipe_keys()
    assert "| `ramp` | `35%` | R: epochs of the joint phase in which eps grows to eps_train |" in shown
    assert shown.count("\n| `") == len(grouped)


def test_every_method_and_recipe_has_a_row() -> None:
    tables = hook("tables")
    for listed in (tables.methods(), tables.method_keys()):
        assert re.findall(r"^\| `([\w-]+)` \|", listed, re.MULTILINE) == list(METHODS)
    assert re.findall(r"^\| `([\w/.-]+)` \|", tables.shipped_recipes(), re.MULTILINE) == list(shipped())
    assert "| `paper/mnist-0.4` | dm-small | 0.3 | 4.15 | 10.80 | 6.83 |" in tables.published()


def test_every_table_is_on_a_page() -> None:
    marks = [mark for page in PAGES for mark in MARK.findall(page.read_text("utf-8"))]
    assert sorted(marks) == sorted(hook("tables").TABLES)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_generated_tables_are_up_to_date(page: Path) -> None:
    text = page.read_text("utf-8")
    assert hook("tables").updated(text) == text, "run: python docs/hooks/tables.py"


class Links(HTMLParser):
    """Links, loaded resources and anchors of a page of the site."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.names: set[str] = {"", "__skip"}
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        self.names |= {value for key in ("id", "name") if (value := said.get(key))}
        if tag == "a" and (link := said.get("href")):
            self.links.append(link)
        self.loaded += [url for key in ("src", "srcset") if (url := said.get(key))]
        if tag == "link" and said.get("rel") not in ("next", "prev", "canonical") and (url := said.get("href")):
            self.loaded.append(url)


def test_site_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It builds without warnings, all links are valid, and no page loads external resources."""
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    pages = {path: Links(path) for path in (tmp_path / "site").rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 60
    broken = []
    for path, page in pages.items():
        assert not [url for url in page.loaded if urlsplit(url).netloc or url.startswith("//")], path
        for link in page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            if not target.is_file() or (target in pages and unquote(url.fragment) not in pages[target].names):
                broken.append(f"{path.relative_to(tmp_path)}: {link}")
    assert not broken
    paper = pages[tmp_path / "site" / "paper.html"]
    assert len([link for link in paper.links if "source/advibp/" in link and "#__codelineno-0-" in link]) > 50
