"""The wheel contains its data and works without the source tree."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Built from a copy: setuptools leaves build/ and *.egg-info behind, and would pack a stale build/ again.
    source = tmp_path_factory.mktemp("source")
    for path in ROOT.iterdir():
        if path.suffix in (".toml", ".md", ".cff") or path.name == "LICENSE":
            shutil.copy(path, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run(installed: Path, cwd: Path, code: str) -> str:
    """Run ``code`` without the current folder, environment variables and editable installs."""
    start = f"""
import sys
sys.path.insert(0, {str(installed)!r})
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
sys.path[:] = [path for path in sys.path if path != {str(ROOT / "src")!r}]
import advibp
assert list(advibp.__path__) == [{str(installed / "advibp")!r}], advibp.__path__
"""
    done = subprocess.run([sys.executable, "-I", "-c", start + code], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_wheel_contains_code_types_images_and_recipes(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    source = ROOT / "src"
    patterns = ("*.py", "*.gz", "*.yaml", "*.csv", "page/*", "py.typed")
    wanted = [path for pattern in patterns for path in (source / "advibp").rglob(pattern)]
    assert {path.relative_to(source).as_posix() for path in wanted} <= names
    assert {"advibp/py.typed", "advibp/data/mnist/README.md", "advibp/data/mnist/train-images-idx3-ubyte.gz"} <= names
    assert {"advibp/report/page/page.html", "advibp/report/page/page.js", "advibp/reproduce/published.csv"} <= names
    assert [name for name in names if name.startswith("advibp/recipe/shipped/") and name.endswith(".yaml")]
    assert [name for name in names if name.endswith("licenses/LICENSE")]
    assert not [name for name in names if name.startswith("tests")]


def test_wheel_works_without_the_source_tree(installed: Path, tmp_path: Path) -> None:
    code = """
from advibp import data, nets
mnist = data.load("mnist", limit=100)
net = nets.build("dm-small", mnist.input_shape, mnist.classes, mean=mnist.mean, std=mnist.std)
print(tuple(net(mnist.train.x).shape), len(mnist.test))
"""
    assert run(installed, tmp_path, code).split("\n")[0] == "(100, 10) 10000"


def test_command_line_works_without_the_source_tree(installed: Path, tmp_path: Path) -> None:
    code = """
import runpy
sys.argv = ["advibp", "nets"]
runpy.run_module("advibp.cli", run_name="__main__")
"""
    assert "dm-small" in run(installed, tmp_path, code)
