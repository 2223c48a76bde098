"""The examples in docstrings run, and every public class has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest
import torch

import advibp

PACKAGES = [f"advibp.{info.name}" for info in pkgutil.iter_modules(advibp.__path__) if info.ispkg]


def modules_of(package: str) -> list[ModuleType]:
    """Return a package and all modules in it."""
    root = importlib.import_module(package)
    names = [info.name for info in pkgutil.walk_packages(root.__path__, f"{package}.")]
    names = [name for name in names if not name.endswith("__main__")]
    return [root, *map(importlib.import_module, names)]


def examples_of(package: str) -> list[doctest.DocTest]:
    """Return the docstrings that have an example."""
    finder = doctest.DocTestFinder()
    found = [test for module in modules_of(package) for test in finder.find(module) if test.examples]
    return list({test.name: test for test in found}.values())


def public_classes(package: str) -> list[type]:
    """Return the classes that a package exports."""
    root = importlib.import_module(package)
    exported = [getattr(root, name) for name in getattr(root, "__all__", ())]
    return [value for value in exported if inspect.isclass(value)]


EXAMPLES = [test for package in PACKAGES for test in examples_of(package)]


@pytest.mark.parametrize("test", EXAMPLES, ids=[test.name for test in EXAMPLES])
def test_example_runs(test: doctest.DocTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some examples write files
    output: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        runner.run(test, out=output.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(output)


@pytest.mark.parametrize("package", PACKAGES)
def test_public_classes_have_an_example(package: str) -> None:
    names = {test.name for test in EXAMPLES}
    assert not [kind for kind in public_classes(package) if f"{kind.__module__}.{kind.__qualname__}" not in names]
