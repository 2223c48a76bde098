"""The tree of tests mirrors the package, and file names are unique."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE, TESTS = ROOT / "src" / "advibp", ROOT / "tests"
#: Tests of the whole repository, and code that tests share.
ELSEWHERE = {"project", "helpers"}


def test_tests_mirror_the_package() -> None:
    """A test file has the name of a module, or of the folder, in the package, optionally with a suffix."""
    stray = []
    for path in TESTS.rglob("test_*.py"):
        place = path.parent.relative_to(TESTS)
        if place.parts and place.parts[0] in ELSEWHERE:
            continue
        twin = PACKAGE / place
        names = {file.stem for file in twin.glob("*.py")} | {folder.name for folder in (twin, *twin.glob("*/"))}
        if not any(path.stem == f"test_{name}" or path.stem.startswith(f"test_{name}_") for name in names):
            stray.append(str(path.relative_to(ROOT)))
    assert not stray


def test_module_names_are_unique() -> None:
    names = Counter(path.name for path in PACKAGE.rglob("*.py") if not path.name.startswith("__"))
    assert [name for name, count in names.items() if count > 1] == []


def test_few_top_level_modules() -> None:
    assert len([path for path in PACKAGE.glob("*.py") if path.name != "__main__.py"]) <= 8


def test_tests_share_code_only_in_helpers() -> None:
    """No test module imports another one."""
    importing = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in TESTS.rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if line.startswith(("from test_", "import test_"))
    ]
    assert not importing
